"""Optimiser settings chosen on a validation split of the training rows; test rows are never looked at.

A grid of learning rates and weight decays is run with full-batch momentum steps, scored every few rounds on the validation
rows (mean over clients of the loss). The grid is extended while its best rate is at an edge, and the rounds while the best
number is the last one; a run that no longer improves is stopped early. `warnings` name searches that did not converge. The
same seed gives the same choice.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from coterie.base.settings import setting, with_setting
from coterie.data.federation import Federation
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.standardised import ScaledSquares
from coterie.learning.task import Task
from coterie.training.tuning import beyond_edge, course, lowest, rounds_to_look, stale

RATES, DECAYS = (0.02, 0.2), (0.0, 0.03, 0.3)
OWN_RATES = (0.05, 0.5)  # of algorithms that take plain gradient steps
MOST_ROUNDS, EVERY = 15, 3
STEP = 5.0  # between an edge of the grid and the rate tried beyond it
_EXTENSIONS, _LONGER = 4, 4  # the grid grows by so many rates, the rounds double so many times
_PATIENCE = 3  # scores without a better one after which a run is stopped
_IMPROVES = 0.005  # a smaller share of the loss is no improvement
_MOST_CLIENTS = 40  # settings are tuned on at most so many clients
_FULL_BATCH = 2000  # clients with more training rows take mini-batches
_VALIDATION = {"cross_entropy": "log_loss", "bce": "log_loss", "mse": "mse"}


@dataclass(frozen=True, eq=False)
class Tuned:
    """The algorithm with the chosen settings, the chosen number of rounds, and every candidate's validation loss."""

    algorithm: Any
    rounds: int
    candidates: pd.DataFrame
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Trial:
    """How candidates are tried."""

    part: Federation
    task: Task
    seed: int
    engine: Any
    every: int

    def run(self, algorithm: Any, rounds: int) -> list[tuple[int, float]]:
        """(round, loss on the validation rows) every few rounds, as long as it improves; empty when it diverges."""
        column, sign = f"test_{self.task.metrics[0]}", self.task.sign
        looks = rounds_to_look(rounds, min(self.every, rounds))
        seen, diverged = course(
            algorithm, self.part, self.task, looks, lambda live: -sign * live.test_means()[column],
            lambda seen: stale(list(seen.values()), _PATIENCE), seed=self.seed, engine=self.engine,
        )  # fmt: skip
        return [] if diverged else list(seen.items())


def tune(
    algorithm: Any,
    federation: Federation,
    task: Task,
    *,
    rounds: int | None = None,
    seed: int = 0,
    engine: str | Any = "local",
) -> Tuned:
    """`rounds` fixes the number of rounds; None also chooses it. An algorithm without a learning rate is kept as it is.

    An algorithm whose number of clusters is open is tuned with three, and keeps it open."""
    batch = None if np.median(federation.n_train) <= _FULL_BATCH else 100
    # An algorithm with a rate of its own takes one step per round where LocalSGD takes ten.
    longer = 1 if isinstance(setting(algorithm, "local"), LocalSGD) else 10
    most, every = (longer * MOST_ROUNDS, longer * EVERY) if rounds is None else (rounds, rounds)
    trial = _Trial(validation_split(federation, seed=seed), _validation_task(task), seed, engine, every)
    grid = _Grid(algorithm, min(3, len(trial.part)), batch)
    found: dict[tuple[float, float], list[tuple[int, float]]] = {}
    for rate, decay in grid.first():
        found[rate, decay] = trial.run(grid.make(rate, decay), most)
    edge = _extend(grid, trial, found, most)
    scored = {key: scores for key, scores in found.items() if np.isfinite([v for _, v in scores]).any()}
    if not scored:
        return Tuned(algorithm, rounds or most, _table(grid, found), ("no learning rate tried gave a finite loss.",))
    best = min(scored, key=lambda key: np.nanmin([v for _, v in scored[key]]))
    warnings = [f"the best learning rate, {best[0]:g}, is the last one tried."] if edge else []
    if rounds is None:
        warnings += _lengthen(grid, trial, found, best, most)
    values = found[best]
    length = values[int(np.nanargmin([v for _, v in values]))][0]
    return Tuned(grid.keep(*best), length, _table(grid, found), tuple(warnings))


def _validation_task(task: Task) -> Task:
    known = _VALIDATION.get(task.loss) if isinstance(task.loss, str) else None
    if isinstance(task.loss, ScaledSquares):
        known = "mse"
    return replace(task, metric=known or task.scorers[0])


def _best_loss(scores: list[tuple[int, float]]) -> float:
    return lowest([v for _, v in scores])


def _extend(grid: _Grid, trial: _Trial, found: dict[tuple[float, float], list[tuple[int, float]]], most: int) -> bool:
    """Try rates beyond an edge of the grid while the best one is there. Returns whether it is at an edge in the end."""
    if not grid.tunable:
        return False
    for _ in range(_EXTENSIONS):
        rates = sorted({rate for rate, _ in found})
        rate, decay = min(found, key=lambda key: _best_loss(found[key]))
        if not np.isfinite(_best_loss(found[rate, decay])):
            rate = rates[0] / 10  # all diverged: much smaller ones
        if (beyond := beyond_edge(rates, rate, STEP)) is None:
            return False
        before = _best_loss(found.get((rate, decay), []))
        found[beyond, decay] = trial.run(grid.make(beyond, decay), most)
        if not _best_loss(found[beyond, decay]) < (1 - _IMPROVES) * before and np.isfinite(before):
            return False
    rates = sorted({rate for rate, _ in found})
    return min(found, key=lambda key: _best_loss(found[key]))[0] in (rates[0], rates[-1])


def _lengthen(
    grid: _Grid,
    trial: _Trial,
    found: dict[tuple[float, float], list[tuple[int, float]]],
    best: tuple[float, float],
    most: int,
) -> list[str]:
    """Double the rounds of the best settings while the last ones are the best; a warning when that never ends."""
    for _ in range(_LONGER):
        scores = found[best]
        values = [v for _, v in scores]
        if int(np.nanargmin(values)) < len(values) - 1:
            return []
        most *= 2
        again = trial.run(grid.make(*best), most)
        if not _best_loss(again) < (1 - _IMPROVES) * _best_loss(scores):
            return []
        found[best] = again
    values = [v for _, v in found[best]]
    late = int(np.nanargmin(values)) == len(values) - 1
    return [f"it was still improving after {most} rounds."] if late else []


def _table(grid: _Grid, found: dict[tuple[float, float], list[tuple[int, float]]]) -> pd.DataFrame:
    rows = [(repr(grid.make(*key)), r, v) for key, scores in found.items() for r, v in scores if np.isfinite(v)]
    return pd.DataFrame(rows, columns=["algorithm", "rounds", "validation"])


@dataclass(frozen=True)
class _Grid:
    """An algorithm with other learning rates and weight decays."""

    algorithm: Any
    clusters: int
    batch: int | None

    @property
    def _steps(self) -> bool:
        return isinstance(setting(self.algorithm, "local"), LocalSGD)

    @property
    def _own_rate(self) -> bool:
        return is_dataclass(self.algorithm) and isinstance(getattr(self.algorithm, "lr", None), float)

    @property
    def tunable(self) -> bool:
        return self._steps or self._own_rate

    def first(self) -> list[tuple[float, float]]:
        if self._steps:
            return list(product(RATES, DECAYS))
        return [(rate, 0.0) for rate in OWN_RATES] if self._own_rate else [(1.0, 0.0)]

    def keep(self, rate: float, decay: float) -> Any:
        if self._steps:
            local = LocalSGD(10, rate, self.batch, momentum=0.9, weight_decay=decay)
            return with_setting(self.algorithm, "local", local)
        return replace(self.algorithm, lr=rate) if self._own_rate else self.algorithm

    def make(self, rate: float, decay: float) -> Any:
        """The algorithm that is tried: the same with a number of clusters, where that is open."""
        ready = self.keep(rate, decay)
        return with_setting(ready, "clusters", self.clusters) if setting(ready, "clusters", 0) is None else ready


def validation_split(federation: Federation, fraction: float = 0.25, seed: int = 0) -> Federation:
    """Only the training rows of (at most 40) clients; a share of each client's is held out as its test rows."""
    if len(federation) > _MOST_CLIENTS:
        chosen = np.random.default_rng([seed, 1]).choice(len(federation), _MOST_CLIENTS, replace=False)
        federation = federation.subset(federation.clients[np.sort(chosen)])
    return federation.holdout(fraction, seed)
