"""`coterie compare` walks one way, cli → data → comparison → evidence → report, and enters every room once.

A call into a room from a room above it is an entry; callbacks (progress) go up and do not count. What a room handed on may
be read: methods of its objects, functions of a `Comparison`, the spelling of clients' names, and the likeness of clients,
computed when it is drawn."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.cli import main
from coterie.comparison.result import Comparison
from coterie.data.coded_table import Table

ROOT = f"{Path(coterie.__file__).parent}/"
HIGHER = {"data": {"cli", "report", "comparison"}, "evidence": {"cli", "report", "comparison"}}
HIGHER |= {"comparison": {"cli", "report"}, "report": {"cli"}}


def room_of(frame: FrameType | None) -> str:
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ROOT):
            return name.removeprefix(ROOT).split("/")[0]
        frame = frame.f_back
    return ""


class Walk:
    """The entries of rooms from above, in order, and how often every function of the package was called."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name.startswith("<"):
            return
        self.calls[code.co_name] += 1
        room = room_of(frame)
        if room_of(frame.f_back) in HIGHER.get(room, ()) and not _reads(frame):
            self.entries.append((room, f"{code.co_filename.removeprefix(ROOT)}:{code.co_name}"))

    @property
    def rooms(self) -> list[str]:
        return [room for room, _ in groupby(room for room, _ in self.entries)]


def _reads(frame: FrameType) -> bool:
    first = frame.f_code.co_varnames[:1]
    handed_on = bool(first) and (first[0] in ("self", "cls") or isinstance(frame.f_locals.get(first[0]), Comparison))
    return handed_on or frame.f_code.co_filename.endswith(("comparison/likeness.py", "data/client_names.py"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Eight clients in two groups of opposite slopes, with categories, gaps and positions."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": np.repeat([f"c{i}" for i in range(8)], 30), "x": rng.normal(size=240)})
    frame["kind"] = rng.choice(["red", "green"], 240)
    frame["lon"] = frame["lat"] = frame["who"].str[1:].astype(float)
    frame["y"] = np.where(frame["who"] < "c4", 1.0, -1.0) * frame["x"] + 0.3 * rng.normal(size=240)
    frame.loc[::17, "x"] = np.nan
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    return path


def walked(*arguments: str) -> Walk:
    walk = Walk()
    sys.setprofile(walk)
    try:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
    finally:
        sys.setprofile(None)
    assert ended.value.code == 0
    return walk


@pytest.mark.parametrize("shown", [(), ("--json",)], ids=["tables", "json"])
def test_every_room_is_entered_once(table: Path, tmp_path: Path, shown: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    walk = walked("compare", str(table), "--client", "who", "--target", "y", "--seeds", "2", "--out", str(out), *shown)
    assert walk.rooms == ["data", "comparison", "evidence", "report"], walk.entries
    assert (out / "report.html").exists()


def test_a_file_becomes_a_table_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Table] = []
    check = Table.__post_init__
    monkeypatch.setattr(Table, "__post_init__", lambda self: (made.append(self), check(self))[1])
    walk = walked("compare", str(table), "--client", "who", "--target", "y", "--seeds", "2")
    once = ("read_table", "federation_from_frame", "inspect_columns", "fit_preprocessing", "apply_preprocessing")
    assert {name: walk.calls[name] for name in once} == dict.fromkeys(once, 1)
    assert walk.calls["make_table"] == 0
    coded = {row.tobytes() for row in made[0].X}  # all other tables are rows of the first
    assert all({row.tobytes() for row in t.X} <= coded for t in made)
