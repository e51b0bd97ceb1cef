"""One idea has one home: what several rooms need is written once, and no room is loaded for nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "coterie"
HOMES = {
    r"hashlib\.file_digest\(": "base/disk.py",  # the checksum of a file
    r"def grams\(": "estimation/blocks.py",  # XᵀX and Xᵀy of every client
    r"\.var\(0\) \* len\(": "comparison/exact/distinguish.py",  # Cohen's d
    r"(=|return) make_plan\(": "privacy/account.py",  # the plan of a run's budget
    r"DerSimonian": "evidence/mean_gains.py",  # the random-effects mean
}


@pytest.mark.parametrize("pattern", HOMES)
def test_a_shared_step_is_written_once(pattern: str) -> None:
    found = [
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if re.search(pattern, path.read_text("utf-8"))
    ]
    assert found == [HOMES[pattern]]


def test_an_algorithm_does_not_load_the_estimators_and_the_pricing_game() -> None:
    """The rooms that `ct.FedAvg` has no use for are imported when they are first named."""
    shown = "import sys, coterie; coterie.FedAvg; print(*(m for m in sys.modules if m.startswith('coterie.')))"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()
    assert "coterie.algorithms.fedavg" in loaded
    rooms = {name.split(".")[1] for name in loaded}
    assert not rooms & {"incentives", "estimation", "decision", "comparison", "report", "flower", "datasets", "cli"}


def _public_names() -> set[str]:
    stubs = "\n".join(path.read_text("utf-8") for path in SOURCE.rglob("*.pyi"))
    lists = [
        ast.literal_eval(node.value)
        for path in SOURCE.rglob("__init__.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Assign)
        and getattr(node.targets[0], "id", "") == "__all__"
        and isinstance(node.value, ast.List)
    ]
    return set(re.findall(r"\w+", stubs)) | {name for names in lists for name in names}


def test_every_function_has_a_caller() -> None:
    """A function or class of a module is public, decorated (a command), or named again somewhere in the package, its
    examples, its experiments or its docs; tests are no callers."""
    root = SOURCE.parents[1]
    public = _public_names()
    texts = [
        p.read_text("utf-8")
        for d in ("src", "reproductions", "examples", "benchmarks", "tools", "docs")
        for p in (root / d).rglob("*")
        if p.suffix in (".py", ".md", ".toml", ".html", ".js")
    ]
    words: dict[str, int] = {}
    for text in texts:
        for word in re.findall(r"\w+", text):
            words[word] = words.get(word, 0) + 1
    dead = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.decorator_list
        and node.name not in public
        and not node.name.startswith("__")
        and words[node.name] == 1
    ]
    assert not dead


@pytest.mark.parametrize("user", ["comparison/tuning.py", "training/sweeps.py", "training/yardstick.py"])
def test_whoever_tunes_trains_through_the_one_tuner(user: str) -> None:
    """No other loop over candidates stops early or catches a divergence."""
    text = (SOURCE / user).read_text("utf-8")
    assert "course(" in text
    assert not re.search(r"except Diverged|suppress\(Diverged\)|one_round\(", text)
