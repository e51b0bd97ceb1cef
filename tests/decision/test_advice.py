"""Advice for tables: the decision in other words, with intervals in the units of the metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.decision.advice import TableAdvice, advise
from coterie.decision.decision import decide
from reproductions.generate import regression_clients


@pytest.mark.parametrize(
    ("kwargs", "right"),
    [
        ({"samples": 10, "prior_variance": 0.25, "noise_variance": 1.0}, {"shrunk"}),
        ({"samples": 60, "prior_variance": 4.0, "noise_variance": 1.0}, {"local"}),
        (
            {"samples": 10, "prior_variance": 0.0, "noise_variance": 1.0, "centers": [[2, 0, 0], [0, 2, 0]]},
            {"clustered"},
        ),
        ({"samples": 15, "prior_variance": 0.0, "noise_variance": None}, {"global"}),
    ],
)
def test_regressions(kwargs: dict[str, Any], right: set[str]) -> None:
    data = regression_clients(40, dimension=3, mean_scale=1.0, rng=np.random.default_rng(0), **kwargs)
    told = advise(X=data.X, y=data.y, groups=data.groups)
    assert told.recommendation in right
    assert ("log loss" in told.measure) == (kwargs["noise_variance"] is None)


def test_the_advice_is_the_decision_s_and_its_gains_are_not_inflated() -> None:
    """A target far from zero: the loss of alone is that of centred models, near the noise's variance of 1."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(400, 2)), np.repeat(np.arange(10), 40)
    y = 1e3 + X.sum(1) + rng.normal(size=400)
    told = advise(X=X, y=y, groups=groups)
    assert isinstance(told, TableAdvice)
    decision = decide(X, y, groups, repeats=3)
    assert (told.way, told.sure) == (decision.recommendation, decision.sure)
    rows = told.table.set_index("method")
    assert rows.loc["local", "risk"] == pytest.approx(1.0, abs=4 * np.sqrt(2 / 400) + 0.1)
    assert rows.loc["global", "gain"] < 0.15
    assert (rows["low"] < rows["risk"]).all()
    assert (rows["risk"] < rows["high"]).all()
    assert told.table["risk"].is_monotonic_increasing
    assert rows.loc["local", "gain"] == 0


def test_the_level_changes_the_interval_and_not_the_advice() -> None:
    rng = np.random.default_rng(1)
    X, groups = rng.normal(size=(240, 2)), np.repeat(np.arange(12), 20)
    y = X.sum(1) + rng.normal(size=240)
    narrow, wide = (advise(X=X, y=y, groups=groups, level=level).table.set_index("method") for level in (0.6, 0.99))
    assert (narrow["low"] > wide["low"]).all()
    assert (narrow["risk"] == wide["risk"]).all()


@pytest.mark.parametrize("text", [False, True])
def test_a_label_that_only_one_row_has(text: bool) -> None:
    """It falls into one fold, and the others train on what is left."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    y = np.where(np.arange(60) == 7, "rare", np.where((X[:, 0] > 0) & text, "b", "a"))
    told = advise(X=X, y=y, groups=groups)
    assert np.isfinite(told.table["risk"]).all()


def test_images_are_judged_by_their_components() -> None:
    rng = np.random.default_rng(0)
    data = {i: (rng.normal(size=(12, 1, 16, 16)), rng.normal(size=12)) for i in range(4)}
    told = advise(ct.Federation.from_arrays(data, kind="regression"))
    assert isinstance(told, TableAdvice)
    assert "principal components" in told.explain()
    assert np.isfinite(told.table["risk"]).all()


def test_labels_of_a_federation_keep_their_names() -> None:
    rng = np.random.default_rng(0)
    data = {c: (x := rng.normal(size=(20, 2)), np.where(x[:, 0] > 0, "yes", "no")) for c in ("north", "south", "west")}
    told = advise(ct.Federation.from_arrays(data, test_fraction=0.0))
    assert isinstance(told, TableAdvice)
    assert told.decision.table.classes is not None
    assert list(told.decision.table.classes) == ["no", "yes"]
    assert list(told.decision.marks.index) == ["north", "south", "west"]
