"""Personalised histograms by clustering in KL divergence; with `privacy=`, differentially private for whole users.

Algorithms 1 and 2, section 3 and Lemma 2.2 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

Symbols: Q̂_u the empirical histogram of user u and m_u its tokens; P_k (`centers_`) the K (`clusters`) centres;
τ (`temperature`) of the seeding; λ (`lam`) the weight on the shared model when fine-tuning; α (`concentration`) of the
Dirichlet law of users around their centre; s (`smoothing`, `seed_smoothing`). Steps: seeding (Algorithm 1), Lloyd
(Algorithm 2), optional reduction of the vocabulary (section 3), fine-tuning (Lemma 2.2). Between users only sums per
cluster are exchanged, except for the seeds and the sample that α is estimated on, which are raw rows. A private run
replaces both: see `coterie.estimation.histograms.private`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from coterie.base.annotations import check_settings
from coterie.base.arguments import Count, NotNegative, Positive, Share, finite, whole_number
from coterie.base.deprecated import no_longer_here, renamed
from coterie.errors import ConfigError, DataError
from coterie.estimation.histograms.count_store import CountStore, open_store, save_counts
from coterie.estimation.histograms.counts import WIDEST, Counts, Floats, Ints, Source, read_counts
from coterie.estimation.histograms.kl import kl_rows, mean_kl, normalise, smooth
from coterie.estimation.histograms.lloyd import LloydResult, Reseed, lloyd
from coterie.estimation.histograms.personal import CenterModel
from coterie.estimation.histograms.private.crowd import Crowd, Users
from coterie.estimation.histograms.private.designs import ROUNDS, PrivateFit, fit_mixture
from coterie.estimation.histograms.reduction import FittedReduction, TokenReduction
from coterie.estimation.histograms.seeding import Direction, farthest_rows, seed_centers
from coterie.estimation.histograms.user_rows import HistogramRows, Weighting
from coterie.privacy import Privacy, Released
from coterie.privacy.account import with_history
from coterie.privacy.settings import Budget

__all__ = ["HistogramMixture", "TokenReduction", "kl_rows", "mean_kl", "save_counts"]

_TINY = 5
Init: TypeAlias = "Literal['kl++'] | ArrayLike | Released[Any]"


def _is_number(clusters: Any) -> bool:
    return clusters is not None and np.ndim(clusters) == 0


def _candidates(clusters: Any, users: int) -> list[int]:
    """The numbers of clusters to try."""
    if clusters is None:
        return [k for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if k == 1 or k <= users // 5]
    numbers = [whole_number("clusters", k) for k in clusters]
    if not numbers:
        raise ConfigError("clusters must be a whole number, several, or None; got an empty list. Pass one or more.")
    return sorted(set(numbers))


def fit_best(estimator: Any, counts: Source) -> Any:
    """Fit with the number of clusters that predicts users held out best."""
    if isinstance(counts, (str, Path)) and Path(counts).is_dir():
        raise ConfigError("clusters can be chosen for counts in memory; got a folder. Pass one number.")
    table = read_counts(counts)
    used = np.flatnonzero(np.diff(table.counts.indptr))
    if len(used) < 10:
        raise DataError(f"Choosing clusters needs ten or more users with tokens; got {len(used)}. Pass one number.")
    held = np.random.default_rng(estimator.random_state).permutation(used)
    test, train = np.sort(held[: len(used) // 5]), np.sort(held[len(used) // 5 :])
    scores: dict[int, float] = {}
    for k in _candidates(estimator.clusters, len(train)):
        tried = clone(estimator).set_params(clusters=k).fit(table.counts[train])
        scores[k] = tried.score(table.counts[test])
        if estimator.clusters is None and list(scores.values())[-1] < max(scores.values()) > list(scores.values())[-2]:
            break
    best = clone(estimator).set_params(clusters=max(scores, key=lambda k: scores[k])).fit(counts)
    estimator.__dict__.update({k: v for k, v in vars(best).items() if k.endswith("_") and not k.startswith("_")})
    estimator.clusters_, estimator.scores_ = len(best.centers_), scores
    return estimator


def _refuse_printed(method: Any) -> None:
    if isinstance(method, str) and method == "paper":
        raise no_longer_here("HistogramMixture", "method", method, "printed/histograms.py")


def _note(members: Ints) -> str:
    """A sentence about clusters that are so small that they describe only their few users."""
    tiny = np.flatnonzero(members < _TINY)
    if not len(tiny):
        return ""
    sizes = ", ".join(f"{k} ({members[k]})" for k in tiny[:10])
    return (
        f"{len(tiny)} of {len(members)} clusters have fewer than {_TINY} users: {sizes}. Their centres are little more than "
        "these users' own histograms; fewer clusters, or restarts, may do better."
    )


@renamed
@dataclass(eq=False, repr=False)
class HistogramMixture(CenterModel):
    """Cluster users' histograms in KL and personalise each from its cluster's centre.

    Parameters
    ----------
    clusters : K, at most the number of users with tokens; or several numbers, or None, of which the one with the highest
        `score` on a fifth of the users held out is taken (None: 1, 2, 3, 4, 6, 8, … while that rises). A private fit has the
        most of them (None: one for 200 users), merges its clusters, and pays for one release that compares.
    max_iter, tol : rounds of Lloyd, and the relative gain at which it stops.
    n_init, random_state : the number of runs, of which the lowest objective is kept, and the seed of the first.
    temperature : τ of the seeding; the paper's is 0.5 with direction="center_user" and trials=1.
    direction : "user_center", or "center_user" as printed: the arguments of the seeding's divergence.
    trials : candidates per seed.
    seed_smoothing : s of the seeding.
    init : "kl++", or K given centres. A private fit needs `privacy.public(centres)` for a valid receipt: centres of
        unknown origin void it.
    smoothing : s of the centres whenever a user is compared with them.
    weighting : "user" counts each user once, as the paper does; "token" counts each token once, which is the multinomial
        maximum likelihood where m_u differ.
    empty : the new centre of an empty cluster: "uniform" as in the paper, or "farthest", the farthest user.
    lam : a fixed λ, or None for λ_u = α/(α + m_u).
    concentration : α, or None to estimate it by Dirichlet-multinomial maximum likelihood.
    reduction : a `TokenReduction`, or None. In a private fit noisy directions choose the tokens.
    sample_users : at most so many users serve as seeds.
    threads : None means all cores.
    privacy : a `ct.Privacy` makes the fit differentially private for whole users. Its `clip` bounds ‖Q̂_u‖₂, which is at
        most 1, and `clip`·√d bounds the whitened histograms; private quantiles choose below, so 1.0 is a good value.
    method : of a private fit: "A+", or "B+" for many users.
    rounds : of a private fit, fixed in advance; None: 10 for A+, 3 for B+.

    Attributes
    ----------
    centers_, labels_, objective_ (Σ_u w_u KL(Q̂_u‖P_{c_u}), in nats), history_ (the objective after each recentring),
    n_iter_, weights_, concentration_, reduction_, n_empty_users_; users_ and vocabulary_ when the counts came with names;
    note_, a sentence about clusters with fewer than five users; clusters_, and scores_ {K: score} where K was chosen.
    A private fit has receipt_, mean_, and advice_, a sentence on whether clustering pays (clustering_pays_, gain_,
    gain_error_). It has no labels_, objective_ or history_, which are secrets of the users; each user calls `predict`.

    Users without tokens are kept but contribute nothing: they get the largest cluster's label and, from `personalise`,
    the population's histogram.
    """

    clusters: int | Sequence[int] | None = 10
    max_iter: int = 50
    tol: NotNegative = 1e-6
    n_init: int = 1
    random_state: int = 0
    _: KW_ONLY
    temperature: NotNegative = 1.0
    direction: Direction = "user_center"
    trials: int = 8
    init: Init = "kl++"
    smoothing: NotNegative = 1e-5
    seed_smoothing: Positive = 1e-2
    weighting: Weighting = "user"
    empty: Literal["uniform", "farthest"] = "uniform"
    lam: Share | None = None
    concentration: Positive | None = None
    reduction: TokenReduction | None = None
    sample_users: int = 20_000
    threads: int | None = None
    privacy: Budget | None = None
    method: Literal["A+", "B+"] = "A+"
    rounds: Count | None = None

    def fit(self, counts: Source, y: object = None) -> Self:
        """Users × tokens counts: sparse, dense, a frame or file of (user, token, count), or a folder (streamed)."""
        _refuse_printed(self.method)
        check_settings(self)
        if not _is_number(self.clusters) and self.privacy is None:
            return cast(Self, fit_best(self, counts))
        self._check_settings()
        if isinstance(counts, (str, Path)) and Path(counts).is_dir():
            return self.fit_stream(counts)
        table = read_counts(counts)
        if self.privacy is not None:
            return self._fit_private(Users.in_memory(table.counts, counts, self.threads), table.vocabulary)
        prepare = self._fit_reduction(HistogramRows.in_memory(table.counts, threads=self.threads))
        rows = HistogramRows.in_memory(table.counts, self.weighting, prepare=prepare, threads=self.threads)
        self._fit(rows, table.users, table.vocabulary)
        self._columns(counts, table.counts.shape[1])
        return self

    @property
    def _k(self) -> int:
        """The number of clusters of a fit that has one."""
        assert isinstance(self.clusters, int | np.integer)
        return int(self.clusters)

    def fit_stream(self, source: str | Path) -> Self:
        """Fit from disk, block by block, in memory that grows by only 12 bytes per user.

        `source`: a folder written by `save_counts` (read as it is), or a Parquet, CSV (sorted by user) or .npz file,
        which is first laid out as such a folder in a temporary place.
        """
        _refuse_printed(self.method)
        check_settings(self)
        if not _is_number(self.clusters):
            raise ConfigError(f"fit_stream needs one number of clusters; got {self.clusters!r}. Pass a whole number.")
        self._check_settings()
        with open_store(Path(source)) as store:
            if self.privacy is not None:
                users = Users.view(lambda weighting: self._stream(store, weighting, None), store.shape[1], source)
                return self._fit_private(users, store.vocabulary())
            prepare = self._fit_reduction(self._stream(store, "user", None))
            return self._fit(self._stream(store, self.weighting, prepare), store.users(), store.vocabulary())

    def fit_crowd(self, users: Crowd) -> Self:
        """A private fit to users who tell sums of whole numbers, wherever their rows are."""
        check_settings(self)
        self._check_settings()
        return self._fit_private(users, None)

    def fit_predict(self, counts: Source, y: object = None) -> Ints:
        if self.privacy is not None:
            raise ConfigError(
                "a private fit does not give out labels, got fit_predict; call fit, and let each user call predict."
            )
        return self.fit(counts).labels_

    def _fit_private(self, users: Crowd, vocabulary: NDArray[Any] | None) -> Self:
        """Names of users are not kept."""
        privacy = self.privacy
        assert privacy is not None
        rounds = ROUNDS[self.method] if self.rounds is None else self.rounds
        start = (
            None
            if isinstance(self.init, str)
            else with_history(self.init).map(lambda _: self._given_start(users.width))
        )
        self._take(self._private_design(users, privacy, rounds, start), vocabulary)
        self.n_iter_, self.n_features_in_ = rounds, users.width
        return self

    def _private_design(
        self, users: Crowd, privacy: Privacy, rounds: int, start: Released[Floats] | None
    ) -> PrivateFit:
        return fit_mixture(
            users,
            privacy,
            clusters=self._k if _is_number(self.clusters) else _candidates(self.clusters, users.users // 40),
            method=self.method,
            rounds=rounds,
            seed=self.random_state,
            start=start,
            reduction=self.reduction,
        )

    def _stream(self, store: CountStore, weighting: Weighting, prepare: Any) -> HistogramRows:
        return HistogramRows(store.load, store.shape[0], weighting, prepare=prepare, keep=False, threads=self.threads)

    def _fit_reduction(self, rows: HistogramRows) -> Any:
        self.reduction_: FittedReduction | None = None
        if self.reduction is None:
            return None
        self.reduction_ = self.reduction.fit(rows, rows.mean(), self._k)
        return self.reduction_.reduce

    def _fit(self, rows: HistogramRows, users: NDArray[Any] | None, vocabulary: NDArray[Any] | None) -> Self:
        tokens, entropy = rows.statistics()
        rng = np.random.default_rng(self.random_state)
        sample, _ = rows.sample(self.sample_users, rng)
        sample = sample[np.diff(sample.indptr) > 0]
        self._check_users(int((tokens > 0).sum()), sample.shape[0])
        view = sample if self.reduction_ is None else self.reduction_.reduce(sample)
        candidates = normalise(view)[0]
        runs = (self._run(rows, candidates, entropy, rng) for _ in range(self.n_init))
        best = min(runs, key=lambda run: run.objective)
        self.centers_ = best.centers if self.reduction_ is None else self.reduction_.lift(best.centers)
        self.labels_, self.objective_, self.history_ = best.labels, best.objective, best.history
        self.n_iter_, self.n_empty_users_ = len(best.history), int((tokens == 0).sum())
        members = np.bincount(self.labels_[tokens > 0], minlength=self._k)
        self.weights_ = members / members.sum()
        self.labels_[tokens == 0] = int(members.argmax())
        self.users_, self.vocabulary_, self.n_features_in_ = users, vocabulary, self.centers_.shape[1]
        self.concentration_ = self._estimate_concentration(sample, rng)
        self.clusters_, self.note_ = self._k, _note(members)
        return self

    def _run(self, rows: HistogramRows, candidates: Counts, entropy: float, rng: np.random.Generator) -> LloydResult:
        reseed: Reseed | None = None
        if self.empty == "farthest":

            def reseed(centers: Floats, size: int) -> Floats:
                return farthest_rows(candidates, centers, size, self.seed_smoothing)

        seeds = self._seeds(candidates, rng)
        return lloyd(
            rows, seeds, entropy, max_iter=self.max_iter, tol=self.tol, smoothing=self.smoothing, reseed=reseed
        )

    def _seeds(self, candidates: Counts, rng: np.random.Generator) -> Floats:
        if isinstance(self.init, str):
            options = (self.temperature, self.seed_smoothing, self.direction, self.trials)
            return seed_centers(candidates, self._k, rng, *options)[0]
        return self._given_start(candidates.shape[1])

    def _given_start(self, width: int) -> Floats:
        seeds = finite("init", self.init.value if isinstance(self.init, Released) else self.init)
        if seeds.shape != (self.clusters, width) or not (seeds >= 0).all() or not (seeds.sum(axis=1) > 0).all():
            raise ConfigError(
                f"init must be {self.clusters} non-negative centres over {width} tokens; "
                f"got shape {seeds.shape}. Pass one row per cluster."
            )
        return smooth(seeds / seeds.sum(axis=1, keepdims=True), self.seed_smoothing)

    def _check_users(self, users: int, sampled: int) -> None:
        if users == 0:
            raise DataError(
                "Counts need at least one user with tokens; all users are empty. Add users that have tokens."
            )
        if sampled < self._k:
            raise ConfigError(
                f"clusters must not exceed the users with tokens; got clusters={self.clusters}, n_samples={users}, "
                f"{sampled} of them sampled for seeding. Lower clusters or raise sample_users."
            )

    def _check_settings(self) -> None:
        if isinstance(self.init, str) and self.init != "kl++":
            raise ConfigError(f"init must be 'kl++' or an array of centres; got {self.init!r}. Pass one of these.")
        if self.privacy is None:
            return
        plain: dict[str, Any] = {"weighting": "user", "n_init": 1}
        if self.reduction is not None:
            self.reduction.check(WIDEST)
            plain |= {"method": "A+"}
        if self.reduction is not None or not _is_number(self.clusters):
            plain |= {"init": "kl++"}
        for name, value in plain.items():
            if getattr(self, name) != value:
                raise ConfigError(
                    f"a private fit needs {name}={value!r}, got {getattr(self, name)!r}; leave it at its default."
                )
