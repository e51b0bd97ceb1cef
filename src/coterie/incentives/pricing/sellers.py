"""Sellers of the repeated pricing game: constant, Exp3-IX, contextual Exp3-IX, Stackelberg.

Section 4.4 and Algorithm 6 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).
Exp3-IX is from "Bandit Algorithms", chapter 12 (Lattimore, Szepesvári, 2020).

A seller is a frozen dataclass of hyper-parameters with three pure methods that act on all seeds at once (arrays of some
`shape` whose last axis is the seeds). Write your own with the same three methods and pass it to `simulate`:

`init(game, rounds, shape) -> state`     an array, whatever the seller has to remember;
`prices(state, view, draws) -> Prices`   one price per signal for this round; `draws` are two uniforms per seed;
`update(state, prices, sales) -> state`  learn from what was sold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from coterie.base.annotations import guarded
from coterie.base.arguments import Share
from coterie.errors import ConfigError
from coterie.incentives.market.duopoly import FloatArray
from coterie.incentives.pricing.game import PricingGame

BoolArray = NDArray[np.bool_]
Shape = tuple[int, ...]


class View(NamedTuple):
    """What a seller may know before it sets prices in round `t` (from 1).

    `evidence` is S_t and `counted` the number by which the buyers divide it: their belief is α̂ = S_t/`counted`.
    `weight` is w_t, the probability that this round shows both signals.
    """

    game: PricingGame
    n_buyers: int
    t: int
    evidence: FloatArray
    counted: FloatArray
    weight: FloatArray


class Prices(NamedTuple):
    """Is the price θ_H (else θ_L) at the high and the low signal; with which probability; and α_t = P[they differ]."""

    high_at_high: BoolArray
    high_at_low: BoolArray
    p_high_at_high: FloatArray | float
    p_high_at_low: FloatArray | float
    alpha: FloatArray | float


class Sales(NamedTuple):
    """Buyers and revenue per signal in one round, and the game."""

    game: PricingGame
    high_signals: FloatArray
    low_signals: FloatArray
    revenue_high: FloatArray
    revenue_low: FloatArray


class Seller(Protocol):
    """See the module's text."""

    def init(self, game: PricingGame, rounds: int, shape: Shape) -> FloatArray: ...
    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices: ...
    def update(self, state: FloatArray, prices: Prices, sales: Sales) -> FloatArray: ...


def discriminate(aware: BoolArray, probability: FloatArray | float, blind_low: BoolArray | bool) -> Prices:
    """PD where `aware`, else the blind price, θ_L where `blind_low`: a joint draw for both signals."""
    low = np.broadcast_to(blind_low, aware.shape)
    at_high, at_low = np.where(low, probability, 1.0), np.where(low, 0.0, 1 - np.asarray(probability))
    return Prices(aware | ~low, ~aware & ~low, at_high, at_low, probability)


def _separately(hh: FloatArray | float, hl: FloatArray | float, draws: FloatArray) -> Prices:
    """The high price with these probabilities at the high and at the low signal, drawn separately."""
    return Prices(draws[0] < hh, draws[1] < hl, hh, hl, hh * (1 - hl) + (1 - hh) * hl)


class _Unlearning:
    """A seller that remembers nothing."""

    def init(self, game: PricingGame, rounds: int, shape: Shape) -> FloatArray:
        return np.zeros(0)

    def update(self, state: FloatArray, prices: Prices, sales: Sales) -> FloatArray:
        return state


@dataclass(frozen=True)
class Mixed(_Unlearning):
    """Charges θ_H with constant probabilities, drawn separately per signal; `Mixed(1, 0)` always discriminates."""

    high_at_high: float | FloatArray
    high_at_low: float | FloatArray

    def __post_init__(self) -> None:
        for value in (self.high_at_high, self.high_at_low):
            if not ((np.asarray(value) >= 0) & (np.asarray(value) <= 1)).all():
                raise ConfigError(f"Mixed takes two probabilities in [0, 1]; got {value}. Pass numbers between.")

    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices:
        return _separately(self.high_at_high, self.high_at_low, draws)


@dataclass(frozen=True)
class NoDiscrimination(_Unlearning):
    """The blind price for everybody: θ_L if θ_L ≥ μθ_H, else θ_H."""

    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices:
        return discriminate(np.zeros(draws[0].shape, dtype=bool), 0.0, view.game.low_price_blind)


@guarded
@dataclass(frozen=True)
class Stackelberg(_Unlearning):
    """Discriminates with probability α* − `epsilon`, else charges the blind price.

    With `epsilon` = 0 the buyers' belief is a driftless walk around their threshold α*, so that the average utility
    does not converge; a positive `epsilon` keeps them truthful and costs ε·(u_S(α*) − u_S(0))/α*.
    """

    epsilon: Share = 0.0

    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices:
        probability = max(view.game.alpha_star - self.epsilon, 0.0)
        return discriminate(draws[0] < probability, probability, view.game.low_price_blind)


@guarded
@dataclass(frozen=True)
class AdaptiveStackelberg:
    """Discriminates whenever that cannot push the buyers' belief above α* − `margin`: (S_t + 1/w_t)/(t + 1) ≤ α*.

    `known_mu=True` uses the buyers' own S_t and w_t, which depend on μ. `known_mu=False` uses signals, prices, the two
    values and α* alone: it estimates μ by the share of high signals so far (right as long as buyers are truthful),
    chooses the blind price by it, and keeps its own count; give it a small `margin`. `LearningSeller` finds α*, too.
    """

    known_mu: bool = True
    margin: float = 0.0

    def init(self, game: PricingGame, rounds: int, shape: Shape) -> FloatArray:
        return np.zeros((3, *shape))  # own S, high signals, all signals

    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices:
        game, counted, evidence, weight = view.game, view.counted, view.evidence, view.weight
        blind_low: BoolArray | bool = game.low_price_blind
        if not self.known_mu:
            counted, evidence, weight = np.full_like(state[0], view.t), state[0], self._weight(state, view.n_buyers)
            blind_low = game.low >= game.high * self._mu(state)
        aware = evidence * weight + 1 <= (game.alpha_star - self.margin) * (counted + 1) * weight
        return discriminate(aware, aware.astype(float), blind_low)

    def update(self, state: FloatArray, prices: Prices, sales: Sales) -> FloatArray:
        if self.known_mu:
            return state
        total = sales.high_signals + sales.low_signals
        seen = (sales.high_signals > 0) & (sales.low_signals > 0) & (prices.high_at_high != prices.high_at_low)
        evidence = state[0] + seen / self._weight(state, total)
        return np.stack([evidence, state[1] + sales.high_signals, state[2] + total])

    def _mu(self, state: FloatArray) -> FloatArray:
        return np.asarray((state[1] + 1) / (state[2] + 2))

    def _weight(self, state: FloatArray, n_buyers: FloatArray | int) -> FloatArray:
        mu = self._mu(state)
        return np.asarray(1 - mu**n_buyers - (1 - mu) ** n_buyers)


def exp3_rate(rounds: int, arms: int = 2) -> float:
    """η = √(2 log(K + 1)/(TK)); γ = η/2 (Lattimore and Szepesvári, chapter 12)."""
    return math.sqrt(2 * math.log(arms + 1) / (rounds * arms))


def _exp3_step(
    loss: FloatArray, rate: float, chose_high: BoolArray, p_high: FloatArray, reward: FloatArray
) -> FloatArray:
    """Add the implicit-exploration loss estimate of the price that was charged; `loss` is L̂(θ_H) and L̂(θ_L)."""
    chosen = np.where(chose_high, p_high, 1 - p_high)
    estimate = (1 - reward) / (chosen + rate / 2)
    return np.stack([loss[0] + estimate * chose_high, loss[1] + estimate * ~chose_high])


@dataclass(frozen=True)
class Exp3IX:
    """Exp3-IX that ignores signals: two prices, reward = mean revenue per buyer divided by θ_H, horizon known."""

    def init(self, game: PricingGame, rounds: int, shape: Shape) -> FloatArray:
        return np.stack([np.zeros(shape), np.zeros(shape), np.full(shape, exp3_rate(rounds))])

    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices:
        p_high = expit(state[2] * (state[1] - state[0]))  # exp(−ηL̂) normalised over two prices
        high = draws[0] < p_high
        return Prices(high, high, p_high, p_high, 0.0)

    def update(self, state: FloatArray, prices: Prices, sales: Sales) -> FloatArray:
        buyers = sales.high_signals + sales.low_signals
        reward = (sales.revenue_high + sales.revenue_low) / (buyers * sales.game.high)
        rate = float(state[2].flat[0])
        p_high = np.asarray(prices.p_high_at_high)
        return np.concatenate([_exp3_step(state[:2], rate, prices.high_at_high, p_high, reward), state[2:]])


@dataclass(frozen=True)
class ContextualExp3IX:
    """CExp3: one Exp3-IX learner per signal; a signal nobody sent teaches nothing."""

    def init(self, game: PricingGame, rounds: int, shape: Shape) -> FloatArray:
        return np.concatenate([np.zeros((4, *shape)), np.full((1, *shape), exp3_rate(rounds))])

    def prices(self, state: FloatArray, view: View, draws: FloatArray) -> Prices:
        hh, hl = expit(state[4] * (state[1:4:2] - state[0:4:2]))
        return _separately(hh, hl, draws)

    def update(self, state: FloatArray, prices: Prices, sales: Sales) -> FloatArray:
        rate = float(state[4].flat[0])
        learnt = []
        for loss, high, p_high, signals, revenue in (
            (state[0:2], prices.high_at_high, prices.p_high_at_high, sales.high_signals, sales.revenue_high),
            (state[2:4], prices.high_at_low, prices.p_high_at_low, sales.low_signals, sales.revenue_low),
        ):
            reward = revenue / (np.maximum(signals, 1) * sales.game.high)
            step = _exp3_step(loss, rate, high, np.asarray(p_high), reward)
            learnt.append(np.where(signals > 0, step, loss))
        return np.concatenate([*learnt, state[4:]])


SELLERS: dict[str, Seller] = {
    "exp3": Exp3IX(),
    "cexp3": ContextualExp3IX(),
    "stackelberg": Stackelberg(),
    "stackelberg-eps": Stackelberg(epsilon=0.05),
    "adaptive": AdaptiveStackelberg(),
    "pd": Mixed(1.0, 0.0),
    "no-pd": NoDiscrimination(),
}
"""Sellers by name."""
