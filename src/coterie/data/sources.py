"""Clients' data as others keep them: torch and HuggingFace datasets, LEAF's JSON, and folders with a file per client.

Nothing of these libraries is imported: a dataset is known by what it offers.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.base.archives import check_unpacked
from coterie.base.disk import said
from coterie.data.checks import shown
from coterie.data.federation import Federation
from coterie.data.own_splits import WORDS
from coterie.data.reading import read_table
from coterie.data.schema import is_public, plain
from coterie.errors import DataError
from coterie.privacy.taint import Released

_TARGETS = ("label", "labels", "target", "y", "fine_label")
_TABLES = (".parquet", ".csv", ".tsv", ".csv.gz")
Array = npt.NDArray[Any]


# ---- datasets ------------------------------------------------------------------------------------------------------------


def federation_from_datasets(
    data: Any, *, client: str | None = None, x: str | None = None, y: str | None = None, **options: Any
) -> Federation:
    """`{client: dataset}`, or `{client: {"train": dataset, "test": dataset}}` for your own split.

    A dataset has a length and items `(x, y)` (torch), or columns by name (HuggingFace): then `x` and `y` name them, and one
    dataset, or one per split, whose column `client` says whose a row is will do instead of one per client. Other options are
    those of `Federation.from_arrays`."""
    if client is not None:
        data = _by_column(data, client, x, y)
    elif not isinstance(data, Mapping):
        raise DataError(
            "from_datasets needs {client: dataset}, or client='column' for one dataset of all. Pass either."
        )
    else:
        data = {name: _parts(name, given, x, y) for name, given in data.items()}
    return Federation.from_arrays(data, **options)


def _split(given: Any) -> bool:
    return isinstance(given, Mapping) and not hasattr(given, "column_names") and set(given) <= WORDS.keys()


def _parts(client: Any, given: Any, x: str | None, y: str | None) -> Any:
    if _split(given):
        return {part: _arrays(f"client {shown(client)}", dataset, x, y) for part, dataset in given.items()}
    return _arrays(f"client {shown(client)}", given, x, y)


def _by_column(data: Any, client: str, x: str | None, y: str | None) -> dict[Any, Any]:
    """The rows of one dataset, or of one per split, by the client in a column."""
    splits = dict(data) if isinstance(data, Mapping) else {"": data}
    found: dict[Any, dict[str, Any]] = {}
    for part, dataset in splits.items():
        if not hasattr(dataset, "column_names"):
            raise DataError(f"client={client!r} needs datasets with columns; got a {type(dataset).__name__}.")
        owner = _column(dataset, client, "the client")
        columns = [_values(dataset, c, "the dataset") for c in _named(dataset, "the dataset", x, y, taken=(client,))]
        for who in dict.fromkeys(owner.tolist()):
            mine = np.flatnonzero(owner == who)
            found.setdefault(who, {})[part] = tuple(_stacked([c[i] for i in mine], "the dataset") for c in columns)
    return {who: parts.get("", parts) for who, parts in found.items()}


def _named(dataset: Any, what: str, x: str | None, y: str | None, taken: tuple[str, ...] = ()) -> tuple[str, str]:
    """The columns to learn from and to predict."""
    names = dataset.column_names
    target = y or next((n for n in _TARGETS if n in names), None)
    others = [n for n in names if n != target and n not in taken]
    if target is None or (x is None and len(others) != 1):
        raise DataError(f"Name the columns of {what} to learn from and to predict: x=…, y=…; it has {list(names)}.")
    return x or others[0], target


def _arrays(what: str, dataset: Any, x: str | None, y: str | None) -> tuple[Array, Array]:
    if getattr(dataset, "column_names", None) is not None:
        one, target = _named(dataset, what, x, y)
        return _column(dataset, one, what), _column(dataset, target, what)
    if hasattr(dataset, "batch_sampler"):
        raise DataError(f"A DataLoader gives batches; {what} needs single samples. Pass its dataset: loader.dataset.")
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise DataError(f"A dataset has a length and items, or columns; {what} has a {type(dataset).__name__}.")
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    items = [dataset[i] for i in range(len(dataset))] if sized else list(dataset)
    if not items or not all(isinstance(item, tuple | list) and len(item) >= 2 for item in items):
        raise DataError(f"Items of a dataset are pairs (x, y); those of {what} are not. Wrap it in one whose are.")
    return _stacked([item[0] for item in items], what), np.asarray([np.asarray(item[1]) for item in items])


def _column(dataset: Any, name: str, what: str) -> Array:
    return _stacked(_values(dataset, name, what), what)


def _values(dataset: Any, name: str, what: str) -> list[Any]:
    if name not in dataset.column_names:
        raise DataError(f"There is no column {name!r} in {what}; it has {list(dataset.column_names)}.")
    return list(dataset[name])


def _stacked(values: list[Any], what: str) -> Array:
    try:
        return np.stack([np.asarray(v) for v in values])
    except ValueError:
        raise DataError(f"All samples need one shape; those of {what} differ. Resize or pad them.") from None


# ---- LEAF ----------------------------------------------------------------------------------------------------------------


def federation_from_leaf(
    folder: Path,
    *,
    encode: Callable[[Any], Any] | None = None,
    label: Callable[[Any], Any] | None = None,
    characters: str | Released[Any] | None = None,
    **options: Any,
) -> Federation:
    """LEAF's files ("LEAF: A Benchmark for Federated Settings", https://arxiv.org/abs/1812.01097): every *.json below
    `folder` holds `users` and their `user_data`; files in a folder called train or test are those parts of the users' rows.

    `encode` turns a sample into numbers and `label` a target. Text of one length (Shakespeare) becomes ids of its characters
    by default, its targets stay characters. `characters` names them in advance, and any other is 0;
    `characters=privacy.public("abc…")` declares them public, for private runs."""
    found: dict[Any, dict[str, list[Any]]] = {}
    files = sorted(folder.rglob("*.json"))
    for file in files:
        part = next((p.name for p in file.parents if p.name in WORDS and p != folder.parent), "")
        for user, rows in _leaf_users(file).items():
            x, y = found.setdefault(user, {}).setdefault(part, [[], []])
            x.extend(rows["x"])
            y.extend(rows["y"])
    if not found:
        raise DataError(f"There are no LEAF files (*.json with user_data) in {folder}. Name the folder of their data.")
    read = False
    if encode is None and characters is not None:
        encode, options = _ids(sorted(set(plain(characters)))), {"dtype": "int64"} | options
    elif encode is None and all(
        isinstance(v, str) for parts in found.values() for x, _ in parts.values() for v in x[:1]
    ):
        encode, options, read = _characters(found), {"dtype": "int64"} | options, True
    data = {}
    for user, parts in found.items():
        made = {part: (_leaf(x, encode, file), _leaf(y, label, file)) for part, (x, y) in parts.items()}
        data[user] = made.get("", made)
    trained = {user: made for user, made in data.items() if not isinstance(made, dict) or "train" in made}
    whole = Federation.from_arrays(trained, **options)
    known = frozenset({"inputs"} if is_public(characters) else ())
    return replace(
        whole,
        encoded=read or characters is not None,
        filtered=len(trained) < len(data),
        declared=whole.declared | known,
    )


def _leaf_users(file: Path) -> dict[str, Any]:
    try:
        users: dict[str, Any] = json.loads(file.read_text("utf-8"))["user_data"]
        if not all(len(rows["x"]) == len(rows["y"]) for rows in users.values()):
            raise DataError("a user has more samples than targets")
        return users
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{file} is not a LEAF file: {said(error)}. It needs user_data with every user's x and y."
        ) from None


def _leaf(values: list[Any], encode: Callable[[Any], Any] | None, file: Path) -> Array:
    return _stacked(values if encode is None else [encode(v) for v in values], str(file.parent))


def _characters(found: Mapping[Any, Any]) -> Callable[[Any], list[int]]:
    """Ids of the characters of all training rows; 0 for one that only test rows have."""
    texts = (v for parts in found.values() for part, (x, _) in parts.items() if part != "test" for v in x)
    return _ids(sorted({c for text in texts for c in text}))


def _ids(characters: Sequence[str]) -> Callable[[Any], list[int]]:
    """Ids from 1 of these characters; 0 for all others."""
    ids = {c: i + 1 for i, c in enumerate(characters)}
    return lambda text: [ids.get(c, 0) for c in text]


# ---- folders -------------------------------------------------------------------------------------------------------------


def federation_from_folder(folder: Path, *, target: str | None = None, **options: Any) -> Federation:
    """A file per client, named after it. `.npz` files hold `x` and `y`, or `x_train`, `y_train`, `x_validation`, …,
    `y_test`, and may hold weights `w`; or folders called train, validation and test have a file per client each. Tables
    (`.parquet`, `.csv`) have a column `target`, and other options are those of `from_frame`."""
    files = _files(folder)
    arrays = [p for p in files if p.suffix == ".npz"]
    parts = {p.name: _files(p) for p in folder.iterdir() if p.name in WORDS} if folder.is_dir() and not files else {}
    if any(parts.values()):
        return Federation.from_arrays(_by_part(parts), **options)
    if not files:
        raise DataError(f"There are no .npz, .parquet or .csv files in {folder}. Name a folder with a file per client.")
    if arrays and len(arrays) < len(files):
        raise DataError(f"{folder} holds arrays and tables; a federation needs one kind. Move the others away.")
    if arrays:
        return Federation.from_arrays([(_name(p), _npz(p)) for p in arrays], **options)
    if target is None:
        raise DataError(f"Name the column to predict in the tables of {folder}: target='…'.")
    cells = is_public(options.get("categories"))
    column = "client" if "client" not in (frame := read_table(files[0], text=cells)).columns else "client file"
    frames = [frame, *(read_table(p, text=cells) for p in files[1:])]
    whole = pd.concat([f.assign(**{column: _name(p)}) for f, p in zip(frames, files, strict=True)], ignore_index=True)
    made = Federation.from_frame(whole, client=column, target=target, **options)
    # without names, the columns are those of all files together
    return made if options.get("features") is not None else replace(made, declared=made.declared - {"inputs"})


def _files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.iterdir()) if p.name.endswith((".npz", *_TABLES))] if folder.is_dir() else []


def _by_part(parts: Mapping[str, list[Path]]) -> dict[str, dict[str, Any]]:
    """Every client's arrays from the folders of the parts."""
    found: dict[str, dict[str, Any]] = {}
    for part, files in parts.items():
        for path in files:
            if path.suffix != ".npz":
                raise DataError(f"Folders of parts hold .npz files; got {path}. For tables use a column: split='…'.")
            found.setdefault(_name(path), {})[part] = _npz(path)
    return found


def _name(path: Path) -> str:
    """The file's name without its ending; other dots belong to it."""
    ending = next(e for e in (".npz", *_TABLES) if path.name.endswith(e))
    return path.name.removesuffix(ending)


def _npz(path: Path) -> Any:
    check_unpacked(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if "pickle" in str(error):
            raise DataError(
                f"{path} holds Python objects, whose reading could run any code. If you trust it, save its arrays once: "
                "data = np.load(path, allow_pickle=True)['data'].item(); np.savez(path, x=data['x'], y=data['y'])."
            ) from None
        raise DataError(f"The file {path} cannot be read: {said(error)}. Save it again with np.savez.") from None
    if "x" in held and "y" in held:
        return tuple(held[name] for name in ("x", "y", "w") if name in held)
    parts = {name[2:] for name in held if name.startswith("x_")}
    if not parts or any(f"y_{part}" not in held for part in parts):
        raise DataError(f"The file {path} needs x and y, or x_train, y_train, …; it has {sorted(held)}.")
    return {part: tuple(held[f"{k}_{part}"] for k in ("x", "y", "w") if f"{k}_{part}" in held) for part in parts}
