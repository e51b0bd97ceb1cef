"""Names in sentences."""

from __future__ import annotations

import pytest

from coterie.text import listed, suggest


@pytest.mark.parametrize(
    ("names", "most", "expected"),
    [
        ([], 6, ""),
        (["a"], 6, "a"),
        (["a", 2], 6, "a and 2"),
        ("abc", 3, "a, b and c"),
        ("abcd", 3, "a, b, c and 1 more"),
    ],
)
def test_names_are_listed(names: list[object], most: int, expected: str) -> None:
    assert listed(names, most) == expected


def test_the_nearest_name_is_suggested() -> None:
    assert suggest("Fedagv", ["fedavg", "ifca"]) == "Did you mean 'fedavg'? Known: fedavg, ifca."
    assert suggest("xyz", []) == "Known: none."
