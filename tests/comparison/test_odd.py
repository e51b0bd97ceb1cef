"""Odd data: `compare` answers in words that do not contradict their numbers, or refuse in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import coterie as ct

Target = Callable[[np.ndarray, int], np.ndarray]


def federation(target: Target, m: int = 6, n: int = 20, **options: Any) -> ct.Federation:
    rng = np.random.default_rng(0)
    data = {}
    for i in range(m):
        x = rng.normal(size=(n, 3))
        data[f"<b>Ä{i}</b>"] = (x, target(x, i))
    return ct.Federation.from_arrays(data, **options)


ODD: dict[str, Target] = {
    "targets of 1e5": lambda x, i: 1e5 * (x[:, 0] + i) + x[:, 1] ** 2,
    "without noise": lambda x, i: x[:, 0],
    "constant in every client": lambda x, i: np.full(len(x), float(i)),
    "constant": lambda x, i: np.full(len(x), 3.0),
}


@pytest.mark.parametrize("name", ODD)
def test_words_and_numbers_of_odd_targets_agree(name: str) -> None:
    fed = federation(ODD[name], kind="regression")
    found = ct.compare(fed, seeds=1)
    said = found.verdict()
    assert len(max(said.split(), key=len)) < 40  # no number of 300 digits
    if "less error" in said and found.interval[0] > 0 and found.recommendation == "alone":
        assert "not shown to help" not in said
    assert found.decision is not None
    assert found.decision.interval[1] <= 1
    if found.sure == "clear" and found.recommendation != "alone":
        assert found.interval[0] > 0


def test_classes_that_a_line_separates_converge() -> None:
    found = ct.compare(federation(lambda x, i: x[:, 0] > 0, m=5), seeds=1)
    assert found.recommendation == "together"
    assert not [w for w in found.warnings if "converge" in w]


def test_what_is_no_federation_is_refused() -> None:
    with pytest.raises(ct.errors.CoterieError, match="a Federation, or a function"):
        ct.compare([1, 2])  # type: ignore[arg-type]


def test_clients_too_small_to_score_are_refused_before_anything_is_fitted() -> None:
    with pytest.raises(ct.errors.CoterieError, match=r"to be scored by mse; none can be\. Merge small clients"):
        ct.compare(federation(lambda x, i: x[:, 0], n=2, kind="regression"))
