"""The mixture of Dirichlets behind personalised histograms: its likelihood and its Bayes rule.

Section 2.1 and Lemma 2.2 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

c_u ~ Categorical(w), Q_u ~ Dirichlet(α P_{c_u}), counts_u ~ Multinomial(m_u, Q_u).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln

from coterie.estimation.histograms.counts import Counts, Floats
from coterie.estimation.histograms.kl import row_sums


def posterior_mean(counts: Counts, centers: Floats, alpha: Floats, responsibilities: Floats) -> Floats:
    """Σ_k r_uk (α_k P_k + counts_u)/(α_k + m_u)."""
    scale = responsibilities / (alpha + row_sums(counts)[:, None])
    models = (scale * alpha) @ centers
    own = np.repeat(scale.sum(axis=1), np.diff(counts.indptr)) * counts.data
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    models[rows, counts.indices] += own
    return np.asarray(models, dtype=np.float64)


def dirichlet_multinomial_log_likelihood(counts: Counts, parameters: Floats) -> Floats:
    """users × clusters log-likelihoods under DM(a_k), without the multinomial coefficient, the same for all k."""
    total = parameters.sum(axis=1)
    tokens = row_sums(counts)[:, None]
    out = gammaln(total) - gammaln(total + tokens)
    for k, a in enumerate(parameters):
        mine = a[counts.indices]
        terms = sp.csr_array(
            (gammaln(mine + counts.data) - gammaln(mine), counts.indices, counts.indptr), shape=counts.shape
        )
        out[:, k] += row_sums(terms)
    return np.asarray(out, dtype=np.float64)
