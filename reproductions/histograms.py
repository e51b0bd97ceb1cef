"""Users' histograms for Table 1 of "Private and Personalized Histogram Estimation" (Setlur et al., 2023): data and tuning.

Once: 20 % of the users are set aside for validation, and 40 % of every user's tokens for testing. A run draws
300 train tokens of each user from its other tokens (film reviews are short: all of them), leaves a tenth of the users out
of training as never seen, and reports the mean of KL(test histogram‖model). λ, the seeding, IFCA's step and start, the
number of kept tokens and the smoothing of Local are chosen on the validation users alone, who are in no reported number;
test tokens of the others serve nothing but the report. `reproductions.histogram_table` makes the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from coterie.datasets.files import find_data
from coterie.estimation.histograms.baselines import FedAvgHistogram, IFCAHistograms, LocalHistograms
from coterie.estimation.histograms.counts import Counts, Floats, Ints, read_counts
from coterie.estimation.histograms.kl import row_sums, with_data
from coterie.estimation.histograms.mixture import HistogramMixture, TokenReduction, kl_rows, mean_kl
from coterie.estimation.histograms.personal import CenterModel
from coterie.estimation.histograms.seeding import Direction
from coterie.estimation.histograms.soft import DirichletMultinomialMixture

Seeding: TypeAlias = tuple[float, Direction, int]  # temperature, direction, trials
Value = TypeVar("Value")

TRAIN_TOKENS, CLUSTERS, ROUNDS, SMOOTHING = 300, 10, 50, 1e-4
LAMBDAS = tuple(percent / 100 for percent in range(5, 100, 5))
SEEDINGS: tuple[Seeding, ...] = tuple(
    (temperature, direction, trials)
    for temperature in (0.5, 1.0, 2.0)
    for direction in ("center_user", "user_center")
    for trials in (1, 8)
)
STEPS, KEPT = (3.0, 10.0, 30.0, 100.0), (100, 200, 400)
LOCAL_SMOOTHING = (1e-2, 1e-1, 0.3, 1.0, 3.0)
JUDGED = 15_000  # at most so many users are judged


@dataclass(frozen=True)
class Grid:
    """What is tried on validation users."""

    seedings: tuple[Seeding, ...] = SEEDINGS
    kept: tuple[int, ...] = KEPT
    steps: tuple[float, ...] = STEPS
    starts: tuple[str, ...] = ("kl++", "mean")


QUICK = Grid(((1.0, "user_center", 8), (0.5, "center_user", 1)), (200, 400), (30.0,), ("mean",))


@dataclass(frozen=True)
class Split:
    """Train and test counts of the users who learn together, and of others who do not take part."""

    train: Counts
    test: Counts
    other_train: Counts
    other_test: Counts


@dataclass(frozen=True)
class Corpus:
    """Every user's tokens, cut once into a pool to train from and a test set; the users set aside for validation."""

    pool: Counts
    test: Counts
    validation: Ints
    reported: Ints
    train_tokens: int | None = TRAIN_TOKENS  # None: the whole pool

    @classmethod
    def cut(cls, counts: Counts, seed: int, train_tokens: int | None = TRAIN_TOKENS) -> Corpus:
        rng = np.random.default_rng([seed, 0])
        tokens = np.asarray(counts.sum(axis=1)).ravel().astype(np.int64)
        pool = _draw(counts, tokens - (0.4 * tokens).astype(np.int64), rng)
        order = rng.permutation(counts.shape[0])
        aside = counts.shape[0] // 5
        return cls(pool, with_data(counts, counts.data - pool.data), order[:aside], order[aside:], train_tokens)

    def _train(self, rng: np.random.Generator) -> Counts:
        return self.pool if self.train_tokens is None else _draw(self.pool, self.train_tokens, rng)

    def for_tuning(self, seed: int) -> Split:
        train = self._train(np.random.default_rng([seed, 1]))
        return _split(train, self.test, self.reported, self.validation)

    def for_run(self, seed: int) -> Split:
        rng = np.random.default_rng([seed, 2])
        train = self._train(rng)
        order = rng.permutation(self.reported)
        return _split(train, self.test, order[len(order) // 10 :], order[: len(order) // 10])


def _split(train: Counts, test: Counts, mine: Ints, other: Ints) -> Split:
    return Split(train[mine], test[mine], train[other], test[other])


def _draw(counts: Counts, sizes: Ints | int, rng: np.random.Generator) -> Counts:
    """So many of each user's tokens, without replacement."""
    sizes = np.broadcast_to(sizes, counts.shape[0])
    whole = counts.data.astype(np.int64)
    spans = zip(counts.indptr[:-1], counts.indptr[1:], sizes, strict=True)
    drawn = [rng.multivariate_hypergeometric(whole[a:b], size, method="marginals") for a, b, size in spans]
    return with_data(counts, np.concatenate(drawn).astype(np.float64))


@dataclass(frozen=True)
class Choices:
    """What validation users decided."""

    seeding: Seeding
    kept: int
    step: float
    ifca_start: str
    local_smoothing: float
    lam: dict[str, float]


def load_counts(corpus: str) -> Counts:
    """Users of "blogs" with 500 tokens or more, or of "imdb" (film reviews) with ten or more."""
    counts = read_counts(find_data(f"user_tokens_{corpus}.npz")).counts
    return counts[row_sums(counts) >= (500 if corpus == "blogs" else 10)]


def risk(model: CenterModel, train: Counts, test: Counts, lam: float | None = None) -> float:
    """Mean KL(test‖model) in nats; `lam` replaces the model's own weights on the centre."""
    if lam is not None:
        model.set_params(lam=lam)
    train, test = train[:JUDGED], test[:JUDGED]
    models = np.concatenate(
        [model.personalise(train[start : start + 2000]) for start in range(0, train.shape[0], 2000)]
    )
    return mean_kl(test, models, SMOOTHING)


def tune(data: Split, seed: int, grid: Grid | None = None) -> Choices:
    """All choices by the risk of users who did not train."""
    grid = grid or Grid()

    def other(model: CenterModel, lam: float) -> float:
        return risk(model, data.other_train, data.other_test, lam)

    def best(values: tuple[Value, ...], make: Callable[[Value], CenterModel]) -> tuple[Value, CenterModel]:
        fitted = {value: make(value).fit(data.train) for value in values}
        value = min(values, key=lambda v: other(fitted[v], 1.0))
        return value, fitted[value]

    seeding, clusters = best(grid.seedings, lambda value: clustered(seed, value))
    kept, reduced = best(grid.kept, lambda value: clustered(seed, seeding, int(value)))
    starts = {start: best(grid.steps, lambda value, s=start: ifca_model(seed, s, value)) for start in grid.starts}  # type: ignore[misc]
    start = min(starts, key=lambda name: other(starts[name][1], 1.0))
    step, ifca = starts[start]
    fedavg = FedAvgHistogram(smoothing=SMOOTHING, concentration=1.0).fit(data.train)
    local = min(
        LOCAL_SMOOTHING,
        key=lambda s: mean_kl(data.other_test, local_model(s, data.train).personalise(data.other_train)),
    )
    models = {"FedAvg": fedavg, "IFCA": ifca, "Alg. 2 + reduction": reduced, "Alg. 2": clusters}
    lam = {name: min(LAMBDAS, key=partial(other, model)) for name, model in models.items()}
    return Choices(seeding, int(kept), step, start, local, lam)


def run(data: Split, choices: Choices, seed: int) -> dict[str, float]:
    """One column of numbers of Table 1."""
    shared: dict[str, CenterModel] = {
        "FedAvg": FedAvgHistogram(smoothing=SMOOTHING),
        "IFCA": ifca_model(seed, choices.ifca_start, choices.step),
        "Alg. 2 + reduction": clustered(seed, choices.seeding, choices.kept),
        "Alg. 2": clustered(seed, choices.seeding),
    }
    alone = local_model(choices.local_smoothing, data.train).personalise(data.train[:JUDGED])
    local = {"Local": mean_kl(data.test[:JUDGED], alone)}
    plain, tuned, bayes = {}, {}, {}
    for name, model in shared.items():
        model.fit(data.train)
        plain[name] = risk(model, data.train, data.test, 1.0)
        tuned[f"{name} + FT"] = risk(model, data.train, data.test, choices.lam[name])
        model.set_params(lam=None)
        bayes[f"{name} + FT by estimated α"] = risk(model, data.train, data.test)
    soft = DirichletMultinomialMixture(CLUSTERS, max_iter=30, start=clustered(seed, choices.seeding)).fit(data.train)
    bayes["soft mixture (EM), posterior mean"] = _mean_kl_soft(soft, data.train, data.test)
    unseen = risk(shared["Alg. 2"], data.other_train, data.other_test, choices.lam["Alg. 2"])
    return local | plain | tuned | bayes | {"Alg. 2 + FT, users never seen": unseen}


def _mean_kl_soft(model: DirichletMultinomialMixture, train: Counts, test: Counts) -> float:
    train, test = train[:JUDGED], test[:JUDGED]
    parts: list[Floats] = []
    for start in range(0, train.shape[0], 2000):
        span = slice(start, start + 2000)
        parts.append(kl_rows(test[span], model.personalise(train[span]), SMOOTHING))
    return float(np.concatenate(parts).mean())


def local_model(smoothing: float, train: Counts) -> LocalHistograms:
    return LocalHistograms(smoothing=smoothing).fit(train)


def clustered(seed: int, seeding: Seeding, kept: int | None = None) -> HistogramMixture:
    temperature, direction, trials = seeding
    return HistogramMixture(
        CLUSTERS,
        ROUNDS,
        random_state=seed,
        temperature=temperature,
        direction=direction,
        trials=trials,
        smoothing=SMOOTHING,
        reduction=None if kept is None else TokenReduction(keep=kept),
    )


def ifca_model(seed: int, start: str, step: float) -> IFCAHistograms:
    return IFCAHistograms(CLUSTERS, ROUNDS, step, seed, init=start, smoothing=SMOOTHING)
