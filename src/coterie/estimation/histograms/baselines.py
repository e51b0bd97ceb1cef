"""The baselines of the paper's Table 1, with the interface of `HistogramMixture`: Local, FedAvg, IFCA on histograms.

Table 1 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax, xlogy

from coterie.base.arguments import NotNegative, Positive, Share, finite
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError
from coterie.estimation.histograms.counts import Counts, CountTable, Floats, Source
from coterie.estimation.histograms.kl import normalise, smooth
from coterie.estimation.histograms.lloyd import assign
from coterie.estimation.histograms.personal import CenterModel
from coterie.estimation.histograms.private.crowd import Users
from coterie.estimation.histograms.private.descent import fit_ifca
from coterie.estimation.histograms.private.designs import fit_fedavg
from coterie.estimation.histograms.seeding import Direction, seed_centers
from coterie.estimation.histograms.user_rows import HistogramRows, Weighting
from coterie.privacy.settings import Budget, Privacy


@renamed
@dataclass(eq=False, repr=False)
class FedAvgHistogram(CenterModel):
    """One histogram for all, Q_fa = (1/n) Σ_u Q̂_u = argmin_Q Σ_u KL(Q̂_u‖Q) (Lemma 2.1).

    `lam=1` is FedAvg itself; a smaller `lam`, or None (λ_u = α/(α + m_u)), is FedAvg with fine-tuning.
    `privacy`, a `ct.Privacy`, makes it one private mean (and a private choice of α where `lam` and `concentration` are
    None); then there is a receipt_, and no labels_, objective_ or history_.
    """

    _: KW_ONLY
    lam: Share | None = 1.0
    concentration: Positive | None = None
    weighting: Weighting = "user"
    smoothing: NotNegative = 1e-5
    random_state: int = 0
    privacy: Budget | None = None

    def fit(self, counts: Source, y: object = None) -> Self:
        table = self._table(counts)
        if self.privacy is not None:
            if self.weighting != "user":
                raise ConfigError(
                    f"a private fit needs weighting='user', got {self.weighting!r}; leave it at its default."
                )
            tune = self.lam is None and self.concentration is None
            self.__dict__.pop("concentration_", None)  # of an earlier fit, on clear counts
            users = Users.in_memory(table.counts, counts, 1)
            self._take(fit_fedavg(users, self.privacy, tune=tune, seed=self.random_state), table.vocabulary)
            self.n_iter_ = 1
            return self
        rows = HistogramRows.in_memory(table.counts, self.weighting, threads=1)
        tokens, entropy = rows.statistics()
        mean = rows.mean()
        self.reduction_, self.users_, self.vocabulary_ = None, table.users, table.vocabulary
        self.centers_, self.weights_ = mean[None, :], np.ones(1)
        self.labels_ = np.zeros(table.counts.shape[0], dtype=np.int64)
        weight = float(tokens.sum() if self.weighting == "token" else (tokens > 0).sum())
        self.objective_ = entropy - weight * float(xlogy(mean, mean).sum())
        self.n_iter_, self.history_ = 1, np.array([self.objective_])
        used = table.counts[np.diff(table.counts.indptr) > 0]
        self.concentration_ = self._estimate_concentration(used, np.random.default_rng(self.random_state))
        return self


class LocalHistograms(FedAvgHistogram):
    """Every user alone: sm_s(Q̂_u). The result depends entirely on s = `smoothing`, so report it (H19)."""

    def __init__(self, *, smoothing: float = 1e-2) -> None:
        super().__init__(lam=0.0, concentration=1.0, smoothing=smoothing)

    def personalise(self, counts: Source) -> Floats:
        """sm_s(Q̂_u); the uniform histogram for a user without tokens."""
        dense = normalise(self._read(counts))[0].toarray()
        dense[dense.sum(axis=1) == 0] = 1 / dense.shape[1]
        return smooth(dense, self.smoothing)


@renamed
@dataclass(eq=False, repr=False)
class IFCAHistograms(CenterModel):
    """IFCA (Ghosh et al., 2020) on histograms: the same assignment, but a gradient step instead of the full average.

    P_k = softmax(z_k); the gradient of the cluster's mean KL is P_k − mean_{u∈k} Q̂_u. Each of `max_iter` rounds takes
    one step of `learning_rate`, times n_k/n when `scale="share"`, or 1 when "mean". Neither is in the paper (H27).
    `init` "kl++" seeds as `HistogramMixture` does; "mean" perturbs the overall mean, Q_fa·exp(0.3·N(0, 1));
    an array gives the K first centres.

    `privacy`, a `ct.Privacy`, adds noise to the users' clipped gradients: the start is "mean" with a private mean, the scale
    "share" with the public number of users, and the number of rounds is `max_iter`. There is then a receipt_ and advice_,
    and no labels_, objective_ or history_.
    """

    clusters: int = 10
    max_iter: int = 50
    learning_rate: Positive = 10.0
    random_state: int = 0
    _: KW_ONLY
    scale: Literal["mean", "share"] = "mean"
    init: Literal["kl++", "mean"] | ArrayLike = "kl++"
    temperature: NotNegative = 1.0
    direction: Direction = "user_center"
    trials: int = 8
    smoothing: NotNegative = 1e-5
    seed_smoothing: Positive = 1e-2
    lam: Share | None = None
    concentration: Positive | None = None
    threads: int | None = None
    privacy: Budget | None = None

    def fit(self, counts: Source, y: object = None) -> Self:
        table = self._table(counts)
        used = table.counts[np.diff(table.counts.indptr) > 0]
        if not 1 <= self.clusters <= used.shape[0]:
            raise ConfigError(
                f"clusters must be between 1 and the users with tokens; got {self.clusters}, n_samples={used.shape[0]}. "
                "Choose another number of clusters."
            )
        if self.privacy is not None:
            return self._fit_private(table, counts, self.privacy)
        rng = np.random.default_rng(self.random_state)
        rows = HistogramRows.in_memory(used, threads=self.threads)
        _, entropy = rows.statistics()
        self.centers_, history = self._descend(rows, self._first(used, rng), entropy)
        labels, sums, _ = assign(rows, self.centers_, self.smoothing)
        self.objective_ = entropy - float((sums * np.log(smooth(self.centers_, self.smoothing))).sum())
        self.history_, self.n_iter_ = np.array(history), len(history)
        members = np.bincount(labels, minlength=self.clusters)
        self.weights_ = members / members.sum()
        self.reduction_, self.users_, self.vocabulary_ = None, table.users, table.vocabulary
        self.labels_ = self._nearest(table.counts)
        self.concentration_ = self._estimate_concentration(used, rng)
        return self

    def _fit_private(self, table: CountTable, source: Source, privacy: Privacy) -> Self:
        if not isinstance(self.init, str) or self.init != "kl++":
            raise ConfigError(
                "a private fit of IFCAHistograms starts from a private mean, got another init; leave it at its default, or "
                "use HistogramMixture(init=privacy.public(centres))."
            )
        fit = fit_ifca(
            Users.in_memory(table.counts, source, self.threads),
            privacy,
            clusters=self.clusters,
            rounds=self.max_iter,
            learning_rate=self.learning_rate,
            seed=self.random_state,
        )
        self._take(fit, table.vocabulary)
        self.n_iter_ = self.max_iter
        return self

    def _first(self, used: Counts, rng: np.random.Generator) -> Floats:
        if not isinstance(self.init, str):
            first = finite("init", self.init)
            if first.shape != (self.clusters, used.shape[1]):
                raise ConfigError(
                    f"init must be {self.clusters} centres over {used.shape[1]} tokens; "
                    f"got {first.shape}. Pass one row per cluster."
                )
            return smooth(first, self.smoothing)
        histograms = normalise(used)[0]
        if self.init == "mean":
            mean = smooth(np.asarray(histograms.mean(axis=0)), self.smoothing)
            first = mean * np.exp(0.3 * rng.normal(size=(self.clusters, len(mean))))
            return np.asarray(first / first.sum(axis=1, keepdims=True), dtype=np.float64)
        if self.init != "kl++":
            raise ConfigError(
                f"init must be 'kl++', 'mean' or an array of centres; got {self.init!r}. Pass one of these."
            )
        options = (self.temperature, self.seed_smoothing, self.direction, self.trials)
        return seed_centers(histograms, self.clusters, rng, *options)[0]

    def _descend(self, rows: HistogramRows, centers: Floats, entropy: float) -> tuple[Floats, list[float]]:
        logits, history = np.log(centers), []
        labels, sums, _ = assign(rows, centers, self.smoothing)
        for _ in range(self.max_iter):
            members = sums.sum(axis=1, keepdims=True)
            gradient = np.where(members > 0, centers - sums / np.maximum(members, 1), 0.0)
            rate = self.learning_rate * (members / rows.users if self.scale == "share" else 1.0)
            logits = logits - rate * gradient
            centers = softmax(logits, axis=1)
            labels, sums, _ = assign(rows, centers, self.smoothing, labels, sums)
            history.append(entropy - float((sums * np.log(smooth(centers, self.smoothing))).sum()))
        return np.asarray(centers, dtype=np.float64), history
