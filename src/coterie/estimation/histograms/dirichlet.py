"""Maximum likelihood under Dirichlet and Dirichlet-multinomial laws.

The law of users around a centre is that of section 2.1 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma

from coterie.estimation.histograms.counts import Counts, Floats, Ints

_RANGE = (1e-3, 1e7)  # Below this range users are unrelated, above it they cannot be told apart.


def concentration_mle(counts: Counts, centers: Floats, labels: Ints) -> float:
    """α maximising Σ_u log DirichletMultinomial(counts_u; α P_{c_u}), the centres given.

    The score is Σ_x P_x [ψ(αP_x + n_x) − ψ(αP_x)] − [ψ(α + m) − ψ(α)], summed over users; tokens not seen drop out.
    A cluster's own mean in place of its true centre is too near its members, so α is over-estimated by a relative error of
    about one over the cluster's size.
    Where the likelihood has no maximum inside the range, the end of the range is returned. Counts that vary less than
    multinomial ones give 1e7: trust the centre.
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
