"""Nash bargaining over qualities, the cap B on the low firm's quality, and the pacing constant.

Section 3.4 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

Symbols: ρ = q_l/q_h is `ratio`; U_l, U_h are the equilibrium revenues of `coterie.incentives.market.duopoly`;
B(ρ, b) is `quality_cap`; b_ρ and b̃ are `pacing_bound` and `pacing_constant`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from coterie.base.annotations import guarded
from coterie.base.arguments import finite, numbers, shown
from coterie.errors import ConfigError
from coterie.incentives.market.duopoly import Duopoly, FloatArray, Pair, equilibrium_revenues


@dataclass(frozen=True)
class Bargain:
    """The Nash bargaining solution; `float(bargain)` is the low firm's quality q_l*."""

    q_low: float
    q_high: float
    revenues: Pair
    disagreement: Pair
    """Revenues if nothing is agreed, that is at the initial qualities."""

    @property
    def ratio(self) -> float:
        """ρ* = q_l*/q_h*."""
        return self.q_low / self.q_high

    @property
    def value(self) -> float:
        """The Nash product N* = (U_l − U_l0)(U_h − U_h0)."""
        return float(nash_product(self.revenues.low, self.revenues.high, self.disagreement))

    def __float__(self) -> float:
        return self.q_low


@guarded
def nash_product(revenue_low: ArrayLike, revenue_high: ArrayLike, disagreement: Pair) -> FloatArray:
    """(U_l − U_l0)(U_h − U_h0) where neither firm loses, NaN elsewhere: two losses are not an agreement."""
    gain_low = finite("revenue_low", revenue_low) - disagreement.low
    gain_high = finite("revenue_high", revenue_high) - disagreement.high
    agreed = (gain_low >= -1e-12) & (gain_high >= -1e-12)
    return np.where(agreed, np.maximum(gain_low, 0.0) * np.maximum(gain_high, 0.0), np.nan)


@guarded
def nash_bargaining(q_low0: float, q_high0: float, q_max: float = 1.0) -> Bargain:
    """Qualities that maximise the Nash product, starting from qualities `q_low0` ≤ `q_high0` ≤ `q_max`.

    1. The high firm gets the best model, q_h* = `q_max` (Proposition 2).
    2. Revenues are homogeneous of degree 1, so divide by `q_max` and solve for q_l with q_h* = 1: the best of the
       stationary points (a cubic) and the ends of the interval where neither firm loses.

        >>> round(float(nash_bargaining(0.1, 0.5)), 4)
        0.3685
    """
    if not (0 < q_low0 <= q_high0 <= q_max < math.inf):
        raise ConfigError(
            f"nash_bargaining needs 0 < q_low0 <= q_high0 <= q_max; got q_low0={q_low0}, q_high0={q_high0}, "
            f"q_max={q_max}. The firm with the better model now is the high firm; swap them if needed."
        )
    unit_low0, unit_high0 = Duopoly(q_low0 / q_max, q_high0 / q_max).revenues
    rho = q_low0 / q_high0
    # U_l(q, 1) >= U_l0 between the roots of a quadratic, U_h(q, 1) >= U_h0 up to the quality cap
    half = (1 + 8 * unit_low0) / 2
    spread = math.sqrt(max(half**2 - 16 * unit_low0 * (1 + unit_low0), 0.0))
    least = 16 * unit_low0 / (half + spread)
    most = min((half + spread) / (1 + unit_low0), quality_cap(rho, q_max / q_high0))
    c = unit_high0
    cubic = [7 * c + c * rho + 4, -60 * c - 6 * c * rho + 32, 144 * c - 52, -64 * c + 32 * c * rho + 16]
    roots = np.roots(cubic)
    inside = roots.real[(np.abs(roots.imag) < 1e-7) & (roots.real > least) & (roots.real < most)]
    candidates = np.concatenate([inside, [least, max(least, most)]])
    low, high = equilibrium_revenues(candidates, 1.0)
    best = float(candidates[np.argmax((low - unit_low0) * (high - unit_high0))])
    q_low = best * q_max if best > 0 else q_low0
    return Bargain(q_low, q_max, Duopoly(q_low, q_max).revenues, Duopoly(q_low0, q_high0).revenues)


@overload
def quality_cap(rho: float, growth: float) -> float: ...
@overload
def quality_cap(rho: FloatArray | float, growth: FloatArray | float) -> FloatArray | float: ...
@guarded
def quality_cap(rho: FloatArray | float, growth: FloatArray | float) -> FloatArray | float:
    """B(ρ, b): the largest new ratio q_l/q_h that leaves the high firm's revenue whole when q_h grows by b ≥ 1.

    Written as 4 − 6/(1 + √(1 − 12(1−ρ)/((4−ρ)²b))), which equals the printed fraction and is stable at ρ = 1.
    """
    a, b = numbers("rho", rho), numbers("growth", growth)
    if not ((a >= 0) & (a <= 1)).all() or not (b >= 1).all():
        raise ConfigError(
            f"quality_cap needs 0 <= rho <= 1 and growth >= 1; got rho={shown(rho)}, growth={shown(growth)}. "
            "rho is q_low/q_high, and growth is the new q_high over the old one."
        )
    cap = np.asarray(4 - 6 / (1 + np.sqrt(1 - 12 * (1 - a) / ((4 - a) ** 2 * b))))
    return float(cap) if cap.ndim == 0 else cap


@guarded
def pacing_bound(rho: float) -> float:
    """b_ρ: the largest growth b of q_h in one round with (4 − 5ρ) log₁₀ b ≤ B(ρ, b) − ρ; infinite for ρ ≥ 0.8."""
    if not 0 <= rho <= 1:
        raise ConfigError(f"pacing_bound needs 0 <= rho <= 1; got rho={rho}. Pass q_low/q_high.")

    def slack(decades: float) -> float:
        return quality_cap(rho, math.pow(10.0, decades)) - rho - (4 - 5 * rho) * decades

    # The slack is 0 at b = 1, rises, then falls for good: bracket its last sign change on a logarithmic scale.
    grid = np.geomspace(1e-4, 300.0, 400)
    positive = np.flatnonzero([slack(d) > 0 for d in grid])
    if rho >= 0.8 or positive.size == 0 or positive[-1] == grid.size - 1:
        return math.inf if rho >= 0.8 or positive.size else 1.0
    last = int(positive[-1])
    decades = float(optimize.brentq(slack, grid[last], grid[last + 1], xtol=1e-15))
    return float(10.0**decades)


@lru_cache(maxsize=1)
def pacing_constant() -> float:
    """b̃ = min over ρ of b_ρ ≈ 1.0297, attained at ρ ≈ 0.34: how much q_h may grow per round."""
    best = optimize.minimize_scalar(pacing_bound, bounds=(0.2, 0.5), method="bounded", options={"xatol": 1e-9})
    return float(best.fun)
