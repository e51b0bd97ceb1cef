"""Optimiser settings chosen on a validation split of the training rows; test rows are never looked at.

A small grid of learning rates and weight decays is run once each with full-batch momentum steps, scored every few rounds
on the validation rows (mean over clients of the loss), and the best (settings, rounds) is kept. The same seed gives the
same choice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import Diverged
from coterie.federation import Federation
from coterie.local import LocalSGD
from coterie.run import fit
from coterie.task import Task

RATES, DECAYS = (0.02, 0.2), (0.0, 0.03, 0.3)
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
    """`rounds` fixes the number of rounds; None also chooses it. An algorithm without LocalSGD is kept as it is."""
    if not has_local(algorithm):
        return Tuned(algorithm, rounds or MOST_ROUNDS, pd.DataFrame())
    part = validation_split(federation, seed=seed)
    batch = None if np.median(federation.n_train) <= _FULL_BATCH else 100
    judge = replace(
        task, metric=_VALIDATION.get(task.loss, task.metrics[0]) if isinstance(task.loss, str) else task.metric
    )
    for shrink in (1.0, 0.01):  # when even the smallest rate diverges, much smaller ones
        grid = [
            LocalSGD(steps=10, lr=lr * shrink, batch_size=batch, momentum=0.9, weight_decay=decay)
            for lr, decay in product(RATES, DECAYS)
        ]
        rows = [row for local in grid for row in _candidate(algorithm, local, part, judge, rounds, seed, engine)]
        candidates = pd.DataFrame(rows, columns=["lr", "weight_decay", "rounds", "validation", "local"])
        candidates = candidates[candidates["validation"].notna()]
        if len(candidates):
            break
    else:
        return Tuned(algorithm, rounds or MOST_ROUNDS, candidates.drop(columns="local"))
    best = candidates.iloc[int(np.argmax(judge.sign * candidates["validation"].to_numpy()))]
    chosen = with_local(algorithm, best["local"])
    return Tuned(chosen, int(best["rounds"]), candidates.drop(columns="local").reset_index(drop=True))


def _candidate(
    algorithm: Any, local: LocalSGD, part: Federation, task: Task, rounds: int | None, seed: int, engine: Any
) -> list[tuple[float, float, int, float, LocalSGD]]:
    every = EVERY if rounds is None else max(rounds, 1)
    try:
        run = fit(
            with_local(algorithm, local), part, task, rounds=MOST_ROUNDS if rounds is None else rounds, seed=seed,
            engine=engine, evaluate_every=every, alone=False, progress=False,
        )  # fmt: skip
    except Diverged:
        return []
    if not run.about["finished"]:
        raise KeyboardInterrupt  # fit only ends the round and hands back what it has
    column = f"test_{task.metrics[0]}"
    if column not in run.history:
        return []
    scored = run.history[["round", column]].dropna()
    return [
        (local.lr, local.weight_decay, int(r), float(v), local)
        for r, v in zip(scored["round"], scored[column], strict=True)
        if np.isfinite(v)
    ]


def validation_split(federation: Federation, fraction: float = 0.25, seed: int = 0) -> Federation:
    """Only the training rows of (at most 40) clients; a share of each client's is held out as its test rows."""
    if len(federation) > _MOST_CLIENTS:
        chosen = np.random.default_rng([seed, 1]).choice(len(federation), _MOST_CLIENTS, replace=False)
        federation = federation.subset(federation.clients[np.sort(chosen)])
    return federation.holdout(fraction, seed)


# ---- where an algorithm keeps its LocalSGD ---------------------------------------------------------------------------


def _inner(algorithm: Any) -> str | None:
    """The field with the optimiser, or with the algorithm that has it."""
    if not is_dataclass(algorithm):
        return None
    names = {f.name for f in fields(algorithm)}
    if "local" in names and isinstance(getattr(algorithm, "local", None), LocalSGD):
        return "local"
    return "base" if "base" in names and has_local(getattr(algorithm, "base", None)) else None


def has_local(algorithm: Any) -> bool:
    return _inner(algorithm) is not None


def with_local(algorithm: Any, local: LocalSGD) -> Any:
    """The same algorithm with another optimiser."""
    name = _inner(algorithm)
    if name is None:
        return algorithm
    return replace(algorithm, **{name: local if name == "local" else with_local(algorithm.base, local)})
