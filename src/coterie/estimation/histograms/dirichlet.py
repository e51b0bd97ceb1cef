"""Maximum likelihood under Dirichlet and Dirichlet-multinomial laws."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from coterie.estimation.histograms.counts import Counts, Floats, Ints

_RANGE = (1e-3, 1e7)  # outside it clients are either unrelated or indistinguishable


def concentration_mle(counts: Counts, centers: Floats, labels: Ints) -> float:
    """α maximising Σ_u log DirichletMultinomial(counts_u; α P_{c_u}), the centres given.

    The score is Σ_x P_x [ψ(αP_x + n_x) − ψ(αP_x)] − [ψ(α + m) − ψ(α)], summed over users; tokens not seen drop out.
    A plugged-in cluster mean is too near its members: α is over-estimated by about one part in the cluster's size.
    At the ends of the range the likelihood has no interior maximum and the end is returned (counts that vary less than
    multinomial ones give 1e7: trust the centre).
    """
    tokens = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    prob = centers[labels[rows], counts.indices]
    seen = prob > 0
    prob, number = prob[seen], counts.data[seen]
    totals, repeats = np.unique(tokens, return_counts=True)

    def score(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        each = prob @ (digamma(alpha * prob + number) - digamma(alpha * prob))
        return float(each - repeats @ (digamma(alpha + totals) - digamma(alpha)))

    low, high = np.log(_RANGE)
    if prob.size == 0 or score(high) >= 0:
        return _RANGE[1]
    if score(low) <= 0:
        return _RANGE[0]
    return float(np.exp(brentq(score, low, high, xtol=1e-6)))


def dirichlet_mean_mle(histograms: Floats, concentration: float) -> Floats:
    """P maximising Σ_u log Dirichlet(Q_u; αP) for a known α: ψ(αP_x) = mean log Q_u(x) + constant.

    It is not the arithmetic mean, which the paper calls the MLE (H06).
    """
    target = np.log(histograms).mean(axis=0)

    def excess(shift: float) -> float:
        return float(inverse_digamma(target + shift).sum() - concentration)

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    shift = brentq(excess, low, high, xtol=1e-13)
    return np.asarray(inverse_digamma(target + shift) / concentration, dtype=np.float64)


def inverse_digamma(value: Floats) -> Floats:
    """ψ⁻¹ by Newton's method from Minka's starting point; five steps give full precision."""
    x = np.where(value >= -2.22, np.exp(np.minimum(value, 700.0)) + 0.5, -1 / (value - digamma(1.0)))
    for _ in range(6):
        x = x - (digamma(x) - value) / polygamma(1, x)
    return np.asarray(x, dtype=np.float64)
