"""Runs killed with SIGKILL at random moments, started again, and compared with runs nobody killed.

Without noise both end with the same bits. With noise the ledger counts: what is booked stays within the plan, and the
receipt within the budget.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

import coterie as ct
from coterie.base.disk import LOCK
from coterie.training import checkpoint

ROUNDS, EPSILON = 6, 3.0  # as in killing.py
KINDS = ("plain", "private", "compare", "reproduce")
TIMES = {"curves.parquet", "bernoulli.json"}  # they hold seconds; what else they hold is compared
DRAWN = {"bernoulli.svg"}  # matplotlib draws the names of its parts


class Killer:
    """The warm process of killing.py."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(Path(__file__).with_name("killing.py"))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(
        self, kind: str, folder: Path, *, seconds: float | None = None, line: int | None = None
    ) -> dict[str, Any]:
        """Run a job; it is killed after so many seconds, at that line, or (neither) not at all."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"kind": kind, "folder": str(folder), "seconds": seconds, "line": line}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["code"] in (0, 1, -9), answer["said"]
        return answer


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    one = Killer()
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for the folders of runs, with a table beside them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": np.repeat(["a", "b", "c"], 60), "x": rng.normal(size=180), "w": rng.normal(size=180)})
    frame["y"] = ((frame["x"] > 0) ^ (frame["shop"] == "c")).astype(int)
    frame.to_csv(tmp_path / "shops.csv", index=False)
    return tmp_path


# ---- what must hold --------------------------------------------------------------------------------------------------


def _checkpoint(folder: Path) -> tuple[Any, ...]:
    tensors, about = checkpoint.read(folder / checkpoint.FILE)
    history = [{name: v for name, v in row.items() if name != "seconds"} for row in about["history"]]
    return {name: t.numpy().tobytes() for name, t in tensors.items()}, history, about["done"]


def _plain(folder: Path) -> Any:
    models = load_file(folder / "models.safetensors")
    return (
        _checkpoint(folder),
        {name: t.numpy().tobytes() for name, t in models.items()},
        (folder / "evaluation.parquet").read_bytes(),
    )


def _files(folder: Path) -> dict[str, bytes]:
    """All files but those that hold times or drawn names."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name not in TIMES | DRAWN
    }


def _compared(folder: Path) -> Any:
    curves = pd.read_parquet(folder / "curves.parquet")
    return _files(folder), curves.drop(columns=[c for c in curves if "seconds" in c]).to_csv()


def _reproduced(folder: Path) -> Any:
    return _files(folder), json.loads((folder / "bernoulli.json").read_text())["cells"]


OUTCOME: dict[str, Callable[[Path], Any]] = {"plain": _plain, "compare": _compared, "reproduce": _reproduced}


def _booked(folder: Path) -> int:
    if not (folder / "ledger.sqlite").exists():
        return 0
    db = sqlite3.connect(folder / "ledger.sqlite")
    try:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'releases'").fetchone():
            return 0
        return int(db.execute("SELECT TOTAL(count) FROM releases").fetchone()[0])
    finally:
        db.close()


def _whole_or_absent(kind: str, folder: Path, whole: Path) -> None:
    """After a kill: every file can be read, and what a comparison or an experiment wrote is already final."""
    if (folder / checkpoint.FILE).exists():
        checkpoint.read(folder / checkpoint.FILE)
    if (folder / "bernoulli.json").exists():
        json.loads((folder / "bernoulli.json").read_text())
    if (folder / "curves.parquet").exists():
        pd.read_parquet(folder / "curves.parquet")
    final = _files(whole) if kind in ("compare", "reproduce") else {}
    for name in final:
        assert not (folder / name).exists() or (folder / name).read_bytes() == final[name], name


def _ends_well(kind: str, folder: Path, whole: Path, answer: dict[str, Any], killed: int) -> str:
    """What a run that was killed and then let go on has come to."""
    left = [p.name for p in folder.iterdir() if p.name.endswith(".partial") or p.name == LOCK]
    assert not left
    assert answer["code"] == 0, answer["said"]
    if kind != "private":
        assert OUTCOME[kind](folder) == OUTCOME[kind](whole)
        return "equal"
    booked = _booked(folder)
    assert booked <= ROUNDS
    result = ct.Result.load(folder)
    assert result.receipt.valid, result.receipt.reasons
    assert result.receipt.epsilon <= EPSILON
    assert result.receipt.releases[0]["count"] == booked
    assert ROUNDS - killed <= len(result.history) <= booked  # a kill costs at most the round it ends
    if result.about["finished"]:
        assert len(result.history) == ROUNDS
        return "ended"
    assert "would cost" in result.about["stopped"]
    return "spent"


def spree(killer: Killer, kind: str, place: Path, kills: int, seed: int) -> Counter[str]:
    """Kill runs of a kind until `kills` are dead, up to four times the same one; says what they came to."""
    rng = np.random.default_rng(seed)
    whole = place / "whole"
    first = killer(kind, whole)
    assert first["code"] == 0, first["said"]
    lines = int(first["said"].split()[-1])
    assert lines > 100
    found: Counter[str] = Counter()
    while found["kills"] < kills:
        folder = place / f"run{found['runs']}"
        dead = 0
        for _ in range(int(rng.integers(1, 5))):
            if rng.random() < 0.5:
                answer = killer(kind, folder, line=int(rng.integers(1, lines + 1)))
            else:
                answer = killer(kind, folder, seconds=float(rng.uniform(0, 0.8 * first["seconds"])))
            if answer["code"] != -9:
                break  # it was faster
            dead += 1
            if kind == "private":
                assert _booked(folder) <= ROUNDS
            if folder.exists():
                _whole_or_absent(kind, folder, whole)
        answer = killer(kind, folder)
        found[_ends_well(kind, folder, whole, answer, dead)] += 1
        found["kills"] += dead
        found["runs"] += 1
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(killer: Killer, kind: str, place: Path) -> None:
    assert spree(killer, kind, place, 1 if kind == "compare" else 3, seed=1)["kills"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("plain", 60), ("private", 60), ("compare", 30), ("reproduce", 50)])
def test_two_hundred_kills_change_nothing(killer: Killer, kind: str, kills: int, place: Path) -> None:
    found = spree(killer, kind, place, kills, seed=2)
    print(kind, dict(found))
    assert found["kills"] >= kills
