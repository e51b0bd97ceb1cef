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
from scipy.special import digamma, gammaln

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import row_sums

_LEAST = 1e-10  # The Dirichlet parameter of a token that the cluster has never seen.


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


class Cells:
    """Users as sets of (token, count) cells: a gamma function is needed once per distinct cell, not once per user."""

    def __init__(self, counts: Counts) -> None:
        values, value_codes = np.unique(counts.data, return_inverse=True)
        keys = counts.indices.astype(np.int64) * len(values) + value_codes
        cells, codes = np.unique(keys, return_inverse=True)
        self.token, self.count = cells // len(values), values[cells % len(values)]
        self.members = sp.csr_array(
            (np.ones(counts.nnz), codes.astype(np.int32), counts.indptr), shape=(counts.shape[0], len(cells))
        )
        self.tokens, self.tokens_codes = np.unique(row_sums(counts), return_inverse=True)
        self.width = counts.shape[1]

    def log_likelihood(self, parameters: Floats) -> Floats:
        """users × clusters log-likelihoods under DM(a_k), without the multinomial coefficient, the same for all k."""
        a, total = parameters[:, self.token].T, parameters.sum(axis=1)
        each = gammaln(a + self.count[:, None]) - gammaln(a)
        whole = gammaln(total) - gammaln(total + self.tokens[:, None])
        return np.asarray(self.members @ each + whole[self.tokens_codes], dtype=np.float64)

    def improve(self, parameters: Floats, responsibilities: Floats, steps: int) -> Floats:
        """Minka's fixed point for a_k; it never lowers Σ_u r_uk log DM(counts_u; a_k)."""
        clusters = len(parameters)
        cell_sums = self.members.T @ responsibilities  # how much of cluster k is in each cell: sums over users
        length_sums = np.stack([np.bincount(self.tokens_codes, r, len(self.tokens)) for r in responsibilities.T])
        for _ in range(steps):
            a, total = parameters[:, self.token].T, parameters.sum(axis=1)[:, None]
            each = cell_sums * (digamma(a + self.count[:, None]) - digamma(a))
            up = np.stack([np.bincount(self.token, each[:, k], self.width) for k in range(clusters)])
            down = (length_sums * (digamma(total + self.tokens) - digamma(total))).sum(axis=1, keepdims=True)
            ratio = np.divide(up, down, out=np.ones_like(up), where=down > 0)
            parameters = np.clip(parameters * ratio, _LEAST, 1e8)
        return parameters
