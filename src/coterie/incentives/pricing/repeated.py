"""One seller against one crowd of buyers in the repeated pricing game, vectorised over seeds.

Sections 4.3 and 4.6 and Algorithm 6 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

A round: n new buyers draw their types; θ_H buyers evade as their belief says; the seller draws one price per signal;
each buyer buys iff the price is at most its value. Only counts matter, so a round needs only two binomial numbers,
which are drawn ahead of time. There is one Python loop over rounds; the last axis of
every array is the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.incentives.market.duopoly import FloatArray
from coterie.incentives.pricing.buyers import Buyers
from coterie.incentives.pricing.game import PricingGame
from coterie.incentives.pricing.sellers import Prices, Sales, Seller, Shape, View


class Draws(NamedTuple):
    """Randomness of a block of rounds; the axes are rounds (then the price draw) and seeds."""

    high_types: FloatArray
    evaders: FloatArray
    """How many of the θ_H buyers evade if this round's buyers evade at all."""
    prices: FloatArray
    bias: FloatArray


def _blocks(seeds: Sequence[int], lengths: Sequence[int], n: int, mu: float, rate: float) -> Iterator[Draws]:
    """Each seed has one stream per purpose: a run depends neither on the block lengths nor on the other seeds."""
    streams = [[np.random.default_rng([seed, purpose]) for purpose in range(4)] for seed in seeds]
    for length in lengths:
        high = np.stack([s[0].binomial(n, mu, length) for s in streams], axis=-1)
        evaders = np.stack([s[1].binomial(high[:, i], rate) for i, s in enumerate(streams)], axis=-1)
        prices = np.stack([s[2].random((length, 2)) for s in streams], axis=-1)
        bias = np.stack([s[3].random(length) for s in streams], axis=-1)
        yield Draws(high.astype(float), evaders.astype(float), prices, bias)


class _Belief(NamedTuple):
    """S_t and the number it is divided by; equation (4.7)."""

    evidence: FloatArray
    counted: FloatArray


class _Tape(NamedTuple):
    """What happened in a block, round by round; the first axis is the round."""

    evades: NDArray[np.bool_]
    high_at_high: NDArray[np.bool_]
    high_at_low: NDArray[np.bool_]
    p_high_at_high: FloatArray
    p_high_at_low: FloatArray
    alpha: FloatArray

    @classmethod
    def blank(cls, length: int, shape: Shape) -> _Tape:
        kinds = (bool, bool, bool, float, float, float)
        return cls(*(np.empty((length, *shape), dtype=kind) for kind in kinds))

    def write(self, k: int, evades: NDArray[np.bool_], prices: Prices) -> None:
        self.evades[k] = evades
        for row, value in zip(self[1:], prices, strict=True):
            row[k] = value


def play(
    game: PricingGame,
    seller: Seller,
    buyers: Buyers,
    seeds: Sequence[int],
    *,
    n_buyers: int,
    marks: NDArray[np.int_],
    variants: Shape = (),
) -> dict[str, FloatArray]:
    """Averages up to the rounds `marks[1:]` (`marks[0]` is 0), as arrays of shape (*variants, seeds, marks − 1).

    `variants` are leading axes of array-valued hyper-parameters, as in `Mixed(grid[:, None], …)`.
    """
    shape = (*variants, len(seeds))
    rate = buyers.rate(game)
    weights = np.array([_weight(game.mu, n_buyers), _weight(game.mu * (1 - rate), n_buyers)])  # truthful, evading
    state = seller.init(game, int(marks[-1]), shape)
    belief = _Belief(np.zeros(shape), np.ones(shape))
    sums: dict[str, FloatArray] = {}
    snapshots: list[dict[str, FloatArray]] = []
    for (start, stop), draws in zip(
        pairwise(marks.tolist()), _blocks(seeds, np.diff(marks).tolist(), n_buyers, game.mu, rate), strict=True
    ):
        tape = _Tape.blank(stop - start, shape)
        for k in range(stop - start):
            evades = buyers.evades(belief.evidence / belief.counted, draws.bias[k], game)
            weight = weights[evades.astype(int)]
            view = View(game, n_buyers, start + k + 1, *belief, weight)
            prices = seller.prices(state, view, draws.prices[k])
            sales = _sell(game, prices, draws.high_types[k], draws.evaders[k] * evades, n_buyers)
            state = seller.update(state, prices, sales)
            belief = _learn(belief, prices, sales, weight, buyers.counts_blind_rounds)
            tape.write(k, evades, prices)
        block = _total(game, tape, draws, rate, n_buyers)
        sums = {name: sums.get(name, 0.0) + value for name, value in block.items()}
        snapshots.append(_averages(game, sums, belief, stop))
    return {name: np.stack([s[name] for s in snapshots], axis=-1) for name in snapshots[0]}


def _weight(high_share: float, n: int) -> float:
    """w: the probability that n signals are not all the same; exactly 0 if they must be."""
    return 1 - high_share**n - (1 - high_share) ** n


def _sell(game: PricingGame, prices: Prices, high_types: FloatArray, evaders: FloatArray, n: int) -> Sales:
    """Demand per signal: at the high signal all buy at either price; at the low one only evaders buy at θ_H."""
    high_signals = high_types - evaders
    low_signals = n - high_signals
    revenue_high = high_signals * np.where(prices.high_at_high, game.high, game.low)
    revenue_low = np.where(prices.high_at_low, evaders * game.high, low_signals * game.low)
    return Sales(game, high_signals, low_signals, revenue_high, revenue_low)


def _learn(belief: _Belief, prices: Prices, sales: Sales, weight: FloatArray, count_blind: bool) -> _Belief:
    """S_{t+1} = S_t + X_t I_t/w_t (equation 4.7)."""
    informative = (sales.high_signals > 0) & (sales.low_signals > 0)
    seen = informative & (prices.high_at_high != prices.high_at_low)
    counted = belief.counted + (1.0 if count_blind else weight > 0)
    return _Belief(belief.evidence + seen / np.where(weight > 0, weight, 1.0), counted)


def _total(game: PricingGame, tape: _Tape, draws: Draws, rate: float, n: int) -> dict[str, FloatArray]:
    """Sums over the rounds of a block."""
    ones = (slice(None), *[None] * (tape.evades.ndim - 2))  # rounds, then room for the variants
    high_types, evaders = draws.high_types[ones], draws.evaders[ones] * tape.evades
    truthful = high_types - evaders
    hh, hl = tape.high_at_high, tape.high_at_low
    revenue = truthful * np.where(hh, game.high, game.low)
    revenue = revenue + np.where(hl, evaders * game.high, (n - truthful) * game.low)
    to_buyers = truthful * ~hh * game.spread + evaders * (~hl * game.spread - game.buyer_cost)
    q = rate * tape.evades
    rounds = {
        "seller": (revenue - evaders * game.seller_cost) / n,
        "buyer": to_buyers,
        "high_types": np.broadcast_to(high_types, hh.shape),
        "alpha": tape.alpha,
        "evasion": q,
        "truthful": ~tape.evades,
        "expected_revenue": game.seller_payoff(tape.p_high_at_high, tape.p_high_at_low, q)
        + game.mu * q * game.seller_cost,
        "high_high": hh & hl,
        "low_low": ~hh & ~hl,
        "pd": hh & ~hl,
        "reverse_pd": ~hh & hl,
    }
    return {name: np.asarray(values.sum(axis=0), dtype=float) for name, values in rounds.items()}


def _averages(game: PricingGame, sums: dict[str, FloatArray], belief: _Belief, t: int) -> dict[str, FloatArray]:
    """Averages over rounds 1..t. Regret is against the best fixed price per signal, in expectation (section 4.4)."""
    evading = game.mu * sums["evasion"]
    best_at_low = np.maximum(evading * game.high, (evading + (1 - game.mu) * t) * game.low)
    best = (game.mu * t - evading) * game.high + best_at_low
    return {
        "seller_utility": sums["seller"] / t,
        "buyer_utility": sums["buyer"] / np.maximum(sums["high_types"], 1.0),
        "belief": belief.evidence / belief.counted,
        "alpha_bar": sums["alpha"] / t,
        "truthful_share": sums["truthful"] / t,
        "regret": (best - sums["expected_revenue"]) / t,
        **{name: sums[name] / t for name in ("high_high", "low_low", "pd", "reverse_pd")},
    }
