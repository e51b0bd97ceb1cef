"""Names in sentences."""

from __future__ import annotations

import pytest

from coterie.base.text import cut, harmless, listed, one_line, suggest


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


def test_signs_that_disturb_are_spelt_out() -> None:
    assert harmless("a\x1b[31mb\u202ec\x00\nd\te") == r"a\x1b[31mb\u202ec\x00" + "\nd\te"
    assert one_line("a\nb\tc\rd") == r"a\nb\tc\rd"
    assert listed(["line\nbreak", "\u202e"]) == r"line\nbreak and \u202e"
    assert harmless("שלום, Köln 🌧️ naïve") == "שלום, Köln 🌧️ naïve"


@pytest.mark.parametrize(("most", "expected"), [(7, "abcdefg"), (6, "abc…fg"), (4, "ab…g")])
def test_a_long_name_keeps_both_ends(most: int, expected: str) -> None:
    assert cut("abcdefg", most) == expected
