"""How settings are chosen on validation rows: for `compare`, for `grid`, for clients alone and for the papers' experiments.

A candidate is trained once and looked at on the way (`course`), until it has stopped improving (`stale`). Where the best
learning rate is the smallest or the largest that was tried, another one beyond it follows (`beyond_edge`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from coterie.data.federation import Federation
from coterie.errors import Diverged
from coterie.exchange.messages import Algorithm
from coterie.learning.task import Task
from coterie.training.evaluation import Evaluation
from coterie.training.run import Run, fit

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
    """The lowest finite loss; infinity where there is none."""
    return min((loss for loss in losses if math.isfinite(loss)), default=math.inf)


def beyond_edge(tried: Collection[float], best: float, factor: float) -> float | None:
    """The next learning rate where the best one is at an edge of those tried, or beyond it; None where it lies inside."""
    if min(tried) < best < max(tried):
        return None
    return best * factor if best == max(tried) else best / factor
