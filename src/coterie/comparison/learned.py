"""Learning algorithms in a comparison: tuned, trained on every split, and compared with their own tuned `local`.

A method that cannot run on these data is refused before anything is trained. A method that fails or diverges later is named
and left out, and the others are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from coterie.base.settings import setting
from coterie.base.text import suggest
from coterie.comparison.from_decision import about_data
from coterie.comparison.private import Private
from coterie.comparison.result import Comparison
from coterie.comparison.trained_scores import OfRows, OfSums
from coterie.comparison.tuning import MOST_ROUNDS, tune
from coterie.data.federation import Federation
from coterie.data.opening import Split
from coterie.errors import ConfigError, CoterieError, DataError, Diverged
from coterie.evidence.gains import column_mean, intervals
from coterie.evidence.gains import marks as marks_of
from coterie.evidence.rule import decide_scores
from coterie.learning.metrics import FOR_NUMBERS, METRICS
from coterie.learning.standardised import standardised
from coterie.learning.task import Task
from coterie.training.result import Result
from coterie.training.run import fit

Note = Callable[[str, int], None]
Progress = Callable[[str, int, float], None]
_TRIAL_CLIENTS = 4


@dataclass
class Runs:
    """The results so far."""

    results: dict[str, list[Result]]
    failed: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def drop(self, name: str, why: str) -> None:
        self.failed[name] = why
        self.results.pop(name)


@dataclass(frozen=True)
class Schedule:
    """How to train: rounds (None chooses them), seeds, engine, and the functions to call on the way."""

    rounds: int | None
    seeds: Sequence[int]
    engine: Any
    note: Note | None
    progress: Progress | None
    kept: Callable[[str, Result], None] | None = None  # called with every method and its result

    def tell(self, name: str, seed: int, done: int, total: int) -> None:
        if self.note is not None:
            self.note(name, seed)
        if self.progress is not None:
            self.progress(name, seed, done / total)


def train_all(split: Split, task: Task | None, methods: dict[str, Any], metric: str | None, how: Schedule) -> Runs:
    """Train every method on every split. Training alone must work; without it there is nothing to compare with."""
    runs = Runs({name: [] for name in methods})
    tuned: dict[tuple[Any, ...], tuple[Any, int]] = {}
    total, done = len(methods) * len(how.seeds), 0
    for seed in how.seeds:
        data = split(seed)
        work = task_for(task, data, metric)
        if seed == how.seeds[0]:
            _refuse_unfit(methods, data, work, how, metric)
        for name in [m for m in methods if m not in runs.failed]:
            how.tell(name, seed, done, total)
            done += 1
            try:
                alone = None if name == "local" else runs.results["local"][-1]
                if isinstance(methods[name], Private):
                    assert alone is not None
                    result = methods[name].simulate(seed, metric, how.engine, alone, runs.warnings)
                else:
                    ready, length = _ready(name, methods[name], data, work, seed, how, tuned, runs)
                    result = _fit(ready, data, work, length, seed, how, alone)
            except CoterieError as error:
                if name == "local":
                    raise
                runs.drop(name, str(error))
                continue
            runs.results[name].append(result)
            if how.kept is not None:
                how.kept(name, result)
    return runs


def _ready(
    name: str,
    algorithm: Any,
    data: Federation,
    work: Task,
    seed: int,
    how: Schedule,
    tuned: dict[tuple[Any, ...], tuple[Any, int]],
    runs: Runs,
) -> tuple[Any, int]:
    """The method with its settings: tuned once per split, or as it was passed."""
    if not isinstance(algorithm, type):
        return algorithm, how.rounds or MOST_ROUNDS
    key = (name, id(data))
    if key not in tuned:
        rounds = None if name == "local" else how.rounds  # the baseline may use as many rounds as it needs
        best = tune(algorithm(), data, work, rounds=rounds, seed=seed, engine=how.engine)
        tuned[key] = best.algorithm, best.rounds
        runs.warnings += [f"{name}, split {seed}: {warning}" for warning in best.warnings]
    return tuned[key]


def _fit(
    ready: Any, data: Federation, work: Task, length: int, seed: int, how: Schedule, alone: Result | None
) -> Result:
    often = max(length // 15, 1) if len(data) <= 50 else max(length // 5, 1)
    result = fit(
        ready, data, work, rounds=length, seed=seed, engine=how.engine, alone=alone or False, progress=False,
        evaluate_every=often if getattr(how.engine, "evaluates", True) else 0,
    )  # fmt: skip
    if not result.about["finished"]:
        raise KeyboardInterrupt  # fit only ends the round and hands back what it has
    if "warnings" in result.about:  # the loss exploded: finite numbers, but no model
        raise Diverged(None, "training", str(result.about["warnings"][0]))
    return result


def _refuse_unfit(methods: dict[str, Any], data: Federation, work: Task, how: Schedule, metric: str | None) -> None:
    """Run one round on a few clients, to refuse methods that cannot run on these data before the first training."""
    some = data.subset(data.clients[:_TRIAL_CLIENTS]) if len(data) > _TRIAL_CLIENTS else data
    for name, algorithm in methods.items():
        trial = algorithm() if isinstance(algorithm, type) else algorithm
        try:
            if isinstance(trial, Private):
                trial.try_out(how.seeds[0], metric, how.engine)
            elif setting(trial, "clusters", 0) is not None:  # else the number would be chosen
                fit(trial, some, work, rounds=1, engine=how.engine, alone=False, progress=False)
        except (ConfigError, DataError) as error:
            refusal = ConfigError(f"{name} cannot run on these data: {error}")
            refusal.cli = f"{name} cannot run on these data: {error.cli}"
            raise refusal from None
        except CoterieError:  # for example it diverged: other settings may do better
            continue


def task_for(task: Task | None, federation: Federation, metric: str | None) -> Task:
    """The task with the metric gains are measured in first, and numbers brought to one scale inside the model."""
    work = Task.default(federation) if task is None else task
    if metric is not None:
        if metric not in METRICS:
            raise ConfigError(f"There is no metric {metric!r}. {suggest(metric, METRICS)}")
        if (metric in FOR_NUMBERS) != (federation.kind == "regression"):
            raise ConfigError(
                f"The metric {metric!r} does not fit {federation.kind}. Choose one of {', '.join(work.metrics)}."
            )
        work = replace(work, metric=(metric, *(s for s in work.scorers if s.name != metric)))
    return standardised(work, federation)


def trained_comparison(runs: Runs, seeds: Sequence[int], *, redrawn: bool, given: OfSums | None = None) -> Comparison:
    """Scores, gains over the tuned local, errors, marks and the rule's answer; `given` is evidence that clients told."""
    base = runs.results["local"]
    data, task = base[0].federation, base[0].task
    if any(not r.clients.equals(data.clients) for results in runs.results.values() for r in results):
        raise DataError("Every seed's split must have the same clients in the same order. Split rows, not clients.")
    metric, sign = task.metrics[0], task.sign
    clients = pd.Index([str(c) for c in data.clients], name="client")
    n_test = np.mean([r.federation.n_test for r in base], axis=0)
    overlap = n_test / data.n_samples if redrawn else np.ones(len(data))
    alone = np.stack([r.scores()[metric].to_numpy() for r in base])
    sizes = np.stack([r.federation.n_test for r in base])
    evidence = given or OfRows(runs.results, float(overlap.mean()))
    table, gains, errors, bounds, marks = {}, {}, {}, {}, {}
    for name, results in runs.results.items():
        each = np.stack([r.scores()[metric].to_numpy() for r in results])
        gain = sign * (each - alone)
        table[name], gains[name] = column_mean(each), column_mean(gain)
        single = evidence.gains(name, gain, sizes, metric)
        errors[name] = single.error
        bounds[name], marks[name] = np.subtract(*intervals(single)[::-1]) / 2, marks_of(single)
    scores, proper = evidence.scores()
    verdict = decide_scores(scores, proper=proper)
    frames = [_frame(part, clients) for part in (table, gains, errors, bounds)]
    return Comparison(
        table=frames[0],
        gains=frames[1],
        errors=frames[2],
        half_widths=frames[3],
        marks=_frame(marks, clients).astype(object),
        metric=metric,
        scores=_long(
            runs.results, seeds, lambda r: r.scores().set_axis(clients, axis=0).rename_axis("client").reset_index()
        ),
        curves=_long(runs.results, seeds, lambda r: r.history),
        settings=_settings(runs.results, seeds),
        clusters=_frame({n: r[0].clusters.to_numpy() for n, r in runs.results.items()}, clients),
        overview=data.describe().set_axis(clients, axis=0),
        about=about_data(data, seeds)
        | {"metrics": list(task.metrics), "lower_is_better": task.sign < 0, "new_split_each_seed": redrawn}
        | {"model": str(task.skeleton).replace("\n", "")},
        results={name: tuple(results) for name, results in runs.results.items()},
        judgement=verdict,
        intervals=pd.DataFrame({m: verdict.bounds(m) for m in runs.results}, index=["low", "high"]).T,
        failed=dict(runs.failed),
        warnings=tuple(dict.fromkeys(runs.warnings)),
        regrouped={
            name: _frame({s: r.clusters.to_numpy() for s, r in zip(seeds, results, strict=True)}, clients).rename_axis(
                "fit"
            )
            for name, results in runs.results.items()
            if len(results) > 1
        },
    )


def _frame(parts: dict[Any, Any], clients: pd.Index[Any]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(parts, orient="index", columns=clients).rename_axis("method")


def _long(runs: dict[str, list[Result]], seeds: Sequence[int], part: Callable[[Result], pd.DataFrame]) -> pd.DataFrame:
    pieces = [
        part(result).assign(method=name, seed=seed)
        for name, results in runs.items()
        for seed, result in zip(seeds, results, strict=True)
    ]
    long = pd.concat(pieces, ignore_index=True)
    return long[["method", "seed", *(c for c in long.columns if c not in ("method", "seed"))]]


def _settings(runs: dict[str, list[Result]], seeds: Sequence[int]) -> pd.DataFrame:
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
