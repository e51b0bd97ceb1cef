"""What the tables of personal methods compare: settings, methods and how a rate is chosen. `personal` runs them.

mnist    50 clients with three shards of one digit each; a tenth of them takes part in a round
femnist  66 clients, each the digits of three writers; a third takes part in a round (femnist-15: 0.15 of them)
labels, features, concept, sizes
         20 clients with scikit-learn's small digits, of which half take part in a round, that differ in which digits they
         have, in how pictures are turned, in what labels mean, or only in how many rows they have; one hidden layer of 50

The first two use the five-layer network of section 4 of "A Statistical Framework for Personalized Federated Learning and
Estimation: Theory, Algorithms, and Privacy" (Kaan Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023,
https://arxiv.org/abs/2207.01771), EX-4, with τ = 10 steps a round and 60 batches an epoch. Every method's learning
rate is chosen by one rule (`next_rate`) on validation rows of the training data of another seed, with all rounds shown
(with fewer, rates win that are too large in the end); for small digits the grid grows while the best rate is at its edge.
Another seed deals the same pictures, so those that a reported seed tests on are no validation rows. All else is the
library's default. "every client" marks the two methods whose clients also train in rounds they are not sampled in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import coterie as ct
from coterie.base.settings import with_setting
from coterie.datasets.files import load_arrays
from coterie.datasets.partition import label_shards
from coterie.errors import Diverged
from coterie.training.tuning import beyond_edge

RATES = (0.05, 0.15)  # of those that the paper chooses from
BETWEEN = 0.1
WIDER = 2.7  # the grid's next rate
MOST_RATES = 7
FIVE_LAYERS = ct.models.small_cnn()
WRITERS = 3  # of every client
REPORTED = 3  # seeds of the tables, from 0 on

GENTLE = "FedAvg + gentle fine-tuning"  # with a tenth of the rate
METHODS: dict[str, Callable[[], Any]] = {
    "Local": ct.Local,
    "FedAvg": ct.FedAvg,
    "FedAvg + fine-tuning": ct.FineTuned,
    GENTLE: ct.FineTuned,
    "Local, every client": ct.Local,
    "AdaPeD": lambda: ct.AdaPeD(catch_up=0),
    "AdaPeD, every client": ct.AdaPeD,
    "pFedMe": ct.PFedMe,
    "Per-FedAvg": lambda: ct.PerFedAvg(alpha=0.01),
    "QuPeD": ct.QuPeD,
    "Mutual learning": ct.MutualLearning,
    "FedEM": ct.FedEM,
    "FedRep": ct.FedRep,
    "APFL": ct.APFL,
    "Ditto": ct.Ditto,
    "Gaussian prior": ct.GaussianPrior,
    "Laplace prior": ct.LaplacePrior,
    "Mixture prior": lambda: ct.MixturePrior(clusters=3),
    "Discrete prior": lambda: ct.DiscretePrior(clusters=3),
    "FedProx": ct.FedProx,
    "SCAFFOLD": ct.Scaffold,
}


def mnist(seed: int) -> ct.Federation:
    """60,000 digits in 150 shards of one label, three to each of 50 clients; a sixth of a client's rows are test rows."""
    x, y = load_arrays("mnist.npz", "x_train", "y_train")
    rows, sizes = label_shards(y, clients=50, shards=3, seed=seed)
    return as_federation(x[rows], y[rows], sizes, seed, 1 / 6)


def femnist(seed: int) -> ct.Federation:
    """The digits of 198 writers, three writers to each of 66 clients; a tenth of a client's rows are test rows."""
    x, y, writer, complete = load_arrays("femnist.npz", "x", "y", "writer", "writer_complete")
    digits = np.flatnonzero(y < 10)
    count = np.bincount(writer[digits], minlength=len(complete))
    known = np.flatnonzero(complete.astype(bool) & (count >= 60))
    chosen = np.random.default_rng(seed).permutation(known)[: 66 * WRITERS].reshape(66, WRITERS)
    parts = [digits[np.isin(writer[digits], group)] for group in chosen]
    rows = np.concatenate(parts)
    return as_federation(255 - x[rows], y[rows], np.array([len(p) for p in parts]), seed, 0.1)


def as_federation(x: Any, y: Any, sizes: Any, seed: int, test: float) -> ct.Federation:
    return ct.Federation.from_flat(
        x[:, None],
        y,
        sizes=sizes,
        clients=range(len(sizes)),
        test_fraction=test,
        seed=seed,
        kind="classification",
        classes=range(10),
        one_class="allow",
    )


def digits(seed: int, kind: str) -> ct.Federation:
    """1,797 digits of 8×8 pixels on 20 clients that differ in one respect."""
    if kind in ("features", "concept"):
        transform: Any = "rotate" if kind == "features" else "shift_labels"
        return ct.datasets.digits(transform=transform, clients=20, seed=seed)
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    if kind == "labels":
        rows, sizes = label_shards(y, clients=20, shards=3, seed=seed)
    else:
        share = rng.dirichlet(np.full(20, 1.0))
        sizes = np.maximum((share * (len(y) - 20 * 12)).astype(np.int64) + 12, 12)
        rows = rng.permutation(len(y))[: sizes.sum()]
    return as_federation(x[rows].reshape(-1, 8, 8) / 16, y[rows], sizes, seed, 0.25)


def for_tuning(make: Callable[[int], ct.Federation]) -> ct.Federation:
    """The training rows of seed 1000 with a fifth of them held out, less the pictures that a reported seed tests on."""
    tested = {key for seed in range(REPORTED) for key in _pictures(make(seed))}
    held = make(1000).holdout(0.2, 0)
    fresh = np.array([key not in tested for key in _pictures(held)])
    x, y, owner = (np.concatenate([a, b[fresh]]) for a, b in zip(held.rows("train"), held.rows("test"), strict=True))
    order = np.argsort(owner, kind="stable")
    return ct.Federation.from_flat(
        x[order].reshape(-1, *held.x.shape[1:]),
        y[order],
        sizes=np.bincount(owner),
        clients=held.clients.tolist(),
        n_test=np.bincount(held.rows("test")[2][fresh], minlength=len(held)),
        clusters=held.clusters,
        kind="classification",
        classes=range(10),
        one_class="allow",
    )


def _pictures(federation: ct.Federation) -> list[bytes]:
    """A key of every test picture that is the same however it is turned."""
    return [np.sort(row).tobytes() for row in federation.rows("test")[0]]


@dataclass(frozen=True)
class Setting:
    make: Callable[[int], ct.Federation]
    share: float  # of the clients in a round
    full: int
    quick: int
    model: Callable[[], Any] = FIVE_LAYERS
    batch: int | None = None  # None: 60 batches an epoch
    wider: bool = False  # the grid of rates grows beyond the paper's while the best is at its edge


def small(kind: str) -> Setting:
    return Setting(partial(digits, kind=kind), 0.5, 30, 20, ct.models.mlp(64, 50, 10), 8, True)


SETTINGS = {
    "mnist": Setting(mnist, 0.1, 300, 60),
    "femnist": Setting(femnist, 1 / 3, 240, 24),
    "femnist-15": Setting(femnist, 0.15, 480, 24),
    **{kind: small(kind) for kind in ("labels", "features", "concept", "sizes")},
}


def steps_of(setting: Setting, federation: ct.Federation, rate: float) -> ct.LocalSGD:
    """Ten steps a round, 60 an epoch."""
    batch = setting.batch or max(int(np.median(federation.n_train)) // 60, 1)
    return ct.LocalSGD(steps=10, lr=rate, batch_size=batch, weight_decay=1e-4)


def score(name: str, setting: Setting, federation: ct.Federation, rounds: int, rate: float, seed: int) -> float:
    """Mean over clients of the accuracy of their own models; NaN if the run diverges."""
    steps = steps_of(setting, federation, rate)
    algorithm = with_setting(METHODS[name](), "local", steps)
    if name == GENTLE:
        algorithm = with_setting(algorithm, "tune", replace(steps, lr=rate / 10))
    task = ct.Task(setting.model)
    cohort = max(round(setting.share * len(federation)), 1)
    if name == "Local, every client":
        cohort = len(federation)
    if name == "AdaPeD, every client":
        algorithm = with_setting(
            algorithm, "catch_up", round(len(federation) / cohort) - 1
        )  # rounds missed, on average
    options: dict[str, Any] = {"cohort": cohort, "alone": False, "progress": False}
    try:
        run = ct.fit(algorithm, federation, task, rounds=rounds, seed=seed, **options)
    except Diverged:
        return float("nan")
    return float(run.scores()["accuracy"].mean())


def best_rate(tuning: dict[str, float]) -> float:
    """The rate of the highest validation accuracy; one that diverged has none."""
    return float(max(tuning, key=lambda rate: float(np.nan_to_num(tuning[rate], nan=-1.0))))


def next_rate(tuning: dict[str, float], wider: bool) -> float | None:
    """The grid's rates, then, where the smaller is better, the one between them; None when the best is found.

    With `wider` other rates follow, if the best is the smallest or largest, until it is not."""
    for rate in RATES:
        if str(rate) not in tuning:
            return rate
    tried, best = sorted(float(rate) for rate in tuning), best_rate(tuning)
    if not wider:
        return BETWEEN if tried == list(RATES) and best == RATES[0] else None
    wider_rate = None if len(tried) == MOST_RATES else beyond_edge(tried, best, WIDER)
    return None if wider_rate is None else round(wider_rate, 4)
