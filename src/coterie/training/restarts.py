"""Several independent runs; the one with the smallest training loss is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from coterie.arguments import ALGORITHM, check_arguments, several
from coterie.data.federation import Federation
from coterie.errors import ConfigError, Diverged
from coterie.exchange.messages import Algorithm
from coterie.learning.task import Task
from coterie.training.result import Result
from coterie.training.run import fit
from coterie.training.validity import looked_at


def best_of(
    restarts: int,
    algorithm: Algorithm | Sequence[Algorithm],
    federation: Federation,
    task: Task | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Several independent runs with seeds seed, seed + 1, … of an algorithm, or of each of several (a grid of step sizes);
    the one with the smallest mean training loss of the clients' own models is returned (C-1r: the choice may not use the
    truth, which no server knows). `about["restarts"]` lists all losses, algorithm by algorithm; a run that diverged has an
    infinite one."""
    check_arguments(locals(), algorithm=ALGORITHM | several("a list of them", ALGORITHM))
    candidates = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
    if not candidates:
        raise ConfigError("best_of needs at least one algorithm; got an empty list.")
    budget = options.get("privacy")
    if budget is not None and not budget.simulated and restarts * len(candidates) > 1:
        raise ConfigError(
            "best_of chooses by the clients' clear training losses, which no receipt covers; got a private run. Call fit "
            "once, or use Privacy(…, noise='simulation')."
        )
    looked_at(federation, "best_of")
    best: Result | None = None
    failure: Diverged | None = None
    losses: list[float] = []
    for candidate, r in product(candidates, range(restarts)):
        try:
            run = fit(candidate, federation, task, seed=seed + r, **options)
            loss = float(np.mean(run.evaluation.train_losses()))
        except Diverged as error:
            failure, loss = error, math.inf
        if loss < min(losses, default=math.inf):
            best = run
        losses.append(loss)
    if best is None:
        raise failure or Diverged(None, "best_of", "Every run of best_of ended with an infinite training loss.")
    return replace(best, about=best.about | {"restarts": losses})
