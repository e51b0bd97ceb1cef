"""Masked values never become data: every public entrance refuses them with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie import incentives, robust
from coterie.base.arguments import refuse_masked
from coterie.privacy.mechanisms.lattice import clip_rows

rng = np.random.default_rng(0)
X, Y, OWNER = rng.normal(size=(30, 2)), np.tile([0.0, 1.0], 15), np.repeat(np.arange(5), 6)


def masked(values: Any) -> Any:
    """The same values, one of them masked with a code for missing values beneath."""
    out = np.ma.array(values, copy=True)
    out.flat[1] = 999999 if out.dtype.kind != "U" else "?"
    mask = np.zeros(out.shape, bool)
    mask.flat[1] = True
    out.mask = mask
    return out


GAME = incentives.PricingGame(0.5, 0.2, 0.8, 0.1, 0.1)
ENTRANCES: dict[str, Callable[[Any], Any]] = {
    "from_arrays x": lambda m: ct.Federation.from_arrays({"a": (m(X), Y), "b": (X, Y)}),
    "from_arrays y": lambda m: ct.Federation.from_arrays({"a": (X, m(Y)), "b": (X, Y)}),
    "from_arrays w": lambda m: ct.Federation.from_arrays({"a": (X, Y, m(Y + 1)), "b": (X, Y, Y + 1)}),
    "from_arrays split": lambda m: ct.Federation.from_arrays({"a": {"train": (m(X), Y)}, "b": {"train": (X, Y)}}),
    "from_flat": lambda m: ct.Federation.from_flat(m(X), Y, sizes=np.full(5, 6), clients=range(5)),
    "decide X": lambda m: ct.comparison.decide(m(X), Y, OWNER),
    "decide y": lambda m: ct.comparison.decide(X, m(Y), OWNER),
    "decide clients": lambda m: ct.comparison.decide(X, Y, m(OWNER)),
    "advise samples": lambda m: ct.advise(samples=[m(X[:6]), X[6:12], X[12:18]]),
    "advise block": lambda m: ct.advise(samples=m(X.reshape(5, 6, 2))),
    "advise rates": lambda m: ct.advise(successes=m(np.full(5, 3)), trials=np.full(5, 6)),
    "advise counts": lambda m: ct.advise(counts=m(np.ones((5, 4), int))),
    "GaussianMeans": lambda m: ct.GaussianMeans().fit(m(X.reshape(5, 6, 2))),
    "GaussianMeans dict": lambda m: ct.GaussianMeans().fit({"a": m(X[:6]), "b": X[6:12], "c": X[12:18]}),
    "GaussianMeans groups": lambda m: ct.GaussianMeans().fit(X, groups=m(OWNER)),
    "MixtureMeans": lambda m: ct.MixtureMeans().fit(m(X.reshape(5, 6, 2))),
    "BernoulliRates": lambda m: ct.BernoulliRates().fit(m(np.full(5, 3)), np.full(5, 6)),
    "HistogramMixture": lambda m: ct.HistogramMixture(2).fit(m(np.ones((5, 4), int))),
    "LocalHistograms": lambda m: ct.histograms.LocalHistograms().fit(m(np.ones((5, 4), int))),
    "LinearModels X": lambda m: ct.LinearModels().fit(m(X), Y, groups=OWNER),
    "LinearModels y": lambda m: ct.LinearModels().fit(X, m(Y), groups=OWNER),
    "LinearModels groups": lambda m: ct.LinearModels().fit(X, Y, groups=m(OWNER)),
    "LogisticModels y": lambda m: ct.LogisticModels().fit(X, m(Y), groups=OWNER),
    "MixtureModels y": lambda m: ct.estimation.MixtureModels().fit(X, m(Y), groups=OWNER),
    "ThresholdClustering": lambda m: ct.robust.ThresholdClustering(2).fit(m(X)),
    "Median": lambda m: robust.Median()(m(X)),
    "Mean": lambda m: robust.Mean()(m(X)),
    "privacy rows": lambda m: clip_rows(m(X), 1.0),
    "Market": lambda m: incentives.Market(m(np.array([0.2, 0.4, 0.6]))),
    "nash_product": lambda m: incentives.nash_product(m(Y), Y, incentives.Pair(0.0, 0.0)),
    "equilibrium_revenues": lambda m: incentives.equilibrium_revenues(m(Y + 1), Y + 2),
    "PricingGame": lambda m: GAME.seller_payoff(m(Y), Y, Y),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_masked_values_are_refused(entrance: str) -> None:
    with pytest.raises(ct.errors.DataError, match="masked values"):
        ENTRANCES[entrance](masked)


def test_a_masked_array_inside_an_array_of_objects_is_refused() -> None:
    inside = np.empty(2, object)
    inside[:] = [X, masked(X)]
    for given in (inside, [inside], {"a": inside}):
        with pytest.raises(ct.errors.DataError, match="rows holds masked values"):
            refuse_masked(rows=given)


def test_a_mask_that_masks_nothing_is_read() -> None:
    plain = ct.GaussianMeans().fit(X.reshape(5, 6, 2))
    empty = ct.GaussianMeans().fit(np.ma.array(X.reshape(5, 6, 2)))
    np.testing.assert_array_equal(plain.estimates_, empty.estimates_)
