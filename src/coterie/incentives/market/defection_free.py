"""Collaboration schemes for two competing firms, among them Defection-Free Collaborative Learning.

Sections 3.3 and 3.4 (Algorithm 5) of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

Nothing here knows what a model is. A firm trains through a `Learner`, three functions of an opaque `state`:

`quality(state) -> float`      quality in (0, 1], measured on the common target f = (f(·; l) + f(·; h))/2.
`step(state, size) -> state`   one training step of that size; returns a *new* state and never changes the old one, so
                                 that a step can be taken back by keeping the old state.
`slope(state) -> float`        ‖∇f(state)‖², or None if unknown (stochastic training): then every step is first tried
                                 with `max_step` and halved until it fits.

For analytic losses the state is a NumPy vector (`descent`). A neural network plugs in with its parameters as the
state, "a few batches with learning rate `size`" as the step, accuracy as the quality and no slope. Those who run
their own training loop need only two functions: `low_target`, the quality the low firm may reach this round, and
`climb`, which trains up to a quality and never beyond it (step 2d, back-tracking).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import AboveOne, Count, Part, Positive
from coterie.errors import ConfigError
from coterie.incentives.market.bargaining import Bargain, nash_bargaining, pacing_constant, quality_cap
from coterie.incentives.market.climb import Climb, Offer, Step, climbing
from coterie.incentives.market.duopoly import FloatArray
from coterie.incentives.market.revenue_ledger import RevenueLedger

S = TypeVar("S")
Place = Literal["alone", "together"]


@guarded
@dataclass(frozen=True)
class Learner(Generic[S]):
    """How a state is judged and improved; see the module's text. `max_step` is 1/L, L the smoothness of the loss."""

    quality: Callable[[S], float]
    step: Callable[[S, float], S]
    slope: Callable[[S], float] | None = None
    max_step: float = 1.0


@guarded
def descent(
    loss: Callable[[FloatArray], float],
    gradient: Callable[[FloatArray], FloatArray],
    smoothness: Positive,
    quality: Callable[[FloatArray], float] | None = None,
) -> Learner[FloatArray]:
    """Gradient descent on an analytic loss; quality is 1 − loss unless another function judges it."""
    return Learner(
        quality=quality or (lambda x: 1.0 - loss(x)),
        step=lambda x, size: x - size * gradient(x),
        slope=lambda x: float(np.sum(gradient(x) ** 2)),
        max_step=1.0 / smoothness,
    )


@dataclass(frozen=True)
class Firm(Generic[S]):
    """A firm's start, its training on its own loss f(·; firm), and its training on the common loss f."""

    state: S
    alone: Learner[S]
    together: Learner[S]


@guarded
def climb(
    learner: Learner[S],
    state: S,
    target: float = math.inf,
    *,
    max_steps: int = 1,
    tolerance: float = 1e-9,
    max_halvings: int = 10,
) -> Climb[S]:
    """Improve `state` by at most `max_steps` steps without passing `target` (Algorithm 5, steps 2c and 2d).

    A step has size min((target − q)/‖∇f‖², 1/L); for a convex loss it cannot pass the target. A step that passes the
    target or lowers the quality is taken back and halved; if `max_halvings` do not help, the climb ends.
    """
    climber = climbing(
        state,
        float(learner.quality(state)),
        target,
        max_steps=max_steps,
        tolerance=tolerance,
        max_halvings=max_halvings,
    )
    answer: Offer[S] | float | None = None
    while True:
        try:
            need = climber.send(answer)
        except StopIteration as end:
            reached: Climb[S] = end.value
            return reached
        answer = _offer(learner, need) if isinstance(need, Step) else float(learner.quality(need.state))


def _offer(learner: Learner[S], need: Step[S]) -> Offer[S] | None:
    """A step of size min((target − q)/‖∇f‖², 1/L) first, or 1/L where the slope is unknown; none where it is flat."""
    slope = learner.slope(need.state) if learner.slope else None
    if slope == 0.0:
        return None
    size = learner.max_step if slope is None else min(need.gap / slope, learner.max_step)
    return Offer(lambda size: learner.step(need.state, size), size)


@guarded
def low_target(q_low: float, q_high_before: float, q_high: float, bargain: Bargain) -> float | None:
    """The quality q̄ the low firm may reach this round, or None if it must stay (Algorithm 5, lines 7–9).

    q̄ = min(B(ρ, b) q_h, ρ* q_h, q_l*) with ρ = `q_low`/`q_high_before` and b = `q_high`/`q_high_before`. The
    printed loop "while q_l ≤ q̂" ends only after passing q̂, and tests ρ* and q_l* only before it starts; the minimum
    repairs both.
    """
    if q_low >= bargain.q_low or q_low > bargain.ratio * q_high:
        return None
    allowed = quality_cap(min(q_low / q_high_before, 1.0), max(q_high / q_high_before, 1.0)) * q_high
    return min(allowed, bargain.ratio * q_high, bargain.q_low)


class Move(NamedTuple, Generic[S]):
    """Both states after a round, and the high firm's step size."""

    low: S
    high: S
    step_high: float


class Scheme(Protocol):
    """One round of a collaboration: from both firms and their present states to their next states."""

    def __call__(self, low: Firm[S], high: Firm[S], x_low: S, x_high: S, bargain: Bargain) -> Move[S]: ...


@dataclass(frozen=True)
class CompleteSharing:
    """D-2: both firms train on the common loss. Their qualities meet, and price competition takes all revenue."""

    low_learns: ClassVar[Place] = "together"
    high_learns: ClassVar[Place] = "together"
    low_trains: ClassVar[bool] = True

    def __call__(self, low: Firm[S], high: Firm[S], x_low: S, x_high: S, bargain: Bargain) -> Move[S]:
        better = climb(getattr(high, self.high_learns), x_high)
        if self.low_trains:
            x_low = climb(getattr(low, self.low_learns), x_low).state
        return Move(x_low, better.state, better.size)


@dataclass(frozen=True)
class OnlyHighShares(CompleteSharing):
    """D-3a: the low firm trains on the common loss, the high firm alone. The low firm overtakes."""

    high_learns: ClassVar[Place] = "alone"


@guarded
@dataclass(frozen=True)
class OnlyLowShares(CompleteSharing):
    """D-3b: the high firm trains on the common loss; the low firm trains alone, or not at all."""

    low_learns: ClassVar[Place] = "alone"
    low_trains: bool = True  # type: ignore[misc]


@guarded
@dataclass(frozen=True)
class DefectionFreeSharing:
    """D-4, Algorithm 5: the high firm improves at a limited pace, the low firm follows up to its target.

    `pace` is b̃, the largest growth of q_h per round (None: no limit). `low_steps` is J, the inner steps of the low
    firm per round; what it may gain but does not reach within the round is lost, because the next round
    starts from the high firm's new revenue, which must not fall.
    """

    pace: AboveOne | None = field(default_factory=pacing_constant)
    low_steps: Count = 20
    tolerance: float = 1e-9

    def __call__(self, low: Firm[S], high: Firm[S], x_low: S, x_high: S, bargain: Bargain) -> Move[S]:
        before = high.together.quality(x_high)
        limit = math.inf if self.pace is None else self.pace * before
        better = climb(high.together, x_high, limit, tolerance=0.0)  # step 1
        target = low_target(low.together.quality(x_low), before, better.quality, bargain)
        if target is not None:  # step 2
            x_low = climb(low.together, x_low, target, max_steps=self.low_steps, tolerance=self.tolerance).state
        return Move(x_low, better.state, better.size)


class Collaboration(NamedTuple, Generic[S]):
    """Both final states, the ledger of all rounds, and the bargain the firms were steering to."""

    low: S
    high: S
    ledger: RevenueLedger
    bargain: Bargain


@guarded
def collaborate(
    low: Firm[S], high: Firm[S], scheme: Scheme, *, rounds: Count = 200, q_max: float = 1.0
) -> Collaboration[S]:
    """Run a scheme and keep the ledger. `q_max` is the best reachable quality q_h* (1 if nothing better is known)."""
    x_low, x_high = low.state, high.state
    q_low, q_high = low.together.quality(x_low), high.together.quality(x_high)
    bargain = nash_bargaining(q_low, q_high, q_max)
    ledger = RevenueLedger().record(q_low, q_high)
    for _ in range(rounds):
        x_low, x_high, step_high = scheme(low, high, x_low, x_high, bargain)
        ledger = ledger.record(low.together.quality(x_low), high.together.quality(x_high), step_high)
    return Collaboration(x_low, x_high, ledger, bargain)


@guarded
def quadratic_firms(
    q_low0: float,
    q_high0: float,
    q_max: float = 0.95,
    *,
    difference: float = 0.05,
    smoothness: Positive = 1.0,
    flatness: Part = 0.2,
    max_step: Positive | None = None,
) -> tuple[Firm[FloatArray], Firm[FloatArray]]:
    """Two firms with quadratic losses in the plane, for experiments with a known answer.

    f(x; l) and f(x; h) have their minima at d and −d; their mean is f(x) = 1 − `q_max` + ½ xᵀHx with
    H = L diag(`flatness`, 1), so that the best common quality is `q_max` at 0, and a firm training alone ends
    `difference` below it. `max_step` is 1/L unless given; smaller steps make slower, smoother pictures.
    """
    if not (0 < q_low0 <= q_high0 <= q_max <= 1 and 0 <= difference <= 1 - q_max + 1e-12):
        raise ConfigError(
            "quadratic_firms needs 0 < q_low0 <= q_high0 <= q_max <= 1 and 0 <= difference <= 1 - q_max (a loss cannot "
            f"be negative); got q_low0={q_low0}, q_high0={q_high0}, q_max={q_max}, difference={difference}. "
            "Correct the one outside."
        )

    bound = smoothness if max_step is None else max(smoothness, 1 / max_step)
    curvature = smoothness * np.array([flatness, 1.0])
    shift = np.array([math.sqrt(2 * difference / curvature[0]), 0.0])

    def loss(x: FloatArray) -> float:
        return 1 - q_max + float(curvature @ x**2) / 2

    def firm(quality: float, side: float) -> Firm[FloatArray]:
        start = np.array([side, 1.0]) * math.sqrt(2 * (q_max - quality) / curvature.sum())
        own = descent(
            lambda x: loss(x - side * shift) - difference,
            lambda x: curvature * (x - side * shift),
            bound,
            quality=lambda x: 1 - loss(x),
        )
        return Firm(start, own, descent(loss, lambda x: curvature * x, bound))

    return firm(q_low0, 1.0), firm(q_high0, -1.0)
