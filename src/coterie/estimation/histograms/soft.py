"""The mixture of Dirichlets fitted as such: Dirichlet-multinomial clusters, soft assignments, EM.

The model is that of section 2.1, the fit by EM is ours. The paper is
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

Where `HistogramMixture` maximises the hard likelihood of a multinomial mixture (H06), this maximises
that of the model itself, in which users scatter around their centre with concentration α_k. Users exchange
only sums per cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Self, cast

import numpy as np
from scipy.special import betainc, logsumexp
from sklearn.base import clone

from coterie.base.annotations import guarded
from coterie.base.arguments import Level
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError
from coterie.estimation.histograms.counts import Floats, Ints, Source
from coterie.estimation.histograms.kl import safe_log, smooth
from coterie.estimation.histograms.mixture import HistogramMixture, fit_best
from coterie.estimation.histograms.model import Cells, posterior_mean
from coterie.estimation.histograms.personal import CountModel
from coterie.privacy.settings import Budget


@renamed
@dataclass(eq=False, repr=False)
class DirichletMultinomialMixture(CountModel):
    """counts_u ~ Σ_k w_k DirichletMultinomial(m_u, a_k), a_k = α_k P_k, by EM from a KL clustering.

    `clusters` may be several numbers, or None: the one with the highest `score` on users held out is taken, as by
    `HistogramMixture`. `start` is the `HistogramMixture` that seeds it (None: one with `clusters`, `random_state`,
    `n_init`); `inner` fixed-point steps in each M-step; `tol` relative gain of the log-likelihood at which EM stops.
    Fitted: `centers_` P_k, `concentration_` α_k (one per cluster), `weights_`, `responsibilities_`, `labels_`,
    `log_likelihood_` (without multinomial coefficients), `history_`, `objective_` (its negative), `n_iter_`.

    `privacy`: the centres, shares and one α of a private `HistogramMixture` (sums of clipped users, with receipt_), and
    soft assignments that each user computes for itself, at no cost. No responsibilities_, labels_ or history_.
    """

    clusters: int | Sequence[int] | None = 10
    max_iter: int = 100
    tol: float = 1e-7
    n_init: int = 1
    random_state: int = 0
    _: KW_ONLY
    inner: int = 5
    start: HistogramMixture | None = None
    privacy: Budget | None = None

    def fit(self, counts: Source, y: object = None) -> Self:
        table = self._table(counts)
        if self.privacy is not None:
            return self._fit_private(counts)
        if not isinstance(self.clusters, int | np.integer):
            return cast(Self, fit_best(self, counts))
        start = self._start().fit(table.counts)
        used = table.counts[np.diff(table.counts.indptr) > 0]
        cells = Cells(used)
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
        sizes = parameters.sum(axis=1)
        self.concentration_, self.centers_ = sizes, parameters / sizes[:, None]
        self.weights_, self.history_, self.n_iter_ = weights, np.array(history), len(history)
        self.log_likelihood_, self.objective_ = history[-1], -history[-1]
        self.users_, self.vocabulary_ = table.users, table.vocabulary
        self.responsibilities_ = self.predict_proba(table.counts)
        self.labels_ = self.responsibilities_.argmax(axis=1)
        return self

    def _fit_private(self, counts: Source) -> Self:
        fitted = self._start().set_params(privacy=self.privacy).fit(counts)
        for name in ("responsibilities_", "labels_", "history_", "objective_", "log_likelihood_", "scores_"):
            self.__dict__.pop(name, None)
        kept = ("centers_", "weights_", "mean_", "receipt_", "vocabulary_", "users_", "n_iter_", "clusters_", "advice_")
        self.__dict__.update({name: value for name, value in vars(fitted).items() if name in kept})
        self.concentration_ = np.full(len(fitted.centers_), fitted.concentration_)
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
        log_joint = Cells(table).log_likelihood(self._parameters()) + safe_log(self.weights_)
        return np.asarray(np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True)), dtype=np.float64)

    transform = predict_proba

    def predict(self, counts: Source) -> Ints:
        labels: Ints = self.predict_proba(counts).argmax(axis=1)
        return labels

    def personalise(self, counts: Source) -> Floats:
        """E[Q_u | counts_u] = Σ_k r_uk (α_k P_k + counts_u)/(α_k + m_u), for users known or new."""
        table = self._read(counts)
        return posterior_mean(table, self.centers_, np.asarray(self.concentration_), self.predict_proba(table))

    @guarded
    def interval(self, counts: Source, level: Level = 0.95) -> tuple[Floats, Floats]:
        """Credible intervals (low, high) of every user's Q_u(x), users × tokens: quantiles of Σ_k r_uk Beta(a, b) with
        a = α_k P_k(x) + n_ux and a + b = α_k + m_u, by bisection. They take the centres as known."""
        table = self._read(counts)
        shares, parameters = self.predict_proba(table), self._parameters()
        a = parameters[None] + table.toarray()[:, None]
        b = a.sum(axis=2, keepdims=True) - a

        def around(probability: float) -> tuple[Floats, Floats]:
            low, high = np.zeros(table.shape), np.ones(table.shape)
            for _ in range(50):
                middle = (low + high) / 2
                below = np.einsum("uk,ukx->ux", shares, betainc(a, b, middle[:, None])) < probability
                low, high = np.where(below, middle, low), np.where(below, high, middle)
            return low, high

        return around((1 - level) / 2)[0], around((1 + level) / 2)[1]
