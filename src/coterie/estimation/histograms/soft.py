"""The mixture of Dirichlets fitted as such: Dirichlet-multinomial clusters, soft assignments, EM.

The model is that of section 2.1, the fit by EM is ours. The paper is
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

Where `HistogramMixture` maximises the hard likelihood of a multinomial mixture (H06), this maximises
that of the model itself, in which users scatter around their centre with concentration α_k. Users exchange
only sums per cluster.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, logsumexp
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from coterie.annotations import check_settings
from coterie.deprecated import renamed
from coterie.errors import ConfigError
from coterie.estimation.histograms.counts import Counts, Floats, Ints, Source, read_counts, refuse_other_width
from coterie.estimation.histograms.kl import row_sums, safe_log, smooth
from coterie.estimation.histograms.mixture import HistogramMixture
from coterie.estimation.histograms.model import dirichlet_multinomial_log_likelihood, posterior_mean

_LEAST = 1e-10  # The Dirichlet parameter of a token that the cluster has never seen.


@renamed
class DirichletMultinomialMixture(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """counts_u ~ Σ_k w_k DirichletMultinomial(m_u, a_k), a_k = α_k P_k, by EM from a KL clustering.

    `start` is the `HistogramMixture` that seeds it (None: one with `clusters`, `random_state`, `n_init`); `inner`
    fixed-point steps in each M-step; `tol` relative gain of the log-likelihood at which EM stops.
    Fitted: `centers_` P_k, `concentration_` α_k (one per cluster), `weights_`, `responsibilities_`, `labels_`,
    `log_likelihood_` (without multinomial coefficients), `history_`, `objective_` (its negative), `n_iter_`.
    """

    def __init__(
        self,
        clusters: int = 10,
        max_iter: int = 100,
        tol: float = 1e-7,
        n_init: int = 1,
        random_state: int = 0,
        *,
        inner: int = 5,
        start: HistogramMixture | None = None,
    ) -> None:
        self.clusters, self.max_iter, self.tol, self.n_init, self.random_state = (
            clusters,
            max_iter,
            tol,
            n_init,
            random_state,
        )
        self.inner, self.start = inner, start

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    def fit(self, counts: Source, y: object = None) -> Self:
        check_settings(self)
        table = read_counts(counts)
        start = self._start().fit(table.counts)
        used = table.counts[np.diff(table.counts.indptr) > 0]
        cells = _Cells(used)
        alpha = min(max(start.concentration_, 1.0), 1e5)
        parameters = alpha * smooth(start.centers_, start.smoothing)
        weights = smooth(start.weights_, 1e-3)
        history: list[float] = []
        for _ in range(self.max_iter):
            log_joint = cells.log_likelihood(parameters) + safe_log(weights)  # E-step
            evidence = logsumexp(log_joint, axis=1, keepdims=True)
            history.append(float(evidence.sum()))
            if len(history) > 1 and history[-1] - history[-2] < self.tol * abs(history[-2]):
                break
            responsibilities = np.exp(log_joint - evidence)
            weights = responsibilities.mean(axis=0)  # M-step
            parameters = cells.improve(parameters, responsibilities, self.inner)
        self.concentration_ = parameters.sum(axis=1)
        self.centers_ = parameters / self.concentration_[:, None]
        self.weights_, self.history_, self.n_iter_ = weights, np.array(history), len(history)
        self.log_likelihood_, self.objective_ = history[-1], -history[-1]
        self.users_, self.vocabulary_, self.n_features_in_ = table.users, table.vocabulary, parameters.shape[1]
        self.responsibilities_ = self.predict_proba(table.counts)
        self.labels_: Ints = self.responsibilities_.argmax(axis=1)
        return self

    def _start(self) -> HistogramMixture:
        if self.start is None:
            return HistogramMixture(self.clusters, n_init=self.n_init, random_state=self.random_state)
        if self.start.clusters != self.clusters:
            raise ConfigError(
                f"start must have the same number of clusters; got {self.start.clusters} and clusters={self.clusters}. "
                "Make them equal."
            )
        started: HistogramMixture = clone(self.start)
        return started

    def predict_proba(self, counts: Source) -> Floats:
        """Posterior of each user's cluster; the prior weights for a user without tokens."""
        table = self._read(counts)
        parameters = self.concentration_[:, None] * self.centers_
        log_joint = dirichlet_multinomial_log_likelihood(table, parameters) + safe_log(self.weights_)
        return np.asarray(np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True)), dtype=np.float64)

    transform = predict_proba

    def predict(self, counts: Source) -> Ints:
        labels: Ints = self.predict_proba(counts).argmax(axis=1)
        return labels

    def personalise(self, counts: Source) -> Floats:
        """E[Q_u | counts_u] = Σ_k r_uk (α_k P_k + counts_u)/(α_k + m_u), for users known or new."""
        table = self._read(counts)
        return posterior_mean(table, self.centers_, self.concentration_, self.predict_proba(table))

    def _read(self, counts: Source) -> Counts:
        check_is_fitted(self, "centers_")
        refuse_other_width(self, counts)
        vocabulary: NDArray[Any] | None = self.vocabulary_
        return read_counts(counts, vocabulary, self.centers_.shape[1]).counts


class _Cells:
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
