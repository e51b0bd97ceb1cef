"""Optimiser settings chosen on a validation split of the training rows; test rows are never looked at.

A small grid of learning rates and weight decays is run once each with full-batch momentum steps, scored every few rounds
on the validation rows (mean over clients of the loss), and the best (settings, rounds) is kept. The same seed gives the
same choice.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.federation import Federation
from coterie.errors import Diverged
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.settings import setting, with_setting
from coterie.training.run import fit

RATES, DECAYS = (0.02, 0.2), (0.0, 0.03, 0.3)
OWN_RATES = (0.05, 0.5)  # of algorithms that take plain gradient steps
MOST_ROUNDS, EVERY = 15, 5
_MOST_CLIENTS = 40  # settings are tuned on at most so many clients
_FULL_BATCH = 2000  # clients with more training rows take mini-batches
_VALIDATION = {"cross_entropy": "log_loss", "bce": "log_loss", "mse": "mse"}


@dataclass(frozen=True, eq=False)
class Tuned:
    """The algorithm with the chosen settings, the chosen number of rounds, and every candidate's validation loss."""

    algorithm: Any
    rounds: int
    candidates: pd.DataFrame


def tune(
    algorithm: Any,
    federation: Federation,
    task: Task,
    *,
    rounds: int | None = None,
    seed: int = 0,
    engine: str | Any = "local",
) -> Tuned:
    """`rounds` fixes the number of rounds; None also chooses it. An algorithm without a learning rate is kept as it is."""
    part = validation_split(federation, seed=seed)
    batch = None if np.median(federation.n_train) <= _FULL_BATCH else 100
    loss = _VALIDATION.get(task.loss) if isinstance(task.loss, str) else None
    judge = replace(task, metric=loss or task.metrics[0])
    # An algorithm with a rate of its own takes one step per round where LocalSGD takes ten.
    longer = 1 if isinstance(setting(algorithm, "local"), LocalSGD) else 10
    most, every = longer * MOST_ROUNDS, longer * EVERY
    spans = (most, every) if rounds is None else (rounds, rounds)
    found: list[tuple[Any, int, float]] = []
    for shrink in (1.0, 0.01):  # when even the smallest rate diverges, much smaller ones
        for candidate in _grid(algorithm, shrink, batch):
            scores = _validate(candidate, part, judge, spans, seed, engine)
            found += [(candidate, r, v) for r, v in scores if np.isfinite(v)]
        if found:
            break
    columns = ["algorithm", "rounds", "validation"]
    table = pd.DataFrame([(repr(a), r, v) for a, r, v in found], columns=columns)
    if not found:
        return Tuned(algorithm, rounds or most, table)
    chosen, length, _ = found[int(np.argmax([judge.sign * v for _, _, v in found]))]
    return Tuned(chosen, length, table)


def _grid(algorithm: Any, shrink: float, batch: int | None) -> list[Any]:
    if isinstance(setting(algorithm, "local"), LocalSGD):
        return [
            with_setting(algorithm, "local", LocalSGD(10, lr * shrink, batch, momentum=0.9, weight_decay=decay))
            for lr, decay in product(RATES, DECAYS)
        ]
    if is_dataclass(algorithm) and isinstance(getattr(algorithm, "lr", None), float):
        return [replace(algorithm, lr=lr * shrink) for lr in OWN_RATES]  # type: ignore[type-var]
    return [algorithm]


def _validate(
    algorithm: Any, part: Federation, task: Task, spans: tuple[int, int], seed: int, engine: Any
) -> list[tuple[int, float]]:
    """(round, score on the validation rows) every few rounds; nothing when the run diverges."""
    most, every = spans
    try:
        run = fit(
            algorithm, part, task, rounds=most, seed=seed, engine=engine, evaluate_every=every, alone=False,
            progress=False,
        )  # fmt: skip
    except Diverged:
        return []
    if not run.about["finished"]:
        raise KeyboardInterrupt  # fit only ends the round and hands back what it has
    scored = run.history[["round", f"test_{task.metrics[0]}"]].dropna()
    return [(int(r), float(v)) for r, v in scored.to_numpy()]


def validation_split(federation: Federation, fraction: float = 0.25, seed: int = 0) -> Federation:
    """Only the training rows of (at most 40) clients; a share of each client's is held out as its test rows."""
    if len(federation) > _MOST_CLIENTS:
        chosen = np.random.default_rng([seed, 1]).choice(len(federation), _MOST_CLIENTS, replace=False)
        federation = federation.subset(federation.clients[np.sort(chosen)])
    return federation.holdout(fraction, seed)
