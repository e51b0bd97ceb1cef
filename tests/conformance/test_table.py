"""The table of engines in the documentation has every algorithm, and what it says is within the tolerance."""

from __future__ import annotations

from pathlib import Path

from conformance_settings import NAMES, TOLERANCE

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def test_the_table_is_complete_and_within_the_tolerance() -> None:
    rows = [line.strip("|\n ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    head, *table = rows
    assert head == ["algorithm", "vectorised", "loop", "Ray, 2 actors", "sites, as under Flower"]
    assert [row[0] for row in table] == list(NAMES), "run python tools/conformance.py"
    assert all(float(cell) <= TOLERANCE for row in table for cell in row[2:])
    assert any(float(cell) > 0 for row in table for cell in row[2:])  # measured, not typed
