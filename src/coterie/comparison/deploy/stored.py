"""A model on disk: model.json, arrays.safetensors and, for `update`, sums.safetensors. Nothing in it can run.

sums.safetensors holds sums over every client's rows (for a client with a single row, that row). Predictions do not need it:
delete it before the model is given to others."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.disk import SealedFolder, locked, writing
from coterie.comparison.deploy.coding import Coding
from coterie.comparison.deploy.intervals import Intervals
from coterie.comparison.deploy.model import TableModel
from coterie.comparison.deploy.newcomers import PlacedPart
from coterie.comparison.deploy.parts import Arrays, LinearPart, Part
from coterie.comparison.deploy.stack import Stack
from coterie.comparison.deploy.statistics import Statistics
from coterie.comparison.deploy.trees import TreesPart
from coterie.comparison.exact.plan import Projection
from coterie.errors import ConfigError, CoterieError, DataError

KINDS: dict[str, type[Any]] = {"linear": LinearPart, "trees": TreesPart, "placed": PlacedPart}
ABOUT, ARRAYS, SUMS = "model.json", "arrays.safetensors", "sums.safetensors"
_FORMAT = 1
_PATIENCE = 60.0
Kept = TypeVar("Kept")


def _sealed(folder: Path) -> SealedFolder:
    return SealedFolder(folder, ABOUT, DataError, "save the model again.", "run coterie compare again.")


def save(model: TableModel, folder: Path) -> Path:
    """The description is written last, so that a folder is whole or refused."""
    from safetensors.numpy import save_file

    if (folder / ABOUT).exists() and '"format"' not in (folder / ABOUT).read_text("utf-8", "replace"):
        raise ConfigError(f"{folder} has a {ABOUT} that is no model's. Name another folder, or move it.")
    names = list(model.stack.parts)
    arrays = {"weights": model.stack.weights} | _under("intervals", vars(model.intervals))
    if model.coding.projection is not None:
        arrays |= _under("projection", vars(model.coding.projection))
    for j, part in enumerate(model.stack.parts.values()):
        arrays |= _under(f"part{j}", part.arrays())
    about = {
        "format": _FORMAT,
        "parts": [{"name": n, "kind": _kind(model.stack.parts[n])} for n in names],
        "clients": list(model.clients),
        "classes": None if model.classes is None else list(model.classes),
        "client": model.client,
        "coding": model.coding.to_json(),
        "about": dict(model.about),
    }
    with locked(folder, _PATIENCE):
        sealed = _sealed(folder)
        sealed.unseal()
        sums = {} if model.statistics is None else vars(model.statistics)
        for name, values in ((ARRAYS, arrays), (SUMS, sums)):
            (folder / name).unlink(missing_ok=True)
            if values:
                with writing(folder / name) as partial:
                    save_file({key: np.asarray(value, order="C") for key, value in values.items()}, partial)
        sealed.seal(about, [name for name, values in ((ARRAYS, arrays), (SUMS, sums)) if values], _plain)
    return folder


@guarded
def load_model(path: str | Path) -> TableModel:
    """A model that `TableModel.save` or `coterie compare --out` wrote (there in the folder `model`)."""
    folder = Path(path)
    if not (folder / ABOUT).is_file():
        near = folder / "model"
        raise DataError(
            f"{folder} holds no model (no {ABOUT}).",
            python=f"Did you mean {near}?" if (near / ABOUT).is_file() else "Write one with found.model.save.",
            cli=f"Did you mean {near}?" if (near / ABOUT).is_file() else "Write one with coterie compare --out.",
        )
    sealed = _sealed(folder)
    about = sealed.about()
    if about.get("format") != _FORMAT:
        raise DataError(
            f"{folder} has format {about.get('format')!r}, and this version of coterie reads {_FORMAT}. Use the version "
            "that wrote it, or compare again."
        )
    try:
        return _assembled(sealed, about)
    except CoterieError:
        raise
    except Exception as error:  # a description of other things, under a right checksum
        raise sealed.damaged(ABOUT, f"{type(error).__name__}") from None


def _assembled(sealed: SealedFolder, about: dict[str, Any]) -> TableModel:
    arrays = _read(sealed, ARRAYS, about["files"][ARRAYS])
    parts: dict[str, Part] = {
        part["name"]: KINDS[part["kind"]].of(_below(arrays, f"part{j}")) for j, part in enumerate(about["parts"])
    }
    components = _below(arrays, "projection")
    projection = _made(Projection, components) if components else None
    sums = about["files"].get(SUMS)
    has_sums = sums is not None and (sealed.folder / SUMS).exists()  # whoever gives a model away may delete them
    return TableModel(
        Stack(parts, arrays["weights"]),
        Coding.from_json(about["coding"], projection),
        tuple(about["clients"]),
        None if about["classes"] is None else tuple(about["classes"]),
        _made(Intervals, _below(arrays, "intervals")),
        about["client"],
        about["about"],
        _made(Statistics, _read(sealed, SUMS, sums)) if has_sums else None,
    )


def _read(sealed: SealedFolder, name: str, checksum: str) -> Arrays:
    from safetensors.numpy import load_file

    sealed.check(name, checksum)
    found: Arrays = sealed.read(name, load_file)
    return found


def _made(kind: type[Kept], arrays: Arrays) -> Kept:
    return kind(**{f.name: arrays[f.name] for f in fields(kind)})  # type: ignore[arg-type]


def _under(prefix: str, arrays: Arrays) -> Arrays:
    return {f"{prefix}.{name}": np.asarray(value) for name, value in arrays.items()}


def _below(arrays: Arrays, prefix: str) -> Arrays:
    return {n.removeprefix(f"{prefix}."): value for n, value in arrays.items() if n.startswith(f"{prefix}.")}


def _kind(part: Part) -> str:
    return next(name for name, kind in KINDS.items() if type(part) is kind)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
