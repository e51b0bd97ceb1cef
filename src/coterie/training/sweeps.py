"""Several runs: the same run with several seeds, and a grid of settings with early stopping."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from multiprocessing import get_context
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.base.arguments import CALLABLE, FEDERATION, Rule, check_arguments, whole
from coterie.base.deprecated import today
from coterie.base.disk import said
from coterie.data.federation import Federation
from coterie.engines import LocalEngine
from coterie.errors import ConfigError, Diverged
from coterie.exchange.messages import Algorithm
from coterie.learning.task import Task
from coterie.training.result import Result
from coterie.training.run import fit
from coterie.training.tuning import course, rounds_to_look, stale
from coterie.training.validity import looked_at

Split = Callable[[int], Federation]
_SETTINGS = Rule(
    "a dict of lists, such as {'local.lr': [0.01, 0.1]}",
    lambda v: isinstance(v, Mapping) and all(isinstance(k, str) and isinstance(x, Sequence) for k, x in v.items()),
)
_LEAST = 1e-4  # a share of the loss: smaller improvements do not count


# ---- seeds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seeds:
    """`table`: every metric's mean over clients, as mean and standard error over seeds. `scores`: a row per seed."""

    results: tuple[Result, ...]
    seeds: tuple[int, ...]

    @property
    def scores(self) -> pd.DataFrame:
        rows = [result.scores().mean() for result in self.results]
        return pd.DataFrame(rows, index=pd.Index(self.seeds, name="seed"))

    @property
    def table(self) -> pd.DataFrame:
        scores = self.scores
        error = scores.std(ddof=1) / np.sqrt(len(scores))  # NaN for one seed
        return pd.DataFrame({"mean": scores.mean(), "error": error}).rename_axis("metric")

    def __str__(self) -> str:
        return "\n".join(f"{name}: {row['mean']:.4f} ± {row['error']:.4f}" for name, row in self.table.iterrows())


def fit_seeds(
    algorithm: Algorithm,
    federation: Federation | Split,
    task: Task | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    processes: int = 1,
    **options: Any,
) -> Seeds:
    """The same run with several seeds (5: 0 … 4). federation: the data, or a function `seed → Federation` that splits them
    again. processes: so many runs at a time, each in a process with one worker; then everything must be picklable (a model
    made by a named function, not a lambda). Other options are those of `fit`; each seed has a folder of its own in `out`."""
    check_arguments(locals(), federation=FEDERATION | CALLABLE)
    chosen = tuple(range(int(seeds))) if isinstance(seeds, int | Integral) else tuple(int(s) for s in seeds)
    if not chosen:
        raise ConfigError(f"fit_seeds needs at least one seed; got {seeds!r}.")
    if isinstance(federation, Federation):
        _note_look(federation, options)
    if processes == 1:
        return Seeds(tuple(_one(algorithm, federation, task, seed, options) for seed in chosen), chosen)
    options = {"engine": LocalEngine(workers=1), "progress": False} | options
    jobs = [(algorithm, federation, task, seed, options) for seed in chosen]
    try:
        pickle.dumps(jobs[0])
    except Exception as error:
        raise ConfigError(
            f"Runs in several processes must be picklable: {said(error)}. Make the model with a named function or "
            "ct.models, or use processes=1."
        ) from None
    with ProcessPoolExecutor(min(processes, len(jobs)), get_context("spawn")) as pool:
        return Seeds(tuple(pool.map(_one, *zip(*jobs, strict=True))), chosen)


def _note_look(data: Federation, options: dict[str, Any]) -> None:
    """Remember that scores of these rows, which are clear values, may be seen."""
    if (budget := options.get("privacy")) is None or budget.simulated:
        looked_at(data, "fit_seeds")


def _one(algorithm: Algorithm, federation: Any, task: Task | None, seed: int, options: dict[str, Any]) -> Result:
    data = federation if isinstance(federation, Federation) else federation(seed)
    if isinstance(data, Federation):
        _note_look(data, options)
    if options.get("out") is not None:
        options = options | {"out": Path(options["out"]) / f"seed-{seed}"}
    return fit(algorithm, data, task, seed=seed, **options)


# ---- a grid --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Grid:
    """`table` has a row per combination: its settings, the best validation loss, the round it was reached in and how many
    rounds were made. `best` and `rounds` are the winner's."""

    table: pd.DataFrame
    best: Algorithm
    rounds: int

    def fit(self, federation: Federation, task: Task | None = None, **options: Any) -> Result:
        """The winner on all training rows, for as many rounds as it needed."""
        return fit(self.best, federation, task, rounds=self.rounds, **options)


def grid(
    algorithm: Algorithm,
    settings: Mapping[str, Sequence[Any]],
    federation: Federation,
    task: Task | None = None,
    *,
    rounds: int = 50,
    every: int = 5,
    patience: int = 3,
    seed: int = 0,
    **options: Any,
) -> Grid:
    """Every combination of settings, such as `{"local.lr": [0.01, 0.1], "lam": [0.1, 1.0]}`, trained without the clients'
    validation rows (a quarter of the training rows, where they have none) and judged on them by the task's loss, mean over
    clients, after `every` rounds. A combination ends when `patience` evaluations in a row bring no improvement, or when it
    is worse than every finished combination was after as many rounds. Test rows are never used."""
    check_arguments(locals(), rounds=whole(1), settings=_SETTINGS)
    if not settings:
        raise ConfigError("grid needs settings to try, such as {'local.lr': [0.01, 0.1]}; got none.")
    looked_at(federation, "grid")
    data, names = federation.holdout(0.25, seed=seed), list(settings)
    paths: list[dict[int, float]] = []
    rows, candidates = [], []
    for values in product(*settings.values()):
        candidate = algorithm
        for name, value in zip(names, values, strict=True):
            candidate = with_path(candidate, name, value)
        path = _path(candidate, data, task, rounds_to_look(rounds, every), patience, paths, {"seed": seed} | options)
        paths.append(path)
        best = min(path, key=lambda r: path[r]) if path else 0
        rows.append((*values, path.get(best, float("inf")), best, max(path, default=0)))
        candidates.append(candidate)
    table = pd.DataFrame(rows, columns=[*names, "loss", "round", "rounds made"])
    winner = int(table["loss"].argmin())
    if not np.isfinite(table["loss"][winner]):
        raise Diverged(None, "grid", "Every combination of the grid diverged. Try smaller learning rates.")
    return Grid(table, candidates[winner], int(table["round"][winner]))


def _path(
    algorithm: Any,
    data: Federation,
    task: Task | None,
    looks: list[int],
    patience: int,
    others: list[dict[int, float]],
    options: dict[str, Any],
) -> dict[int, float]:
    """Validation losses by round."""

    def enough(path: dict[int, float]) -> bool:
        behind = [other[max(path)] for other in others if max(path) in other]
        late = bool(behind) and len(path) >= patience and min(path.values()) > max(behind)
        return late or stale(list(path.values()), patience, _LEAST)

    return course(algorithm, data, task, looks, lambda live: float(np.nanmean(live.test_losses())), enough, **options)[
        0
    ]


def with_path(owner: Any, path: str, value: Any) -> Any:
    """The same settings with one of them replaced; a dotted path goes into those it holds: "local.lr"."""
    name, _, rest = path.partition(".")
    (name,) = today(type(owner).__name__, {name: None})
    known = [f.name for f in fields(owner)] if is_dataclass(owner) and not isinstance(owner, type) else []
    if name not in known:
        raise ConfigError(f"{type(owner).__name__} has no setting {name!r}; it has {', '.join(known) or 'none'}.")
    return replace(owner, **{name: with_path(getattr(owner, name), rest, value) if rest else value})
