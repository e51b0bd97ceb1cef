"""Two firms that sell models of different quality.

Section 3.2 and Lemma 22 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

Symbols: `q_low`, `q_high` are the qualities q_l ≤ q_h; a consumer of type θ ~ U[0, 1] gets θq − p from a model of
quality q at price p, or 0 from no model; the firms set prices at the same time and have no costs.

Results are given in *firm order*: position 0 belongs to the firm passed as `q_low` and position 1 to the firm passed
as `q_high`. The *role* "high" belongs to whoever has the larger quality now: if the first firm has overtaken the
second one, the closed forms are used with swapped roles. (The dissertation keeps the roles and reports negative
revenues in Figure 3.2, which a price times a demand cannot be.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.annotations import guarded
from coterie.base.arguments import finite
from coterie.errors import ConfigError

FloatArray = NDArray[np.float64]


class Pair(NamedTuple):
    """One number per firm: `low` for the firm passed as `q_low`, `high` for the firm passed as `q_high`."""

    low: float
    high: float


@guarded
def equilibrium_revenues(q_low: ArrayLike, q_high: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Revenues of both firms at equilibrium prices, element by element, in firm order (Lemma 22, roles by quality)."""
    first, second = finite("q_low", q_low), finite("q_high", q_high)
    low, high = np.minimum(first, second), np.maximum(first, second)
    scale = (high - low) / (4 * high - low) ** 2
    worse, better = low * high * scale, 4 * high**2 * scale
    return np.where(first <= second, worse, better), np.where(first <= second, better, worse)


@guarded
@dataclass(frozen=True)
class Duopoly:
    """The market of two firms with qualities `q_low` and `q_high`.

    >>> Duopoly(0.25, 1.0).prices
    Pair(low=0.05, high=0.4)
    """

    q_low: float
    q_high: float

    def __post_init__(self) -> None:
        for name, quality in (("q_low", self.q_low), ("q_high", self.q_high)):
            if not (math.isfinite(quality) and quality > 0):
                raise ConfigError(
                    f"Duopoly needs positive, finite qualities; got {name}={quality}. Pass a quality > 0."
                )

    @property
    def swapped(self) -> bool:
        """True if the firm passed as `q_low` now has the better model, hence the role "high"."""
        return self.q_low > self.q_high

    @property
    def prices(self) -> Pair:
        """Equilibrium prices p* (Lemma 22); both are 0 at equal qualities (Lemma 23)."""
        low, high = self._by_role()
        scale = (high - low) / (4 * high - low)
        return self._by_firm(low * scale, 2 * high * scale)

    @property
    def demands(self) -> Pair:
        """Market shares at equilibrium; at equal qualities their limit, a third for the low role."""
        low, high = self._by_role()
        return self._by_firm(high / (4 * high - low), 2 * high / (4 * high - low))

    @property
    def revenues(self) -> Pair:
        """Equilibrium revenues U = p D (Lemma 22); both are 0 at equal qualities (Lemma 23)."""
        first, second = equilibrium_revenues(self.q_low, self.q_high)
        return Pair(float(first), float(second))

    def demands_at(self, p_low: float, p_high: float) -> Pair:
        """Market shares at any prices: every consumer takes the better offer (equal offers share the market)."""
        if not (p_low >= 0 and p_high >= 0):
            raise ConfigError(f"Prices must be at least 0; got {p_low} and {p_high}. Pass two prices >= 0.")
        low, high = self._by_role()
        low_price, high_price = (p_high, p_low) if self.swapped else (p_low, p_high)
        if low == high:
            demand = max(0.0, 1 - min(p_low, p_high) / low)
            share = 0.5 if p_low == p_high else float(p_low < p_high)
            return Pair(share * demand, (1 - share) * demand)
        buys_low, buys_high = low_price / low, (high_price - low_price) / (high - low)
        if buys_high <= buys_low:  # nobody takes the low offer
            return self._by_firm(0.0, max(0.0, 1 - high_price / high))
        return self._by_firm(min(buys_high, 1.0) - min(buys_low, 1.0), 1 - min(buys_high, 1.0))

    def revenues_at(self, p_low: float, p_high: float) -> Pair:
        """Revenues at any prices."""
        demand = self.demands_at(p_low, p_high)
        return Pair(p_low * demand.low, p_high * demand.high)

    def _by_role(self) -> Pair:
        return Pair(min(self.q_low, self.q_high), max(self.q_low, self.q_high))

    def _by_firm(self, low_role: float, high_role: float) -> Pair:
        return Pair(high_role, low_role) if self.swapped else Pair(low_role, high_role)
