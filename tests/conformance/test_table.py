"""The table of engines in the documentation has every algorithm, and what it says is within the tolerance."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance_settings import NAMES, TOLERANCE
from estimator_settings import ESTIMATORS, far, in_memory, on_sites
from estimator_settings import TOLERANCE as ESTIMATED

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def test_the_table_of_estimators_is_complete_and_within_its_tolerance() -> None:
    text = PAGE.read_text().split("## Estimators")[1]
    head, *table = [line.strip("|\n ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert head == ["estimator", "in memory", "vectorised", "loop", "Ray, 2 actors", "sites, as under Flower"]
    assert [row[0] for row in table] == list(ESTIMATORS), "run python tools/conformance.py estimators"
    assert all(float(cell) <= ESTIMATED for row in table for cell in row[2:])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimate_on_sites_is_that_in_memory(name: str) -> None:
    assert far(in_memory(name), on_sites(name)) <= ESTIMATED


def test_the_table_is_complete_and_within_the_tolerance() -> None:
    rows = [
        line.strip("|\n ").split(" | ")
        for line in PAGE.read_text().split("## Estimators")[0].splitlines()
        if line.startswith("| ")
    ]
    head, *table = rows
    assert head == ["algorithm", "vectorised", "loop", "Ray, 2 actors", "sites, as under Flower"]
    assert [row[0] for row in table] == list(NAMES), "run python tools/conformance.py"
    assert all(float(cell) <= TOLERANCE for row in table for cell in row[2:])
    assert any(float(cell) > 0 for row in table for cell in row[2:])  # measured, not typed
