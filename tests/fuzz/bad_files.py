"""Malformed files: configurations, tables, and folders of runs that were damaged, with the command that reads each."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

N = 48


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "shop": np.repeat(["a", "b", "c", "d"], N // 4),
            "u": rng.normal(size=N).round(3),
            "v": rng.normal(size=N).round(3),
            "y": np.tile([0, 1], N // 2),
        }
    )


def toml_text(sections: dict[str, Any]) -> str:
    """Sections with values of every kind; dicts inside are inline tables."""
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in entries.items()) + "\n"
        for name, entries in sections.items()
    )


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


# ---- configurations --------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "data": {"path": "table.csv", "client": "shop", "target": "y", "kind": "classification"},
    "task": {"model": "mlp", "hidden": 3},
    "algorithm": {"name": "fedavg", "local": {"name": "LocalSGD", "steps": 1}},
    "run": {"rounds": 1, "out": "out"},
}
PRIVATE = {"epsilon": 3.0, "delta": 1e-5, "clip": 1.0, "noise": "simulation"}
KEYS: dict[str, tuple[str, ...]] = {
    "data": (
        *("path", "client", "target", "features", "exclude", "cluster", "kind", "test_fraction", "seed"),
        *("max_categories", "min_rows", "drop_missing", "same_clients", "one_class", "dtype", "scaling", "weight"),
        *("split", "classes", "delimiter", "decimal", "encoding", "name"),
    ),
    "task": ("model", "hidden", "loss", "metric", "n_in", "n_out"),
    "algorithm": ("name", "local", "server_lr", "server_momentum", "aggregate", "lam"),
    "privacy": ("epsilon", "delta", "clip", "noise", "adjacency", "ledger", "users", "total_epsilon", "beyond"),
    "run": (*("rounds", "seed", "cohort", "engine", "evaluate_every", "evaluate_clients", "checkpoint_every", "out"),),
}
VALUES: dict[str, Any] = {
    "text": "no such thing",
    "no text": "",
    "negative": -1,
    "fraction": 1.5,
    "boolean": True,
    "huge": 10**18,
    "nan": float("nan"),
    "infinite": float("inf"),
    "empty list": [],
    "list": [1, "a"],
    "nested": [[1], [2, 3]],
    "table": {"name": "x"},
    "unicode": "ünï✓\u202e",
}


def with_value(section: str, key: str, value: Any) -> str:
    made = copy.deepcopy(GOOD)
    if section == "privacy":
        made["privacy"] = dict(PRIVATE)
    if (section, key) == ("data", "name"):
        del made["data"]["path"]
    made[section][key] = value
    return toml_text(made)


def configurations() -> Iterator[tuple[str, str | bytes]]:
    """Every key with every value, then files that are broken as a whole."""
    for section, keys in KEYS.items():
        for key in keys:
            for label, value in VALUES.items():
                yield f"[{section}] {key} = {label}", with_value(section, key, value)
    good = toml_text(GOOD)
    yield "unknown key", good.replace("rounds", "round_count")
    yield "unknown section", good + "\n[extra]\nx = 1\n"
    yield "empty", ""
    yield "binary", bytes(range(256))
    yield "utf-16", good.encode("utf-16")
    yield "latin-1", good.replace("out", "ö").encode("latin-1")
    yield "half", good[: len(good) // 2]
    yield "no data", good[good.index("[task]") :]
    yield "data is a number", "data = 3\n" + good[good.index("[task]") :]
    yield "two data", good + good
    yield "nul", good + "\x00"
    yield "deep", "a = " + "[" * 2000 + "]" * 2000
    yield "sections are lists", "\n".join(f"[[{name}]]\nx = 1" for name in GOOD)
    yield "channels of text", good + '\nchannels = "dropout"\n'
    yield "channels unknown", good + '\n[[channels]]\nname = "nothing"\n'
    yield "channels without a name", good + "\n[[channels]]\nrate = 0.1\n"
    yield "channels with a wrong rate", good + '\n[[channels]]\nname = "dropout"\nrate = 7\n'


HARMLESS_CONFIGURATIONS: dict[str, Callable[[str], bytes]] = {
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "ends of lines of Windows": lambda text: text.replace("\n", "\r\n").encode(),
}


# ---- tables ----------------------------------------------------------------------------------------------------------


def put(column: str, value: Any, rows: Any = slice(None)) -> pd.DataFrame:
    made = frame().astype({column: object})
    made[column] = made[column].where(~pd.Series(np.isin(np.arange(N), np.arange(N)[rows])), other=None)
    made.loc[made[column].isna(), column] = pd.Series([value] * N, dtype=object)
    return made


def csv(text: str) -> bytes:
    return text.encode()


HEADER = "shop,u,v,y\n"
ROWS = frame().to_csv(index=False)


def bad_csvs() -> Iterator[tuple[str, bytes]]:
    """CSV files that hold no comparison, as bytes."""
    yield "empty", b""
    yield "blank", b"\n\n\n"
    yield "header only", HEADER.encode()
    yield "one row", csv(HEADER + "a,1,2,0\n")
    yield "one client", frame().assign(shop="a").to_csv(index=False).encode()
    yield "duplicate columns", ROWS.replace("shop,u,v,y", "shop,u,u,y").encode()
    yield "all features missing", frame().assign(u=np.nan, v=np.nan).to_csv(index=False).encode()
    yield "all missing", (HEADER + ",,,\n" * 20).encode()
    yield "target missing", frame().assign(y=np.nan).to_csv(index=False).encode()
    yield "clients missing", frame().assign(shop=np.nan).to_csv(index=False).encode()
    yield "ragged", (ROWS + "a,1,2,0,9,9,9\n").encode()
    yield "unclosed quote", (ROWS + 'a,"1,2,0\n').encode()
    yield "binary", bytes(range(256)) * 20
    yield "nul bytes", ROWS.replace("a,", "a\x00,").encode()[:200] + b"\x00" * 50
    yield "no client column", ROWS.replace("shop", "shop2", 1).encode()
    yield "no target column", ROWS.replace(",y\n", ",z\n", 1).encode()
    yield "constant target", frame().assign(y=1).to_csv(index=False).encode()
    yield "text features alone of one value each", frame().assign(u="x", v="x").to_csv(index=False).encode()
    yield "only client and target", frame()[["shop", "y"]].to_csv(index=False).encode()
    yield "a zip", b"PK\x03\x04" + bytes(200)
    yield "every row a client", frame().assign(shop=[f"c{i}" for i in range(N)]).to_csv(index=False).encode()
    yield "json in a csv", json.dumps({"a": 1}).encode()
    yield "one column", ("y\n" + "1\n" * 20).encode()
    yield "infinite target", frame().assign(y="inf").to_csv(index=False).encode()
    yield "mixed target", frame().assign(y=["a", 1] * (N // 2)).assign(y=lambda f: f.y).iloc[:1].to_csv().encode()


def other_tables() -> Iterator[tuple[str, str, Callable[[Path], Any]]]:
    """(label, file name, what writes it): Parquet, Excel, JSON, NPZ files."""
    for suffix in ("parquet", "xlsx", "json", "npz", "feather", "tsv", "csv.gz", "pq", "xls", "jsonl"):
        yield f"empty {suffix}", f"t.{suffix}", lambda p: p.write_bytes(b"")
        yield f"text as {suffix}", f"t.{suffix}", lambda p: p.write_text("hello\nworld\n")
        yield f"binary as {suffix}", f"t.{suffix}", lambda p: p.write_bytes(bytes(range(256)) * 4)
    yield "half a parquet", "t.parquet", lambda p: _half(frame().to_parquet, p)
    yield "lists in cells", "t.parquet", lambda p: frame().assign(u=[[1, 2]] * N).to_parquet(p)
    yield "lists as target", "t.parquet", lambda p: frame().assign(y=[[1, 2]] * N).to_parquet(p)
    yield "lists as clients", "t.parquet", lambda p: frame().assign(shop=[["a"]] * N).to_parquet(p)
    yield "no rows in parquet", "t.parquet", lambda p: frame().iloc[:0].to_parquet(p)
    yield "no columns in parquet", "t.parquet", lambda p: pd.DataFrame(index=range(5)).to_parquet(p)
    yield "dates as target", "t.parquet", lambda p: frame().assign(y=pd.date_range("2020", periods=N)).to_parquet(p)
    yield "bytes as clients", "t.parquet", lambda p: frame().assign(shop=[b"a", b"b"] * (N // 2)).to_parquet(p)
    yield "a folder", "t.csv", lambda p: p.mkdir()
    yield "nothing there", "t.csv", lambda p: None


def _half(write: Callable[[Path], Any], path: Path) -> None:
    write(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


# ---- folders of runs -------------------------------------------------------------------------------------------------


def damages(folder: Path) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """Every file of a folder: gone, empty, cut in half, one byte changed, other text, a folder in its place."""
    for file in sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file()):
        yield f"{file} is gone", lambda f, file=file: (f / file).unlink()
        yield f"{file} is empty", lambda f, file=file: (f / file).write_bytes(b"")
        yield f"{file} is half", lambda f, file=file: _cut(f / file)
        yield f"{file} has a changed byte", lambda f, file=file: _flip(f / file)
        yield f"{file} is text", lambda f, file=file: (f / file).write_text("hello\n")
        yield f"{file} is JSON", lambda f, file=file: (f / file).write_text('{"version": 99}')
        yield f"{file} is a folder", lambda f, file=file: _as_folder(f / file)


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to
