"""Estimators fitted to what clients tell of their rows give the numbers of the same rows in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import coterie as ct
from coterie.errors import ConfigError, DataError


def clients(kind: str = "regression", m: int = 9) -> ct.Federation:
    rng = np.random.default_rng(4)
    data = {}
    for i in range(m):
        n = 6 + 5 * i
        target = rng.normal(size=n) if kind == "regression" else (np.arange(n) % (i + 2) == 0).astype(int)
        data[f"c{i}"] = (rng.normal(size=(n, 3)) + rng.normal(size=3), target)
    return ct.Federation.from_arrays(data, kind=kind)


@pytest.mark.parametrize("engine", ["local", "loop"])
@pytest.mark.parametrize("estimator", [ct.GaussianMeans(), ct.MixtureMeans(2, random_state=0)])
def test_means_are_those_in_memory_bit_for_bit(estimator: Any, engine: str) -> None:
    fed = clients()
    rows = {c: fed.train(c)[0].double().numpy() for c in fed.clients}
    here = type(estimator)(**estimator.get_params()).fit(rows)
    there = ct.fit(estimator, fed, engine=engine)
    assert np.array_equal(here.estimates_, there.estimates_)
    assert list(there.clients_) == list(fed.clients)
    assert there.risk_ == here.risk_


@pytest.mark.parametrize("engine", ["local", "loop"])
def test_rates_are_those_in_memory_bit_for_bit(engine: str) -> None:
    fed = clients("classification")
    labels = [fed.train(c)[1].numpy() for c in fed.clients]
    here = ct.BernoulliRates().fit([y.sum() for y in labels], [len(y) for y in labels])
    there = ct.fit(ct.BernoulliRates(), fed, engine=engine)
    assert np.array_equal(here.rates_, there.rates_)
    assert list(there.clients_) == list(fed.clients)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="BernoulliRates is for a target of two classes"):
        ct.fit(ct.BernoulliRates(), clients())
    with pytest.raises(ConfigError, match="Of estimators, fit takes"):
        ct.fit(LinearRegression(), clients())
