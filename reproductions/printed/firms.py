"""Algorithm 5 of Werner as printed: its loop "while q_l ≤ q̂" ends only after it has passed q̂ (EI-4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from coterie.incentives.market.bargaining import Bargain, pacing_constant, quality_cap
from coterie.incentives.market.defection_free import Firm, Move, climb

S = TypeVar("S")


@dataclass(frozen=True)
class PrintedWhileLoop:
    """Algorithm 5 as printed, with a fixed step and no cap: kept to show that it costs the high firm revenue."""

    step: float
    pace: float = field(default_factory=pacing_constant)
    give_up: int = 10_000  # where q_l cannot pass the bound, the printed loop never ends

    def __call__(self, low: Firm[S], high: Firm[S], x_low: S, x_high: S, bargain: Bargain) -> Move[S]:
        learner, before, q_low = low.together, high.together.quality(x_high), low.together.quality(x_low)
        better = climb(high.together, x_high, self.pace * before, tolerance=0.0)
        if q_low < bargain.q_low and q_low / better.quality <= bargain.ratio:
            allowed = quality_cap(q_low / before, better.quality / before) * better.quality
            for _ in range(self.give_up):
                if learner.quality(x_low) > allowed:
                    break
                x_low = learner.step(x_low, self.step)
        return Move(x_low, better.state, better.size)
