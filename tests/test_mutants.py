"""Every mutant of `make mutants` still fits the source, and names tests that exist."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

PLACE = Path(__file__).parent / "mutants" / "run.py"
spec = importlib.util.spec_from_file_location("mutants_run", PLACE)
assert spec is not None
assert spec.loader is not None
run = importlib.util.module_from_spec(spec)
sys.modules["mutants_run"] = run
spec.loader.exec_module(run)
MUTANTS = run.mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{m.room}:{m.name}" for m in MUTANTS])
def test_a_mutant_fits_the_source(mutant) -> None:
    changed = mutant.apply(run.ROOT)
    compile(changed, mutant.file, "exec")
    for test in mutant.tests:
        path, _, name = test.partition("::")
        there = (run.ROOT / path).is_file()
        assert there, f"{path} is gone; name the tests that kill it now"
        assert not name or f"def {name.partition('[')[0]}(" in (run.ROOT / path).read_text("utf-8"), f"{test} is gone"


def test_names_are_unique() -> None:
    assert Counter(m.name for m in MUTANTS).most_common(1)[0][1] == 1


def test_a_stale_mutant_is_refused() -> None:
    mutant = run.Mutant("data", "gone", "text.py", "no such line", "another", ())
    with pytest.raises(LookupError, match="occurs 0 times"):
        mutant.apply(run.ROOT)
