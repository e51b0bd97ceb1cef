"""How a firm improves without passing a target: the inner loop of Algorithm 5 (steps 2c and 2d, section 3.4).

M. Werner, "Collaborative Learning: Aligning Goals and Outcomes", 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html.

`climbing` is a generator that makes all decisions and does no training. It yields a `Step` when it needs a training
step and expects an `Offer` (None ends the climb). It yields a `Measure` when it needs the quality of a state and expects
a number (None ends the climb). For analytic losses `climb` answers by calling functions. For networks the algorithm
`DefectionFree` answers by asking the firms.

Departures from the text (errata EI-4, EI-5): nothing guarantees a convex loss, so a step that passes the target or
lowers the quality is taken back and made shorter; and the loop ends at the target instead of beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")


class Climb(NamedTuple, Generic[S]):
    """A state after climbing, its quality, and the sum of the accepted step sizes."""

    state: S
    quality: float
    size: float


@dataclass(frozen=True)
class Step(Generic[S]):
    """Wanted: a training step from `state`, whose quality is `gap` below the target. `number` counts the steps."""

    state: S
    gap: float
    number: int


@dataclass(frozen=True)
class Measure(Generic[S]):
    """Wanted: the quality of `state`."""

    state: S


@dataclass(frozen=True)
class Offer(Generic[S]):
    """A training step: `at(size)` is the state after a step of that size.

    `first` is the size to try first. None tries the whole step (size 1) or, later, twice the last size that helped.
    `unit` is what a step of size 1 adds to the sum of step sizes."""

    at: Callable[[float], S]
    first: float | None = None
    unit: float = 1.0


Need = Step[S] | Measure[S]
Climbing = Generator[Need[S], Offer[S] | float | None, Climb[S]]


def climbing(
    state: S,
    quality: float,
    target: float,
    *,
    max_steps: int,
    tolerance: float,
    max_halvings: int,
    soft: bool = False,
    stochastic: bool = False,
) -> Climbing[S]:
    """Improve `state` by at most `max_steps` steps, without passing `target` or lowering the quality.

    The climb ends when the quality is within `tolerance` of the target, or when a step does not help however short.
    soft: growing beyond the target is allowed where no measurement shows a gain below it; then the smallest gain seen
    beyond it is taken. An accuracy on few rows can be that coarse.
    stochastic: the next step sees other rows, so the climb goes on after a step that does not help. A step that passes
    the target is cut where a straight line meets the target, if that is less than half of it."""
    total, usual = 0.0, 1.0
    for number in range(max_steps):
        if target - quality <= tolerance:
            break
        offer = yield Step(state, target - quality, number)
        if not isinstance(offer, Offer):
            break
        first = usual if offer.first is None else offer.first
        now = Climb(state, quality, 0.0)
        found = yield from _shortened(now, target, offer, first, max_halvings, soft, stochastic)
        if found is None or (found.size == 0 and not stochastic):
            break
        if found.size > 0:
            state, quality, total = found.state, found.quality, total + found.size * offer.unit
            usual = min(2 * found.size, 1.0)
    return Climb(state, quality, total)


def _shortened(
    now: Climb[S], target: float, offer: Offer[S], size: float, max_halvings: int, soft: bool, straight: bool
) -> Generator[Need[S], Offer[S] | float | None, Climb[S] | None]:
    """Step 2d: the longest tried part of a step that neither lowers the quality nor passes the target.

    `now` with size 0 when no part does, and None when a measurement is missing."""
    beyond: Climb[S] | None = None
    for _ in range(max_halvings + 1):
        trial = offer.at(size)
        reached = yield Measure(trial)
        if not isinstance(reached, float):
            return None
        if now.quality <= reached <= target:
            return beyond if soft and beyond is not None and reached == now.quality else Climb(trial, reached, size)
        share = 0.5
        if reached > target:
            beyond = Climb(trial, reached, size)
            if straight:
                share = min((target - now.quality) / (reached - now.quality), share)
        size *= share
    return beyond if soft and beyond is not None else now
