"""The former door of `advise` for tables: it warns, and gives what `compare` gives."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.errors import DataError, OldSpelling
from coterie.estimation.advice import Advice


def made(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(240, 2)), np.repeat(np.arange(12), 20)
    return X, X.sum(1) + rng.normal(size=240), groups


def test_a_table_goes_to_compare() -> None:
    X, y, groups = made()
    with pytest.warns(OldSpelling, match="is now compare"):
        told = ct.advise(X=X, y=y, groups=groups, seed=4)
    rows = {c: (X[groups == c], y[groups == c]) for c in range(12)}
    found = ct.compare(rows, seeds=[4, 5, 6], test_fraction=0.0)
    assert isinstance(told, ct.Comparison)
    assert (told.recommendation, told.sure) == (found.recommendation, found.sure)
    np.testing.assert_array_equal(told.table, found.table)


def test_a_federation_goes_to_compare_and_families_keep_their_meaning() -> None:
    X, y, groups = made(1)
    with pytest.warns(OldSpelling):
        told = ct.advise(ct.Federation.from_arrays({c: (X[groups == c], y[groups == c]) for c in range(12)}))
    assert isinstance(told, ct.Comparison)
    labels = (y > 0).astype(float)
    for family, metric in (("linear", "mse"), ("logistic", "log_loss"), ("auto", "log_loss")):
        with pytest.warns(OldSpelling):
            assert ct.advise(X=X, y=labels, groups=groups, family=family).metric == metric
    with pytest.warns(OldSpelling), pytest.raises(DataError, match="X, y and groups together"):
        ct.advise(X=X)


def test_means_rates_and_counts_stay() -> None:
    told = ct.advise(samples=np.random.default_rng(0).normal(size=(20, 5, 2)), resamples=50)
    assert isinstance(told, Advice)
    assert told.recommendation in ("global", "shrunk")
