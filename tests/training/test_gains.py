"""One definition of a clear gain."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from coterie.training.gains import (  # fmt: skip
    CLEAR,
    FEWEST,
    GAINS,
    LOSES,
    MARKS,
    NO_SCORE,
    ON_AVERAGE,
    UNCLEAR,
    clearly,
    interval,
    mark,
)


@pytest.mark.parametrize(
    ("gain", "error", "rows", "expected"),
    [
        (0.21, 0.1, FEWEST, GAINS),
        (-0.21, 0.1, FEWEST, LOSES),
        (0.2, 0.1, FEWEST, UNCLEAR),  # exactly two standard errors
        (-0.19, 0.1, 1000, UNCLEAR),
        (0.9, 0.01, FEWEST - 1, UNCLEAR),  # too few rows to be sure of anything
        (0.1, np.nan, 100, UNCLEAR),
        (np.nan, 0.1, 100, NO_SCORE),
        (0.0, 0.0, 100, UNCLEAR),
        (1e-9, 0.0, 100, GAINS),
    ],
)
def test_the_whole_interval_must_be_on_one_side(gain: float, error: float, rows: int, expected: str) -> None:
    assert mark(gain, *interval(gain, error), rows) == expected


def test_rows_are_matched_to_columns() -> None:
    gains = pd.DataFrame([[1.0, 1.0, np.nan], [-1.0, -1.0, 0.0]])
    marks = mark(gains, *interval(gains, 0.1 + 0 * gains), np.array([50, 5, 50]))
    assert marks.tolist() == [[GAINS, UNCLEAR, NO_SCORE], [LOSES, UNCLEAR, UNCLEAR]]


def test_an_audit_asks_for_more_than_rounding() -> None:
    assert list(mark([0, 0], [-2e-7, -2e-5], [-1e-7, -1e-5], 50, least=1e-6)) == [UNCLEAR, LOSES]


def test_the_words_fit_the_numbers() -> None:
    assert CLEAR == 2  # the sentences say "two standard errors"
    assert set(ON_AVERAGE) == set(MARKS)
    assert clearly("a", "gain", 1) == "a clearly gains"
    assert clearly("a and b", "lose", 2) == "a and b clearly lose"
    assert clearly("", "lose", 0) == "no client clearly loses"
