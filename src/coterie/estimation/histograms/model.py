"""The mixture of Dirichlets behind personalised histograms: its generator, its likelihood and its Bayes rule.

Section 2.1 and Lemma 2.2 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

c_u ~ Categorical(w), Q_u ~ Dirichlet(α P_{c_u}), counts_u ~ Multinomial(m_u, Q_u).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.special import gammaln

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import row_sums


@dataclass(frozen=True)
class HistogramSample:
    counts: Counts  # users × tokens
    histograms: Floats  # the true Q_u
    labels: Ints  # the true c_u


def sample_histograms(
    centers: ArrayLike,
    *,
    users: int,
    tokens: ArrayLike,
    concentration: float,
    weights: ArrayLike | None = None,
    rng: np.random.Generator,
) -> HistogramSample:
    """Users drawn from the mixture; `tokens` is m, or one m_u per user; `weights` None means equal."""
    centers = np.asarray(centers, dtype=np.float64)
    share = np.full(len(centers), 1 / len(centers)) if weights is None else np.asarray(weights, dtype=np.float64)
    labels = rng.choice(len(centers), size=users, p=share)
    gammas = rng.standard_gamma(concentration * centers[labels])
    gammas = np.maximum(gammas, np.finfo(np.float64).tiny)  # a Gamma of tiny shape can underflow to zero everywhere
    histograms = gammas / gammas.sum(axis=1, keepdims=True)
    counts = rng.multinomial(np.broadcast_to(np.asarray(tokens), (users,)), histograms)
    return HistogramSample(sp.csr_array(counts.astype(np.float64)), histograms, labels)


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
