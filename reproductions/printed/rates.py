"""Bernoulli rates with the weights as printed (Ozkara et al., equation 6 and Theorem 3).

The variance of the others' rates is taken for that of the population, which it is not (E06). The proof also drops the −1 of
α + β = μ(1−μ)/σ² − 1 (E05).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.estimation.conventions import Array


class PrintedRates(NamedTuple):
    """Every client's rate, and the weight of its own rate in it."""

    rates: Array
    weights: Array


def printed_rates(successes: ArrayLike, trials: ArrayLike, *, minus_one: bool = True) -> PrintedRates:
    """a_i X_i + (1 − a_i) μ_i with a_i = n_i v_i/(μ_i(1−μ_i) + (n_i − 1) v_i), μ_i and v_i of the other clients' rates."""
    z = np.asarray(successes, dtype=np.float64)
    n = np.broadcast_to(np.asarray(trials, dtype=np.float64), z.shape)
    has, rate = n > 0, np.divide(z, n, out=np.zeros_like(z), where=n > 0)
    others = has.sum() - has
    mean = (rate.sum() - rate) / others
    rounding = 8 * np.finfo(np.float64).eps * len(rate)  # the error of a difference of sums
    mean = np.where(mean < rounding, 0.0, np.where(mean > 1 - rounding, 1.0, mean))
    centred = np.where(has, rate - rate.mean(), 0.0)
    squares, sums = (centred**2).sum() - centred**2, centred.sum() - centred
    variance = np.maximum(squares - sums**2 / others, 0.0) / (others - 1)
    odds = mean * (1 - mean)
    below = odds + (n - minus_one) * variance
    own = np.divide(n * variance, below, out=np.zeros_like(n), where=(odds > 0) & (below > 0))
    own = np.clip(own, 0.0, 1.0)
    return PrintedRates(own * rate + (1 - own) * mean, own)
