"""How settings are chosen on validation rows: for `compare`, for `grid`, for clients alone and for the papers' experiments.

A candidate is trained once and looked at on the way (`course`), until it has stopped improving (`stale`). Where the best
learning rate is the smallest or the largest that was tried, another one beyond it follows (`beyond_edge`). `best_of` keeps
one of several restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from coterie.base.arguments import ALGORITHM, check_arguments, several
from coterie.data.federation import Federation
from coterie.errors import ConfigError, Diverged
from coterie.exchange.messages import Algorithm
from coterie.learning.task import Task
from coterie.training.evaluation import Evaluation
from coterie.training.result import Result
from coterie.training.run import Run, fit
from coterie.training.validity import looked_at

Seen = TypeVar("Seen")


def course(
    algorithm: Algorithm,
    data: Federation,
    task: Task | None,
    looks: Collection[int],
    measure: Callable[[Evaluation], Seen],
    enough: Callable[[dict[int, Seen]], bool] = lambda seen: False,
    **options: Any,
) -> tuple[dict[int, Seen], bool]:
    """Train until the last of the rounds `looks`, or until `enough` was seen: (what was measured after each of these rounds,
    whether the training diverged). Other options are those of `fit`."""
    seen: dict[int, Seen] = {}

    def look(run: Run) -> None:
        if run.done in looks:
            seen[run.done] = measure(run.evaluation())
            if enough(seen):
                run.stop("no better on validation rows")

    try:
        made = fit(
            algorithm, data, task, rounds=max(looks), alone=False, progress=False, callbacks=[look], **options
        )  # fmt: skip
    except Diverged:
        return seen, True
    if not made.about["finished"] and "stopped" not in made.about:
        raise KeyboardInterrupt  # fit only ends the round and hands back what it has
    return seen, False


def rounds_to_look(rounds: int, every: int) -> list[int]:
    """Every so many rounds, and the last."""
    return [*range(every, rounds, every), rounds]


def stale(losses: Sequence[float], patience: int, least: float = 0.0) -> bool:
    """Whether the last `patience` losses are no better than the best before them by the share `least`."""
    return len(losses) > patience and lowest(losses[-patience:]) >= (1 - least) * lowest(losses[:-patience])


def lowest(losses: Sequence[float]) -> float:
    """The lowest finite loss; infinity without one."""
    return min((loss for loss in losses if math.isfinite(loss)), default=math.inf)


def beyond_edge(tried: Collection[float], best: float, factor: float) -> float | None:
    """The next learning rate where the best one is at an edge of those tried, or beyond it; None where it lies inside."""
    if min(tried) < best < max(tried):
        return None
    return best * factor if best == max(tried) else best / factor


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
