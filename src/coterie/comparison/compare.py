"""compare: several algorithms on the same clients; who gains, who loses, and what to do.

Every method, training alone included, gets its own optimiser settings from `tuning` (never from test rows). With a
function `seed → Federation` every seed also draws a new train/test split, which says more about small clients than new
start weights do. The standard error of a gain is that of the paired bootstrap over test rows, plus the variance over
seeds; what counts as a clear gain says `training/gains.py`. Only `compare` and `Comparison.coalition` train.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.algorithms import ALGORITHMS
from coterie.algorithms.local import Local
from coterie.comparison import verdict
from coterie.comparison.tuning import MOST_ROUNDS, tune
from coterie.data.federation import Federation
from coterie.disk import write_text, writing
from coterie.errors import ConfigError, DataError
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.metrics import METRICS
from coterie.learning.task import Task
from coterie.settings import setting
from coterie.text import suggest
from coterie.training.bootstrap import bootstrap_scores, column_mean, gain_error
from coterie.training.gains import MARKS, NO_SCORE, Floats, interval, mark
from coterie.training.participation import Coalition, Participation, audit
from coterie.training.result import Result
from coterie.training.run import fit

DEFAULT = ("local", "fedavg", "finetuned")

Split = Callable[[int], Federation]
Note = Callable[[str, int], None]


@dataclass(frozen=True, eq=False)
class Comparison:
    """`table`, `gains`, `errors` and `marks` have a row a method and a column a client."""

    table: pd.DataFrame
    """Mean over seeds of the first metric."""
    gains: pd.DataFrame
    """What a client gains over training alone; positive is better, whatever the metric."""
    errors: pd.DataFrame
    """Standard errors of the gains."""
    marks: pd.DataFrame
    """"gains", "loses", "no clear change" or "no score"."""
    metric: str
    scores: pd.DataFrame
    """Every metric by method, seed and client."""
    curves: pd.DataFrame
    """The history of every method and seed."""
    settings: pd.DataFrame
    """What each method ran with, by method and seed."""
    clusters: pd.DataFrame
    """The groups each method found (first seed), a row a method."""
    overview: pd.DataFrame
    """One row a client: rows and targets."""
    about: dict[str, Any]
    results: dict[str, tuple[Result, ...]]

    @property
    def methods(self) -> list[str]:
        return [str(m) for m in self.table.index]

    def who(self, method: str, mark: str) -> list[str]:
        """The clients with a mark under a method."""
        return [str(c) for c, m in self.marks.loc[method].items() if m == mark]

    def cell(self, method: str, client: str) -> tuple[float, float, str]:
        """Score, gain and mark."""
        where: Any = (method, client)
        return float(self.table.loc[where]), float(self.gains.loc[where]), str(self.marks.loc[where])

    def average(self, method: str) -> tuple[float, str]:
        """The mean gain over clients and its mark; a mean over many can be clear when no single client's gain is."""
        gains, errors = (part.T[method].dropna().to_numpy() for part in (self.gains, self.errors))
        if not len(gains):
            return float("nan"), NO_SCORE
        gain, error = float(gains.mean()), float(np.linalg.norm(errors)) / len(gains)
        return gain, str(mark(gain, *interval(gain, error), self.overview["test"].sum()))

    @property
    def best(self) -> str | None:
        """The way to learn together with the largest mean gain."""
        others = [m for m in self.methods if m != "local"]
        return str(self.gains.loc[others].mean(axis=1).idxmax()) if others else None

    @cached_property
    def _audit(self) -> Participation | None:
        return None if self.best is None else audit(self.results[self.best])

    def participation(self) -> Participation | None:
        """Who would stay with the best method and who would leave, over all seeds; None without a method to join."""
        return self._audit

    def coalition(self, max_rounds: int = 10) -> Coalition | None:
        """Who is left with the best method when leavers leave. Trains again without them, so it is never called for you:
        pass what it returns on to `save`, `write_report` and `comparison_tables`."""
        return None if self._audit is None else self._audit.coalition(max_rounds)

    def verdict(self, coalition: Coalition | None = None) -> str:
        """In plain words: who gains, who loses, what to do; and who would stay, when a `coalition()` is passed."""
        stay = "" if coalition is None else f" Would they stay? {coalition.summary()}"
        return verdict.words(self) + stay

    def summary(self) -> pd.DataFrame:
        """A row a method: mean score, mean gain, worst gain and how many clients gain, lose or see no clear change."""
        marks = {f"clients: {m}": (self.marks == m).sum(axis=1) for m in MARKS}
        return pd.DataFrame(
            {
                f"mean {self.metric}": self.table.mean(axis=1),
                "mean gain": self.gains.mean(axis=1),
                "worst gain": self.gains.min(axis=1),
                **marks,
            }
        )

    def save(self, folder: str | Path, coalition: Coalition | None = None) -> Path:
        """table.csv, gains.csv (with errors and marks, a row per method and client), long tables as Parquet, verdict.txt;
        coalition.csv with the steps of a `coalition()`, when it is passed."""
        folder = Path(folder)
        parts = {"score": self.table, "gain": self.gains, "standard_error": self.errors, "mark": self.marks}
        long = pd.concat({name: part.stack() for name, part in parts.items()}, axis=1)
        tables = {"table": self.table, "gains": long, "clients": self.overview, "clusters": self.clusters}
        tables |= {} if self._audit is None else {"participation": self._audit.table}
        tables |= {} if coalition is None else {"coalition": coalition.history}
        for name, table in tables.items():
            write_text(folder / f"{name}.csv", table.to_csv())
        write_text(folder / "settings.csv", self.settings.to_csv(index=False))
        for name, table in {"scores": self.scores, "curves": self.curves}.items():
            with writing(folder / f"{name}.parquet") as partial:
                table.to_parquet(partial)
        write_text(folder / "verdict.txt", self.verdict(coalition) + "\n")
        write_text(folder / "about.json", json.dumps(self.about, indent=1, default=str))
        return folder


def compare(
    federation: Federation | Split,
    task: Task | None = None,
    algorithms: Sequence[str | Any] | Mapping[str, Any] = DEFAULT,
    rounds: int | None = None,
    seeds: int | Sequence[int] = 3,
    *,
    metric: str | None = None,
    engine: str | Any = "local",
    note: Note | None = None,
) -> Comparison:
    """Run every algorithm on the same clients and tell each what it gains over training alone.

    federation: the data, or a function `seed → Federation` that draws a new split for every seed. algorithms: registry
    names (tuned on validation rows) or objects (used as they are); training alone is always the first row. rounds: None
    chooses them too. metric: what gains are measured in (default: the task's first). note: called with (method, seed)
    before each run.
    """
    split: Split = (lambda seed: federation) if isinstance(federation, Federation) else federation
    chosen = [int(s) for s in (range(seeds) if isinstance(seeds, int) else seeds)]
    if not chosen or (rounds is not None and rounds < 1):
        raise ConfigError(f"compare needs at least one seed and one round; got seeds={seeds!r}, rounds={rounds}.")
    methods = _methods(algorithms)
    runs: dict[str, list[Result]] = {name: [] for name in methods}
    draws: dict[str, list[Floats]] = {name: [] for name in methods}
    tuned: dict[tuple[Any, ...], tuple[Any, int]] = {}
    for seed in chosen:
        data = split(seed)
        work = _task(task, data, metric)
        for name, algorithm in methods.items():
            if note is not None:
                note(name, seed)
            ready, length = algorithm, rounds or MOST_ROUNDS
            if isinstance(algorithm, type):
                key = (name, id(data))  # one split: tuned once
                if key not in tuned:
                    best = tune(algorithm(), data, work, rounds=rounds, seed=seed, engine=engine)
                    tuned[key] = best.algorithm, best.rounds
                ready, length = tuned[key]
            alone: bool | Result = runs["local"][-1] if name != "local" else False
            result = fit(
                ready, data, work, rounds=length, seed=seed, engine=engine, alone=alone, progress=False,
                evaluate_every=1 if len(data) <= 50 else max(length // 5, 1),
            )  # fmt: skip
            if not result.about["finished"]:
                raise KeyboardInterrupt  # fit only ends the round and hands back what it has
            runs[name].append(result)
            draws[name].append(bootstrap_scores(result))
    return _collect(runs, draws, chosen, redrawn=not isinstance(federation, Federation))


def _methods(algorithms: Sequence[str | Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Name → class (to be tuned) or object (to be used as it is); training alone first."""
    if isinstance(algorithms, str):
        algorithms = [a.strip() for a in algorithms.split(",")]
    items = algorithms.items() if isinstance(algorithms, Mapping) else [(None, a) for a in algorithms]
    methods: dict[str, Any] = {}
    for given, algorithm in items:
        if isinstance(algorithm, str):
            if algorithm not in ALGORITHMS:
                raise ConfigError(f"There is no algorithm {algorithm!r}. {suggest(algorithm, ALGORITHMS)}")
            given, algorithm = given or algorithm, ALGORITHMS[algorithm]
        name = given or _name(type(algorithm) if not isinstance(algorithm, type) else algorithm)
        if name in methods and given is not None:
            raise ConfigError(f"The method {name!r} is named twice. Name every method once.")
        count = 2
        while name in methods:
            name, count = f"{name.split(' ')[0]} {count}", count + 1
        methods[name] = algorithm
    if not methods:
        raise ConfigError(f"compare needs at least one algorithm; got none. {suggest('', ALGORITHMS)}")
    if "local" not in methods:
        optimisers = (setting(a, "local") for a in methods.values())
        given_local = next((found for found in optimisers if isinstance(found, LocalSGD)), None)
        methods["local"] = Local if given_local is None else Local(given_local)
    return {"local": methods.pop("local"), **methods}


def _name(kind: type) -> str:
    return next((name for name, known in ALGORITHMS.items() if known is kind), kind.__name__.lower())


def _task(task: Task | None, federation: Federation, metric: str | None) -> Task:
    work = Task.default(federation) if task is None else task
    if metric is None:
        return work
    if metric not in METRICS:
        raise ConfigError(f"There is no metric {metric!r}. {suggest(metric, METRICS)}")
    numbers = metric in ("mse", "r2")
    if numbers != (federation.kind == "regression"):
        raise ConfigError(
            f"The metric {metric!r} does not fit {federation.kind}. Choose one of {', '.join(work.metrics)}."
        )
    return replace(work, metric=(metric, *(m for m in work.metrics if m != metric)))


def _collect(
    runs: dict[str, list[Result]], draws: dict[str, list[Floats]], seeds: list[int], *, redrawn: bool
) -> Comparison:
    base = runs["local"]
    data, task = base[0].federation, base[0].task
    if any(not r.clients.equals(data.clients) for results in runs.values() for r in results):
        raise DataError("Every seed's split must have the same clients in the same order. Split rows, not clients.")
    metric, sign = task.metrics[0], task.sign
    clients = pd.Index([str(c) for c in data.clients], name="client")
    n_test = np.mean([r.federation.n_test for r in base], axis=0)
    overlap = n_test / data.n_samples if redrawn else np.ones(len(data))
    rows_tested = np.sum([r.federation.n_test for r in base], axis=0) if redrawn else n_test

    table, gains, errors = {}, {}, {}
    for name, results in runs.items():
        scores = np.stack([r.scores()[metric].to_numpy() for r in results])
        alone = np.stack([r.scores()[metric].to_numpy() for r in base])
        table[name], gain = column_mean(scores), sign * (scores - alone)
        gains[name] = column_mean(gain)
        errors[name] = gain_error(gain, [a - b for a, b in zip(draws[name], draws["local"], strict=True)], overlap)
    frames = [
        pd.DataFrame.from_dict(part, orient="index", columns=clients).rename_axis("method")
        for part in (table, gains, errors)
    ]
    return Comparison(
        table=frames[0],
        gains=frames[1],
        errors=frames[2],
        marks=_marks(frames[1], frames[2], rows_tested),
        metric=metric,
        scores=_long(runs, seeds, lambda r: r.scores().set_axis(clients, axis=0).rename_axis("client").reset_index()),
        curves=_long(runs, seeds, lambda r: r.history),
        settings=_settings(runs, seeds),
        clusters=pd.DataFrame({n: r[0].clusters.to_numpy() for n, r in runs.items()}, index=clients).T.rename_axis(
            "method"
        ),
        overview=data.describe().set_axis(clients, axis=0),
        about=_about(data, task, seeds, redrawn),
        results={name: tuple(results) for name, results in runs.items()},
    )


def _marks(gains: pd.DataFrame, errors: pd.DataFrame, rows_tested: Floats) -> pd.DataFrame:
    marks = mark(gains, *interval(gains, errors), rows_tested)
    return pd.DataFrame(marks, index=gains.index, columns=gains.columns).astype(object)


def _long(runs: dict[str, list[Result]], seeds: list[int], part: Callable[[Result], pd.DataFrame]) -> pd.DataFrame:
    pieces = [
        part(result).assign(method=name, seed=seed)
        for name, results in runs.items()
        for seed, result in zip(seeds, results, strict=True)
    ]
    long = pd.concat(pieces, ignore_index=True)
    return long[["method", "seed", *(c for c in long.columns if c not in ("method", "seed"))]]


def _settings(runs: dict[str, list[Result]], seeds: list[int]) -> pd.DataFrame:
    rows = [
        {
            "method": name,
            "seed": seed,
            "rounds": result.about["rounds"],
            "algorithm": brief(result.evaluation.algorithm),
        }
        for name, results in runs.items()
        for seed, result in zip(seeds, results, strict=True)
    ]
    return pd.DataFrame(rows)


def brief(value: Any) -> str:
    """A dataclass as a short text: only what differs from its defaults."""
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    shown = []
    for f in fields(value):
        usual = f.default_factory() if f.default_factory is not MISSING else f.default
        mine = getattr(value, f.name)
        if mine != usual:
            shown.append(f"{f.name}={brief(mine)}")
    return f"{type(value).__name__}({', '.join(shown)})"


def _about(data: Federation, task: Task, seeds: list[int], redrawn: bool) -> dict[str, Any]:
    return {
        "kind": data.kind,
        "classes": None if data.classes is None else [str(c) for c in data.classes],
        "clients": len(data),
        "rows": len(data.y),
        "features": data.n_features,
        "columns": None if data.columns is None else list(data.columns),
        "metrics": list(task.metrics),
        "lower_is_better": task.sign < 0,
        "seeds": seeds,
        "new_split_each_seed": redrawn,
        "model": str(task.skeleton).replace("\n", ""),
    }
