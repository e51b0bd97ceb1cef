"""Any number of firms and any density of consumer types: the duopoly without its two restrictions.

Section 3.2, generalised, of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

A consumer of type θ ∈ [0, 1] takes the offer (q_i, p_i) with the largest θq_i − p_i, or none if all are negative.
Firm i therefore sells to one interval of types:

    from  max( p_i / q_i,  (p_i − p_j)/(q_i − q_j) over worse firms j )
    to    min( 1,          (p_j − p_i)/(q_j − q_i) over better firms j ).

Equilibrium prices are found by letting firms take turns with their best price, then solving the first-order conditions
from there; they are *verified* by searching every firm's prices for a profitable deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, optimize
from scipy.interpolate import CubicHermiteSpline

from coterie.base.annotations import guarded
from coterie.base.arguments import refuse_masked
from coterie.errors import ConfigError
from coterie.incentives.market.duopoly import FloatArray

GAIN_TOLERANCE = 1e-7  # largest gain from a deviation that still counts as an equilibrium, per unit of best quality


@runtime_checkable
class Distribution(Protocol):
    """What is used of a frozen `scipy.stats` distribution."""

    def cdf(self, x: Any, /) -> Any: ...
    def pdf(self, x: Any, /) -> Any: ...
    def support(self) -> tuple[Any, Any]: ...


class Types(NamedTuple):
    """Distribution function and density of consumer types."""

    cdf: Callable[[FloatArray], FloatArray]
    pdf: Callable[[FloatArray], FloatArray]


def _types(types: Distribution | Callable[[FloatArray], ArrayLike] | None) -> Types:
    if types is None:
        return Types(lambda x: np.clip(x, 0.0, 1.0), lambda x: np.where((x >= 0) & (x <= 1), 1.0, 0.0))
    if isinstance(types, Distribution):
        low, high = types.support()
        if low < 0 or high > 1:
            raise ConfigError(
                f"Consumer types must lie in [0, 1]; got a distribution on [{low:g}, {high:g}]. Rescale or truncate it."
            )
        return Types(types.cdf, types.pdf)
    if not callable(types):
        raise ConfigError(
            f"types must be a density, a frozen scipy.stats distribution or None; got {types!r}. Pass one of these."
        )
    return _tabulated(types)


def _tabulated(pdf: Callable[[FloatArray], ArrayLike]) -> Types:
    """Integrate a density once on a fine grid (Simpson's rule per cell) and normalise it."""
    grid = np.linspace(0.0, 1.0, 4001)
    middle = (grid[1:] + grid[:-1]) / 2
    at_grid = np.broadcast_to(np.asarray(pdf(grid), dtype=float), grid.shape)
    at_middle = np.broadcast_to(np.asarray(pdf(middle), dtype=float), middle.shape)
    if not (np.isfinite(at_grid).all() and np.isfinite(at_middle).all() and (at_grid >= 0).all()):
        raise ConfigError(
            "A density of types must be finite and non-negative on [0, 1]; the given one is not. "
            "Pass a frozen scipy.stats distribution if it is infinite at an end."
        )
    cells = (at_grid[:-1] + 4 * at_middle + at_grid[1:]) / 6 * (grid[1] - grid[0])
    total = cells.sum()
    if total <= 0:
        raise ConfigError(
            "A density of types must be positive somewhere on [0, 1]; the given one is 0 everywhere. Pass another."
        )
    spline = CubicHermiteSpline(grid, np.concatenate([[0.0], np.cumsum(cells)]) / total, at_grid / total)
    slope = spline.derivative()
    return Types(
        lambda x: np.asarray(spline(np.clip(x, 0.0, 1.0))),
        lambda x: np.where((x >= 0) & (x <= 1), slope(np.clip(x, 0.0, 1.0)), 0.0),
    )


@guarded
@dataclass(frozen=True, eq=False)
class Market:
    """Price competition between firms with the given `qualities`; results are arrays in the order of `qualities`.

    `types` is the density of consumer types on [0, 1] (a callable, normalised here), a frozen `scipy.stats`
    distribution, or None for the uniform density. `costs` are what a sale costs each firm (None: nothing); then qualities
    must differ.
    """

    qualities: Sequence[float]
    types: Distribution | Callable[[FloatArray], ArrayLike] | None = None
    costs: Sequence[float] | None = None

    def __post_init__(self) -> None:
        refuse_masked(qualities=self.qualities)
        q = np.asarray(self.qualities, dtype=float)
        if q.ndim != 1 or q.size < 2 or not np.isfinite(q).all() or (q <= 0).any():
            raise ConfigError(
                f"Market needs two or more positive, finite qualities; got {self.qualities!r}. Pass one per firm."
            )
        c = self._costs
        if c.shape != q.shape or not np.isfinite(c).all() or (c < 0).any() or (c.any() and len(set(q)) < q.size):
            raise ConfigError(
                f"costs must be one finite number >= 0 per firm, and qualities then differ; got {self.costs!r} for "
                f"{self.qualities!r}. Correct them."
            )
        _ = self._types  # so that a wrong density is refused at once

    @cached_property
    def _types(self) -> Types:
        return _types(self.types)

    @cached_property
    def _costs(self) -> FloatArray:
        return np.zeros(len(self.qualities)) if self.costs is None else np.asarray(self.costs, dtype=float)

    @cached_property
    def prices(self) -> FloatArray:
        """Equilibrium prices. A ConfigError says so if a firm can still gain by another price."""
        q = np.asarray(self.qualities, dtype=float)
        prices = self._take_turns(self._start(q))
        polished = self._first_order(prices)
        gains = [self.deviation_gains(p).max() for p in (polished, prices)]
        if min(gains) > GAIN_TOLERANCE * q.max():
            raise ConfigError(
                f"No price equilibrium was found: a firm can still gain {min(gains):.2g} by another price. "
                "Densities with several peaks may have none in pure strategies; try a single-peaked density."
            )
        return polished if gains[0] <= gains[1] + 1e-12 else prices

    @property
    def demands(self) -> FloatArray:
        """Market shares at equilibrium prices."""
        return self.demands_at(self.prices)

    @property
    def revenues(self) -> FloatArray:
        """Revenues at equilibrium prices."""
        return self.prices * self.demands

    @property
    def profits(self) -> FloatArray:
        """Revenues at equilibrium prices less costs."""
        return (self.prices - self._costs) * self.demands

    @property
    def consumer_surplus(self) -> float:
        """What all consumers together gain at equilibrium prices."""
        return self.consumer_surplus_at(self.prices)

    def consumer_surplus_at(self, prices: ArrayLike) -> float:
        """∫ max(0, max_i θq_i − p_i) dF = Σ_i q_i ∫ (1 − F) over the types that buy from firm i."""
        p, q = self._checked(prices), np.asarray(self.qualities, dtype=float)
        cuts = [0.0, 1.0, *(p / q)]
        cuts += [(p[i] - p[j]) / (q[i] - q[j]) for i in range(q.size) for j in range(i) if q[i] != q[j]]
        edges = np.unique(np.clip(cuts, 0.0, 1.0))
        total = 0.0
        for low, high in pairwise(edges.tolist()):
            offers = (low + high) / 2 * q - p
            if offers.max() > 0:
                total += q[offers.argmax()] * integrate.quad(lambda x: 1 - float(self._types.cdf(x)), low, high)[0]
        return float(total)

    def lying_gain(self, firm: int, claim: float) -> float:
        """What the firm would earn more if everybody took its quality for `claim`: consumers and the other firms' prices."""
        claimed = [claim if i == firm else q for i, q in enumerate(self.qualities)]
        return float(replace(self, qualities=claimed).profits[firm] - self.profits[firm])

    def demands_at(self, prices: ArrayLike) -> FloatArray:
        """Market shares at any prices; firms with the same quality and price share their consumers equally."""
        p = self._checked(prices)
        return np.array([self._demand(i, p[i : i + 1], p)[0] for i in range(p.size)])

    def revenues_at(self, prices: ArrayLike) -> FloatArray:
        """Revenues at any prices."""
        return self._checked(prices) * self.demands_at(prices)

    def deviation_gains(self, prices: ArrayLike | None = None) -> FloatArray:
        """What each firm could gain by its best other price, found by search; about 0 at an equilibrium."""
        p = self.prices if prices is None else self._checked(prices)
        best = np.array([self._best_price(i, p)[1] for i in range(p.size)])
        return best - (p - self._costs) * self.demands_at(p)

    def _checked(self, prices: ArrayLike) -> FloatArray:
        refuse_masked(prices=prices)
        p = np.asarray(prices, dtype=float)
        if p.shape != (len(self.qualities),) or not (p >= 0).all():
            raise ConfigError(
                f"A market needs one price >= 0 per firm ({len(self.qualities)} firms); got {prices!r}. Pass as many prices."
            )
        return p

    def _demand(self, firm: int, price: FloatArray, prices: FloatArray) -> FloatArray:
        """Demand of one firm at each of several own prices, the others' prices fixed."""
        q, p = np.asarray(self.qualities, dtype=float), np.asarray(price)[:, None]
        others = np.arange(q.size) != firm
        worse, better, twin = (others & (q < q[firm]), others & (q > q[firm]), others & (q == q[firm]))
        start = np.max((p - prices[worse]) / (q[firm] - q[worse]), axis=1, initial=0.0)
        start = np.minimum(np.maximum(start, price / q[firm]), 1.0)
        stop = np.clip(np.min((prices[better] - p) / (q[better] - q[firm]), axis=1, initial=1.0), 0.0, 1.0)
        mass = np.where(stop > start, self._types.cdf(stop) - self._types.cdf(start), 0.0)
        cheaper_twin = (prices[twin] < p).any(axis=1)
        share = np.where(cheaper_twin, 0.0, 1.0 / (1 + (prices[twin] == p).sum(axis=1)))
        return np.asarray(mass * share)

    def _best_price(self, firm: int, prices: FloatArray) -> tuple[float, float]:
        """Global search: a grid from the cost to q_firm, dense near it, then four finer grids around the best point."""
        cost = float(self._costs[firm])
        room = max(float(np.asarray(self.qualities)[firm]) - cost, 0.0)
        grid = cost + np.unique(np.concatenate([np.linspace(0.0, room, 401), room * np.geomspace(1e-12, 1.0, 400)]))
        for _ in range(5):
            revenue = (grid - cost) * self._demand(firm, grid, prices)
            best = int(np.argmax(revenue))
            price, top = float(grid[best]), float(revenue[best])
            grid = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)], 41)
        return price, top

    def _fixed_at_zero(self) -> NDArray[np.bool_]:
        """Firms with a twin of equal quality, or worse than such a pair, cannot charge anything (Lemma 23)."""
        q = np.asarray(self.qualities, dtype=float)
        values, counts = np.unique(q, return_counts=True)
        return np.asarray(q <= max(values[counts > 1], default=-1.0))

    def _start(self, q: FloatArray) -> FloatArray:
        """The equilibrium for uniform types: a linear system with one row per firm that can charge something."""
        free = np.flatnonzero(~self._fixed_at_zero())
        order = free[np.argsort(q[free])]
        below = q[self._fixed_at_zero()].max(initial=0.0)  # the best free offer, or no offer at all
        gap = np.diff(np.concatenate([[below], q[order]]))
        above = np.append(1 / gap[1:], 0.0)
        system = np.diag(2 * (1 / gap + above)) - np.diag(above[:-1], 1) - np.diag(1 / gap[1:], -1)
        prices = np.zeros(q.size)
        if order.size:
            spent = self._costs[order] * (1 / gap + above)
            prices[order] = np.linalg.solve(system, np.append(np.zeros(order.size - 1), 1.0) + spent)
        return np.clip(prices, self._costs, None)

    def _take_turns(self, prices: FloatArray, rounds: int = 60) -> FloatArray:
        free = np.flatnonzero(~self._fixed_at_zero())
        prices = prices.copy()
        for _ in range(rounds):
            before = prices.copy()
            for firm in free:
                prices[firm] = self._best_price(int(firm), prices)[0]
            if np.abs(prices - before).max() < 1e-9 * max(self.qualities):
                break
        return prices

    def _first_order(self, prices: FloatArray) -> FloatArray:
        """Solve D_i + p_i ∂D_i/∂p_i = 0 for the firms that sell at a positive price, starting from `prices`."""
        q = np.asarray(self.qualities, dtype=float)
        sellers = np.flatnonzero(self.demands_at(prices) > 0)
        _, first = np.unique(q[sellers], return_index=True)  # one of several equal firms is enough
        order = sellers[first]
        active = prices[order] > 0
        gap = np.diff(np.concatenate([[0.0], q[order]]))

        def conditions(active_prices: FloatArray) -> FloatArray:
            p = np.zeros(order.size)
            p[active] = active_prices
            cuts = np.diff(np.concatenate([[0.0], p])) / gap
            mass = np.diff(np.append(self._types.cdf(cuts), 1.0))
            slope = self._types.pdf(cuts) / gap
            return np.asarray((mass - (p - self._costs[order]) * (slope + np.append(slope[1:], 0.0)))[active])

        if not active.any():
            return prices
        solved = prices.copy()
        solved[order[active]] = optimize.root(conditions, prices[order[active]], tol=1e-14).x
        trusted = np.isfinite(solved).all() and (solved >= 0).all() and np.abs(solved - prices).max() <= 1e-3 * q.max()
        return solved if trusted else prices
