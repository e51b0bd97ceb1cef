"""The Nash bargain and defection-free training among any number of firms, with consumers of uniform types.

Sections 3.3 and 3.4 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html), which has two firms and says that more are alike.

For two firms `nash_bargaining` is in closed form, and `DefectionFreeSharing` trains with its three limits. For more, the
product of gains is maximised numerically, and the way to the bargain goes on a straight line in revenues: no revenue falls
in any round by construction. Firms are in the order of their qualities, the worst first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive, finite
from coterie.errors import ConfigError
from coterie.incentives.market.duopoly import FloatArray

_LEAST = 1e-9  # the smallest difference of neighbouring qualities, relative to the best


@dataclass(frozen=True)
class ManyBargain:
    """Qualities agreed on, revenues with and without the bargain."""

    qualities: FloatArray
    revenues: FloatArray
    disagreement: FloatArray

    @property
    def product(self) -> float:
        """The Nash product of the gains."""
        return float(np.prod(self.revenues - self.disagreement))


def uniform_revenues(qualities: FloatArray) -> FloatArray:
    """Revenues at equilibrium prices of firms with rising qualities; uniform types, no costs.

    The first-order conditions are linear: 2(1/g_i + 1/g_i+1) p_i = p_i−1/g_i + p_i+1/g_i+1, with g_i the gap below firm i
    and a 1 on the right for the best firm; firm i sells (1/g_i + 1/g_i+1) p_i."""
    below = 1 / np.diff(np.concatenate([[0.0], qualities]))
    above = np.append(below[1:], 0.0)
    system = np.diag(2 * (below + above)) - np.diag(above[:-1], 1) - np.diag(below[1:], -1)
    prices = np.linalg.solve(system, np.append(np.zeros(len(qualities) - 1), 1.0))
    return np.asarray(prices**2 * (below + above))


@guarded
def nash_bargain(qualities: Sequence[float], q_max: Positive = 1.0) -> ManyBargain:
    """Qualities up to `q_max` that maximise the product of all firms' gains in revenue; the order of firms stays.

    All firms gain where the best is below `q_max`: if all qualities grow by one factor, so do all revenues. The search
    climbs from there, and from random points between, by the logarithm of the product. The best firm gets `q_max`, as
    revenues are homogeneous."""
    start = _rising(qualities, q_max)
    before = uniform_revenues(start)

    def spread(cuts: FloatArray) -> FloatArray:
        """Rising qualities below q_max, from any real numbers: shares of the gaps."""
        gaps = np.exp(np.append(cuts, 0.0) - max(cuts.max(initial=0.0), 0.0))
        return np.asarray(q_max * np.cumsum(gaps) / gaps.sum())

    def loss(cuts: FloatArray) -> float:
        gains = uniform_revenues(spread(cuts)) / before - 1
        return float(-np.log(gains).sum()) if gains.min() > 0 else 1e3 - float(np.minimum(gains, 0).sum())

    first = np.diff(np.concatenate([[0.0], start]))
    cuts, rng = np.log(first[:-1] / first[-1]), np.random.default_rng(0)
    found = [
        optimize.minimize(
            loss,
            cuts + scale * rng.normal(size=len(cuts)),
            method="Nelder-Mead",
            options={"xatol": 1e-10, "fatol": 1e-13, "maxiter": 4000 * len(start), "maxfev": 8000 * len(start)},
        )
        for scale in (0.0, 0.3, 1.0)
    ]
    best = min(found, key=lambda made: float(made.fun))
    agreed = spread(best.x) if best.fun < 1e3 and start[-1] < q_max else start
    return ManyBargain(agreed, uniform_revenues(agreed), before)


@guarded
def defection_free_path(qualities: Sequence[float], q_max: Positive = 1.0, rounds: Count = 20) -> FloatArray:
    """The qualities that the firms train to, (rounds + 1, firms): from `qualities` to the Nash bargain, such that every firm
    earns more in every round, so that none gains by leaving between rounds.

    In each round the revenues are an equal step further on the straight line to those of the bargain; the qualities that
    have them are found by Newton's method from those of the round before."""
    bargain = nash_bargain(qualities, q_max)
    here = _rising(qualities, q_max)
    path = [here]
    for number in range(1, rounds + 1):
        wanted = bargain.disagreement + number / rounds * (bargain.revenues - bargain.disagreement)

        def gap(logs: FloatArray, wanted: FloatArray = wanted) -> FloatArray:
            return np.asarray(uniform_revenues(np.cumsum(np.exp(logs))) / wanted - 1)

        solved = optimize.root(gap, np.log(np.diff(np.concatenate([[0.0], path[-1]]))), tol=1e-12)
        here = np.cumsum(np.exp(solved.x))
        if not solved.success or here[-1] > q_max * (1 + 1e-9):
            raise ConfigError(
                f"no qualities have the revenues of round {number} of {rounds}; use more rounds, or other qualities."
            )
        path.append(here)
    return np.array(path)


@guarded
def bargain_lying_gain(qualities: Sequence[float], firm: int, claim: Positive, q_max: Positive = 1.0) -> float:
    """What a firm earns more if it claims another quality before the bargain, and everybody then gets what was agreed on.

    The bargain raises every firm from what it would earn alone, so a firm that is taken for better gets more, up to the
    quality of the next better firm, whose place it may not take."""
    claimed = [claim if i == firm else q for i, q in enumerate(qualities)]
    return float(nash_bargain(claimed, q_max).revenues[firm] - nash_bargain(qualities, q_max).revenues[firm])


def _rising(qualities: Sequence[float], q_max: float) -> FloatArray:
    q = finite("qualities", qualities)
    if q.ndim != 1 or q.size < 2 or q[0] <= 0 or (np.diff(q) < _LEAST * q.max()).any() or q[-1] > q_max:
        raise ConfigError(
            f"A bargain needs two or more qualities above 0, rising, different and at most q_max={q_max:g}; got "
            f"{list(qualities)!r}. Sort the firms by quality."
        )
    return np.asarray(q, dtype=np.float64)
