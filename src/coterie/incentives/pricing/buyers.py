"""Buyers of the repeated pricing game: CBER buyers, who estimate how often the seller discriminates.

Section 4.3, Definition 5 and equation 4.7 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

All buyers of a round share the history H^B and hence the belief α̂_t of equation (4.7):

    α̂_t = (1/t) Σ_{τ<t} X_τ I_τ / w_τ,    X_τ = the two prices differ,  I_τ = both signals were shown,
    w_τ = P[I_τ = 1] = 1 − h^n − (1 − h)^n,  h = μ(1 − q_τ).

If all θ_H buyers evade (q* = 1), the rounds in which they do so show one signal only: w = 0 and nothing is observed.
The printed average still divides by t, so that α̂ decays, and in half of the rounds buyers trust a seller that always
discriminates. The default estimator `"rescaled"` replaces t by one plus the earlier rounds with w > 0, which is the same
whenever all w > 0. Where q* = 1 it has another disadvantage: a belief above α*, even one formed by bad luck, is never
revised, because the buyers who hold it see nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import Share, finite, shown
from coterie.errors import ConfigError
from coterie.incentives.market.duopoly import FloatArray
from coterie.incentives.pricing.game import PricingGame
from coterie.incentives.pricing.sellers import BoolArray


class Buyers(Protocol):
    """`rate`: how often a θ_H buyer evades in a round in which `evades` is true. θ_L buyers are always truthful."""

    @property
    def counts_blind_rounds(self) -> bool: ...
    def check(self, n_buyers: int) -> None: ...
    def rate(self, game: PricingGame) -> float: ...
    def evades(self, belief: FloatArray, draws: FloatArray, game: PricingGame) -> BoolArray: ...


@guarded
@dataclass(frozen=True)
class CBER:
    """Consistent-belief best responders: evade with probability q* when the belief exceeds α*, else be truthful.

    `bias=(a, b)` adds a fresh error U(a, b) to the belief in each round and clips it to [0, 1].
    """

    bias: tuple[float | FloatArray, float | FloatArray] = (0.0, 0.0)
    estimator: Literal["rescaled", "printed"] = "rescaled"

    def __post_init__(self) -> None:
        low, high = (finite("bias", end) for end in self.bias)
        if low.shape != high.shape or not (low <= high).all():
            raise ConfigError(
                f"bias must be an interval (a, b) with a <= b; got {shown(self.bias)}. Swap them, or pass (0, 0)."
            )

    @property
    def counts_blind_rounds(self) -> bool:
        """Are rounds in which nothing can be observed part of the average?"""
        return self.estimator == "printed"

    def check(self, n_buyers: int) -> None:
        if n_buyers < 2:
            raise ConfigError(
                f"CBER buyers need n_buyers >= 2, because one buyer never sees two prices; got {n_buyers}. "
                "Add buyers or use FixedEvasion."
            )

    def rate(self, game: PricingGame) -> float:
        return game.q_star

    def evades(self, belief: FloatArray, draws: FloatArray, game: PricingGame) -> BoolArray:
        low, high = (np.asarray(end, dtype=float) for end in self.bias)
        return np.asarray(np.clip(belief + low + (high - low) * draws, 0.0, 1.0) > game.alpha_star)


@guarded
@dataclass(frozen=True)
class FixedEvasion:
    """Buyers who do not learn: θ_H buyers evade with a fixed probability (0: truthful; None: q*)."""

    probability: Share | None = 0.0
    counts_blind_rounds: ClassVar[bool] = False

    def check(self, n_buyers: int) -> None:
        if n_buyers < 1:
            raise ConfigError(f"n_buyers must be at least 1; got {n_buyers}. Add buyers.")

    def rate(self, game: PricingGame) -> float:
        return game.q_star if self.probability is None else self.probability

    def evades(self, belief: FloatArray, draws: FloatArray, game: PricingGame) -> BoolArray:
        return np.ones(belief.shape, dtype=bool)


BUYERS: dict[str, Buyers] = {"cber": CBER(), "truthful": FixedEvasion(0.0), "strategic": FixedEvasion(None)}
"""Buyers by name."""
