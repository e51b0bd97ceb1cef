"""Maximum likelihood under Dirichlet and Dirichlet-multinomial laws."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma

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
