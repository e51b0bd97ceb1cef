"""Is `advise` right? Its choice against all four methods on data kept back, for every data set that comes with coterie.

``python -m coterie.reproduce.advice [data set ...]``; without names all of them (those with files need COTERIE_DATA).
The advice sees training data only. A row gives the advised method's loss on held-out data minus that of each method, mean
± standard error over clients (elections: over the six years; heart: over patients): a positive number of more than two
standard errors would be a wrong advice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

import coterie as ct
from coterie.datasets.tabular import ELECTION_YEARS
from coterie.decision.advice import ALIASES, TableAdvice, advise
from coterie.decision.federation import narrow
from coterie.decision.metrics import METRICS as LOSSES
from coterie.decision.metrics import Predictions
from coterie.decision.table import Table
from coterie.estimation.advice import Advice
from coterie.estimation.checks import Array, Ints
from coterie.estimation.rates import BernoulliRates
from coterie.estimation.risks import multinomial_mixture, read_counts

METHODS = ("local", "global", "shrunk", "clustered")
Gaps = dict[str, tuple[float, float]]  # advised minus method: mean and standard error


def _gaps(loss: dict[str, Array], chosen: Array) -> Gaps:
    """Mean and standard error over units (clients, years) of the advised loss minus each method's."""
    out = {}
    for name, rival in loss.items():
        gap = chosen - rival
        out[name] = (float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap))))
    return out


def _test_losses(told: TableAdvice, test: tuple[Array, Array, Ints]) -> dict[str, Array]:
    """Held-out rows' loss under each method fitted to the training rows, by the metric of the advice."""
    decision = told.decision
    seen = decision.table
    owner = seen.clients.get_indexer(pd.Index(test[2]))
    y = test[1] if seen.classes is None else seen.classes.get_indexer(pd.Index(test[1]))
    held = Table(test[0], np.asarray(y, np.float64), owner, seen.clients, seen.names, seen.classes)
    loss = LOSSES[decision.kind][decision.metric]
    return {
        alias: loss(held, Predictions(decision.predictors[name].outputs(test[0], test[2])))
        for name, alias in ALIASES.items()
    }


def _advice(X: Array, y: Array, groups: Ints, kind: str) -> TableAdvice:
    told = advise(X=X, y=y, groups=groups, family="linear" if kind == "regression" else "classes")
    assert isinstance(told, TableAdvice)
    return told


def judge_federation(federation: ct.Federation) -> tuple[str, Gaps]:
    """Advice from the clients' training rows, judged on their test rows; wide columns as components of both."""
    train, test = federation.rows("train"), federation.rows("test")
    both = np.concatenate([train[0], test[0]]).astype(np.float64)
    outputs = federation.n_outputs if federation.n_outputs > 2 else 1
    X = narrow(both, outputs)[0]
    told = _advice(X[: len(train[0])], train[1], train[2], federation.kind)
    losses = _test_losses(told, (X[len(train[0]) :], test[1], test[2]))
    has, owner = np.unique(test[2], return_inverse=True)
    sizes = np.bincount(owner)
    means = {name: np.bincount(owner, loss, len(has)) / sizes for name, loss in losses.items()}
    return told.recommendation, _gaps(means, means[told.recommendation])


def judge_heart(folds: int = 5) -> tuple[str, Gaps]:
    """Four hospitals are too few to average over: every patient is held out once, hospitals count alike."""
    federation = ct.datasets.heart(test_fraction=0.0)
    X, y, groups = federation.rows()
    fold = np.random.default_rng(0).permutation(len(y)) % folds
    loss = {name: np.empty(len(y)) for name in METHODS}
    chosen, advice = np.empty(len(y)), []
    for f in range(folds):
        train, test = fold != f, fold == f
        told = _advice(X[train], y[train], groups[train], federation.kind)
        new = _test_losses(told, (X[test], y[test], groups[test]))
        for name, values in new.items():
            loss[name][test] = values
        chosen[test] = new[told.recommendation]
        advice.append(told.recommendation)
    gaps = {}
    for name in METHODS:
        parts = [(chosen - loss[name])[groups == g] for g in np.unique(groups)]
        error = np.sqrt(sum(p.var(ddof=1) / len(p) for p in parts)) / len(parts)
        gaps[name] = (float(np.mean([p.mean() for p in parts])), float(error))
    return "/".join(dict.fromkeys(advice)), gaps


def judge_elections() -> tuple[str, Gaps]:
    """Advice from five elections, judged on the sixth. Elections drift, so one year can go against any advice."""
    losses: dict[str, list[float]] = {name: [] for name in (*METHODS, "chosen")}
    advice = []
    for year in ELECTION_YEARS:
        data = ct.datasets.elections(held_out=year)
        z, n = data.successes.astype(np.float64), data.trials.astype(np.float64)
        told = advise(successes=z, trials=n)
        profiles, _, w = multinomial_mixture(read_counts(np.stack([z, n - z], axis=1)), n, told.clusters, 0)
        estimates = {
            "local": z / n,
            "global": np.full(len(z), z.sum() / n.sum()),
            "shrunk": BernoulliRates().fit(z, n).rates_,
            "clustered": w @ profiles[:, 0],
        }
        for name, estimate in estimates.items():
            losses[name].append(float(np.square(estimate - data.held_out).mean()))
        losses["chosen"].append(losses[told.recommendation][-1])
        advice.append(told.recommendation)
    found = {name: np.array(values) for name, values in losses.items()}
    return "/".join(dict.fromkeys(advice)), _gaps({name: found[name] for name in METHODS}, found["chosen"])


def judge_counts(corpus: Any, least: int, users: int = 800) -> tuple[str, Gaps]:
    """Every user's words are halved at random: advice from one half, squared error against the other (unbiased)."""
    counts = ct.datasets.user_tokens(corpus)[0]
    table = counts[np.asarray(counts.sum(1)).ravel() >= least][:users].toarray()
    seen = np.random.default_rng(0).binomial(table, 0.5)
    told = advise(counts=seen, resamples=200)
    n, kept = seen.sum(1, keepdims=True), table - seen
    own, other, mean = seen / n, kept / kept.sum(1, keepdims=True), (seen / n).mean(0)
    estimates = {"local": own, "global": mean, "shrunk": _shrunk(told, own, mean, n)}
    if told.clusters:
        profiles, _, w = multinomial_mixture(csr_array(seen.astype(float)), n[:, 0].astype(float), told.clusters, 0)
        estimates["clustered"] = w @ profiles
    loss = {name: np.square(e - other).sum(1) for name, e in estimates.items()}
    return told.recommendation, _gaps(loss, loss[told.recommendation])


def _shrunk(told: Advice, own: Array, mean: Array, n: Array) -> Array:
    weight = n / (n + told.variation["within"] / told.variation["between"])
    out: Array = weight * own + (1 - weight) * mean
    return out


DATA: dict[str, Callable[[], tuple[str, Gaps]]] = {
    "digits": lambda: judge_federation(ct.datasets.digits()),
    "digits, labels of one's own": lambda: judge_federation(
        ct.datasets.digits(transform="shift_labels", clusters=10, clients=10)
    ),
    "heart": judge_heart,
    "elections": judge_elections,
    "har": lambda: judge_federation(ct.datasets.har()),
    "mnist, rotated": lambda: judge_federation(ct.datasets.mnist(clients=120)),
    "mnist, private labels": lambda: judge_federation(
        ct.datasets.mnist(transform="shift_labels", clients=120, samples=100)
    ),
    "mnist, writers": lambda: judge_federation(ct.datasets.mnist(transform=None, clusters=1, by_writer=True)),
    "femnist": lambda: judge_federation(ct.datasets.femnist()),
    "cifar10, rotated": lambda: judge_federation(ct.datasets.cifar10()),
    "blogs": lambda: judge_counts("blogs", 500),
    "imdb": lambda: judge_counts("imdb", 100),
}


def main(names: list[str]) -> None:
    unknown = [n for n in names if n not in DATA]
    if unknown:
        raise SystemExit(f"Unknown data set {unknown[0]!r}; choose from {', '.join(DATA)}.")
    rows = []
    for name in names or list(DATA):
        began = time.perf_counter()
        advice, gaps = DATA[name]()
        shown = {m: f"{gaps[m][0]:+.4f} ± {gaps[m][1]:.4f}" if m in gaps else "" for m in METHODS}
        rows.append({"data": name, "advice": advice, **shown, "seconds": round(time.perf_counter() - began, 1)})
        print(f"{name}: {advice}", file=sys.stderr)
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
