"""Is `advise` right? Its choice against all four methods on data kept back, for every data set that comes with coterie.

The advice sees training data only. A row gives the advised method's loss on held-out data minus that of each method, mean
± standard error over clients (elections: over the six years; heart: over patients): a positive number of more than two
standard errors would be a wrong advice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.sparse import csr_array

import coterie as ct
from coterie.comparison.exact.decision import Decision, decide_table
from coterie.comparison.exact.metrics import METRICS as LOSSES
from coterie.comparison.exact.metrics import Predictions
from coterie.comparison.exact.plan import plan, principal
from coterie.data.coded_table import Table, make_table
from coterie.datasets.tabular import ELECTION_YEARS
from coterie.estimation.advice import Advice, advise
from coterie.estimation.conventions import Array, Ints
from coterie.estimation.rates import BernoulliRates
from coterie.estimation.risks import multinomial_mixture, read_counts
from reproductions.claims import Claim, Margin, Share
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.generate import gaussian_clients, mixture_clients

ALIASES = {"alone": "local", "together": "global", "shrunk": "shrunk", "groups": "clustered"}
METHODS = tuple(ALIASES.values())
Gaps = dict[str, tuple[float, float]]  # advised minus method: mean and standard error


def _gaps(loss: dict[str, Array], chosen: Array) -> Gaps:
    """Mean and standard error over units (clients, years) of the advised loss minus each method's."""
    out = {}
    for name, rival in loss.items():
        gap = chosen - rival
        out[name] = (float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap))))
    return out


def _test_losses(decision: Decision, test: tuple[Array, Array, Ints]) -> dict[str, Array]:
    """Held-out rows' loss under each method fitted to the training rows, by the metric of the decision."""
    seen = decision.table
    owner = seen.clients.get_indexer(pd.Index(test[2]))
    y = test[1] if seen.classes is None else seen.classes.get_indexer(pd.Index(test[1]))
    held = Table(test[0], np.asarray(y, np.float64), owner, seen.clients, seen.names, seen.classes)
    loss = LOSSES[decision.kind][decision.metric]
    return {
        alias: loss(held, Predictions(decision.predictors[name].outputs(test[0], test[2])))
        for name, alias in ALIASES.items()
    }


def _decided(X: Array, y: Array, groups: Ints, kind: str) -> Decision:
    table = make_table(X, y, groups, kind, None)
    options: dict[str, Any] = plan(table, (0, 1, 2))
    return decide_table(table, **options)


def judge_federation(federation: ct.Federation) -> tuple[str, Gaps]:
    """Advice from the clients' training rows, judged on their test rows; wide columns as components of both."""
    train, test = federation.rows("train"), federation.rows("test")
    both = np.concatenate([train[0], test[0]]).astype(np.float64)
    outputs = federation.n_outputs if federation.n_outputs > 2 else 1
    projection = principal(both, outputs)
    X = both if projection is None else projection.columns(both)
    told = _decided(X[: len(train[0])], train[1], train[2], federation.kind)
    way, losses = ALIASES[told.recommendation], _test_losses(told, (X[len(train[0]) :], test[1], test[2]))
    has, owner = np.unique(test[2], return_inverse=True)
    sizes = np.bincount(owner)
    means = {name: np.bincount(owner, loss, len(has)) / sizes for name, loss in losses.items()}
    return way, _gaps(means, means[way])


def judge_heart(folds: int = 5) -> tuple[str, Gaps]:
    """Four hospitals are too few to average over: every patient is held out once, hospitals count alike."""
    federation = ct.datasets.heart(test_fraction=0.0)
    X, y, groups = federation.rows()
    fold = np.random.default_rng(0).permutation(len(y)) % folds
    loss = {name: np.empty(len(y)) for name in METHODS}
    chosen, advice = np.empty(len(y)), []
    for f in range(folds):
        train, test = fold != f, fold == f
        told = _decided(X[train], y[train], groups[train], federation.kind)
        new = _test_losses(told, (X[test], y[test], groups[test]))
        for name, values in new.items():
            loss[name][test] = values
        advice.append(ALIASES[told.recommendation])
        chosen[test] = new[advice[-1]]
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


SMALL = ("digits", "heart", "elections")  # when quick


def cells(scale: Scale) -> Cells:
    return {name: judge for name, judge in DATA.items() if scale == "paper" or name in SMALL}


def measure(judge: Any, seed: int, scale: Scale) -> Measured:
    advice, gaps = judge()
    return {"advice": advice, "gaps": {name: [round(mean, 6), round(error, 6)] for name, (mean, error) in gaps.items()}}


def rows(found: Records) -> list[Row]:
    out = []
    for name in found.values:
        told = found.of(name)[0]
        for method, (mean, error) in told["gaps"].items():
            if mean or error:
                what = f"{name}, advice {told['advice']}: minus {method}"
                out.append(Row(what, None, [mean], digits=4, own_error=error))
    return out


def claims(found: Records) -> list[Claim]:
    margins = [
        Margin(f"0.02 less {row.what}", [0.02 - value for value in row.ours], own_error=row.own_error or 0.0)
        for row in rows(found)
    ]
    told = max(rows(found), key=lambda row: row.mean)
    says = "No method is better than the advised one by 0.02 nats or squared units."
    return [Claim(says, margins, f"On {len(found.values)} data sets; most in {told.what}, {told.mean:+.4f}.")]


def draw(found: Records) -> Figure:
    return beside(rows(found), "loss of the advised method minus that of the other")


def synthetic(name: Any, seed: int, scale: Scale) -> Measured:
    """Predicted squared error of each method on synthetic clients (m = 300, d = 3), and the advice."""
    rng = np.random.default_rng(seed)
    if name == "form three groups":
        data: Any = mixture_clients(300, 5, [[-1, 0, 0], [1, 0, 0], [0, 2, 0]], noise_variance=1.0, rng=rng)
    else:
        samples, variance = {
            "differ a little": (5, 0.2),
            "are equal": (5, 0.0),
            "differ a lot, much data": (50, 100.0),
        }[name]
        data = gaussian_clients(300, samples, 3, prior_variance=variance, noise_variance=1.0, rng=rng)
    told = advise(samples=data.samples)
    risk = told.table.set_index("method")["risk"]
    return {method: round(float(risk[method]), 5) for method in METHODS} | {"advice": told.recommendation}


RIGHT = {
    "differ a little": "shrunk",
    "are equal": "global",
    "differ a lot, much data": "local",
    "form three groups": "clustered",
}


def synthetic_rows(found: Records) -> list[Row]:
    return [
        Row(f"clients {name}: {method}", None, found.numbers(name, method), digits=4)
        for name in found.values
        for method in METHODS
    ]


def synthetic_claims(found: Records) -> list[Claim]:
    told = {name: [one["advice"] for one in found.of(name)] for name in found.values}
    right = [advice.startswith(RIGHT[name]) for name, said in told.items() for advice in said]
    words = "; ".join(
        f"clients {name}: " + ", ".join(f"{kind} {said.count(kind)}×" for kind in dict.fromkeys(said))
        for name, said in told.items()
    )
    margins = [Share("share of data sets less 0.8", right, 0.8)]
    return [
        Claim(
            "The advice is the method made for the clients at hand, in four data sets of five at least.",
            margins,
            f"{words}.",
        )
    ]


def wide(found: Records) -> pd.DataFrame:
    """A line a data set: the advised method's loss minus that of each."""
    lines = []
    for name in found.values:
        told = found.of(name)[0]
        gaps = {method: told["gaps"].get(method, [0.0, 0.0]) for method in METHODS}
        shown = {
            method: f"{mean:+.4f} ± {error:.4f}" if mean or error else "" for method, (mean, error) in gaps.items()
        }
        lines.append({"data": name, "advice": told["advice"]} | shown)
    return pd.DataFrame(lines)


EXPERIMENT = Experiment(
    name="advice",
    work="Beyond the papers",
    shows="Is the advice right on real data?",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="not in the paper",
    wide=wide,
    needs=("all files of COTERIE_DATA (paper scale)",),
    seeds={"quick": 1, "paper": 1},
    setting=lambda scale: (
        "Loss of the advised method on data kept back minus that of each method, ± a standard error over clients "
        "(elections: years; heart: patients); below zero the advice was better."
    ),
)
SYNTHETIC = Experiment(
    name="advice-synthetic",
    work="Beyond the papers",
    shows="Advice on four kinds of synthetic clients",
    cells=lambda scale: {name: name for name in RIGHT},
    measure=synthetic,
    rows=synthetic_rows,
    claims=synthetic_claims,
    draw=lambda found: beside([r for r in synthetic_rows(found) if r.mean < 5], "predicted squared error"),
    seeds={"quick": 1, "paper": 20},
    size="not in the paper",
    setting=lambda scale: "Predicted squared error of the four methods; 300 clients in three dimensions.",
)
