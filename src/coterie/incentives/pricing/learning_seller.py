"""A seller that learns from signals and prices alone. It knows neither the share of high values nor the buyers' threshold.

A design of ours for the repeated game of section 4.3 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive
from coterie.incentives.market.duopoly import FloatArray
from coterie.incentives.pricing.game import PricingGame
from coterie.incentives.pricing.sellers import Prices, Sales, Shape, View, discriminate


@guarded
@dataclass(frozen=True)
class LearningSeller:
    """Raises the buyers' belief until fewer high signals show that they evade; stays at the highest level that may be safe.

    It counts the evidence of equation 4.7 itself and files the signals of every round under its belief, in `levels` levels.
    The threshold is the level at which the share of high signals falls; of all levels whose log-likelihood is at most
    `doubt` below the best, it trusts the highest, and learns at once if that was too high. In the first `sweep` rounds the
    belief rises from 0 to 1, until a fall shows. Where all high-value buyers evade (q* = 1) buyers see nothing more, so
    that one step too far cannot be taken back."""

    levels: Count = 200
    sweep: Count = 1000
    doubt: Positive = 3.0

    def init(self, game: PricingGame, rounds: int, shape: Shape) -> FloatArray:
        return np.zeros((2 * self.levels + 2, *shape))  # high signals and signals by level, own S, rounds

    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices:
        low, _, share, _ = self._found(state)
        n, evidence, t = view.n_buyers, state[-2], view.t
        found = low < 1
        limit = np.where(found | (t > self.sweep), low, min(t / self.sweep, 1.0))
        aware = evidence + 1 / _both(share, n) <= limit * (t + 1)
        return discriminate(aware, aware.astype(float), view.game.low >= view.game.high * share)

    def update(self, state: FloatArray, prices: Prices, sales: Sales) -> FloatArray:
        after, total = state.copy(), sales.high_signals + sales.low_signals
        low, level, share, evading = self._found(state)
        at = np.where(level / self.levels < low, share, evading)
        seen = (sales.high_signals > 0) & (sales.low_signals > 0) & (prices.high_at_high != prices.high_at_low)
        here = np.arange(self.levels).reshape(-1, *[1] * level.ndim) == level
        after[: self.levels] += here * sales.high_signals
        after[self.levels : -2] += here * total
        after[-2] += seen / _both(at, total)
        after[-1] += 1
        return after

    def _found(self, state: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The highest belief that may be safe (1: no fall was seen), the present level, and the shares of high signals below
        and above the fall."""
        k = self.levels
        high, total = (np.cumsum(state[i : i + k], axis=0) for i in (0, k))
        fit = _likelihood(high, total) + _likelihood(high[-1] - high, total[-1] - total)  # a fall behind each level
        shares = (high + 1) / (total + 2), (high[-1] - high + 0.5) / (total[-1] - total + 1)
        fit = np.where((total[-1] > total) & (shares[0] > shares[1]), fit, -np.inf)
        best = fit.max(0)
        sure = best > _likelihood(high[-1], total[-1]) + 2 * self.doubt
        last = k - 1 - np.argmax((fit >= best - self.doubt)[::-1], axis=0)
        at = np.where(sure, last, k - 1)[None]
        share, evading = (np.take_along_axis(s, at, 0)[0] for s in shares)
        level = np.minimum((state[-2] / (state[-1] + 1) * k).astype(int), k - 1)
        return np.where(sure, (last + 1) / k, 1.0), level, share, evading


def _likelihood(high: FloatArray, total: FloatArray) -> FloatArray:
    """The largest log-likelihood of `high` of `total` signals."""
    low = total - high
    return np.asarray(xlogy(high, high) + xlogy(low, low) - xlogy(total, total))


def _both(share: FloatArray, n: FloatArray | int) -> FloatArray:
    """The probability that n signals are not all the same."""
    return np.asarray(1 - share**n - (1 - share) ** n)
