"""Price discrimination by signals: the one-shot game.

Section 4.2 and Theorem 6 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

A buyer's value is θ_H = `high` with probability `mu`, else θ_L = `low`. Buyers show a signal (their data);
showing the wrong one costs the buyer `buyer_cost` = c_B and the seller `seller_cost` = c_S. The seller is
*signal-aware* (sets a price per signal) with probability α and *blind* (one price for all) otherwise; a buyer buys iff
the price is at most the value. α is the loss of privacy: 0 means data are never used against buyers, 1 means always.

All utilities are **per buyer**; buyer utilities are those of a θ_H buyer (a θ_L buyer always gets 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.annotations import guarded
from coterie.base.arguments import Level, NotNegative, Positive, refuse_masked
from coterie.errors import ConfigError
from coterie.incentives.market.duopoly import FloatArray

Kind = Literal["printed", "mixed"]


@dataclass(frozen=True)
class Equilibrium:
    """What everybody does at a given α. `evasion` is q, the probability that a θ_H buyer shows the low signal;
    `low_price_at_low_signal` is the probability r that the aware seller charges θ_L at the low signal (else θ_H)."""

    alpha: float
    kind: Kind
    evasion: float
    low_price_at_low_signal: float
    blind_price: float
    seller_utility: float
    buyer_utility: float


@dataclass(frozen=True)
class Commitment:
    """The seller's best promise (Corollary 3): aware with probability `alpha` = α*, else `blind_price` for all."""

    alpha: float
    blind_price: float
    seller_utility: float
    buyer_utility: float


class DeviationGains(NamedTuple):
    """How much each player gains by its best deviation, the others held fixed; all about 0 at a true equilibrium."""

    aware_at_low_signal: float
    aware_at_high_signal: float
    blind: float
    buyer_low: float
    buyer_high: float


@guarded
@dataclass(frozen=True)
class PricingGame:
    """The game (α, μ, θ_L, θ_H, c_B, c_S) without α, which the methods take.

    >>> game = PricingGame(mu=0.5, low=5, high=15, buyer_cost=5, seller_cost=5)
    >>> [game.seller_utility(alpha) for alpha in (0, 0.5, 1)]
    [7.5, 8.75, 6.25]
    """

    mu: Level
    low: Positive
    high: Positive
    buyer_cost: NotNegative
    seller_cost: NotNegative

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(
                f"PricingGame needs 0 < low < high; got low={self.low}, high={self.high}. Swap or correct them."
            )
        if not self.buyer_cost < self.spread:
            raise ConfigError(
                f"PricingGame needs 0 <= buyer_cost < high - low = {self.spread:g}, else nobody would ever evade; "
                f"got buyer_cost={self.buyer_cost}. Lower it, or raise high."
            )

    @property
    def spread(self) -> float:
        """Δθ = θ_H − θ_L."""
        return self.high - self.low

    @property
    def alpha_star(self) -> float:
        """α* = c_B/Δθ: buyers stay truthful as long as α ≤ α*."""
        return self.buyer_cost / self.spread

    @property
    def q_star(self) -> float:
        """q* = min{1, (1−μ)θ_L/(μΔθ)}: how often θ_H buyers evade when α > α*."""
        return min(1.0, (1 - self.mu) * self.low / (self.mu * self.spread))

    @property
    def low_price_blind(self) -> bool:
        """Case (a), θ_L ≥ μθ_H: a blind seller charges θ_L. Otherwise case (b): it charges θ_H."""
        return self.low >= self.mu * self.high

    @property
    def blind_price(self) -> float:
        """The price of a seller who does not look at signals (Theorem 6, part d)."""
        return float(self.low if self.low_price_blind else self.high)

    @guarded
    def equilibrium(self, alpha: float, kind: Kind = "printed") -> Equilibrium:
        """Equilibrium of the game at α (Theorem 6), per buyer.

        `kind="printed"` is Theorem 6. In case (b) with α > α* it lets the seller react to the unobservable q, that
        is, buyers commit: with the seller fixed, a θ_H buyer would gain by always evading. `kind="mixed"` is the true
        equilibrium there: the aware seller charges θ_L at the low signal only with probability r = c_B/(αΔθ), which
        makes buyers indifferent. The seller's utility is the same in both; elsewhere the two kinds coincide.
        """
        alpha = float(self._checked(alpha))
        evades = not self._truthful(alpha)
        mixes = kind == "mixed" and evades and not self.low_price_blind
        return Equilibrium(
            alpha=alpha,
            kind=kind,
            evasion=self.q_star if evades else 0.0,
            low_price_at_low_signal=self.alpha_star / alpha if mixes else 1.0,
            blind_price=self.blind_price,
            seller_utility=float(self.seller_utility(alpha)),
            buyer_utility=float(self.buyer_utility(alpha, kind)),
        )

    def seller_utility(self, alpha: ArrayLike) -> FloatArray | float:
        """u_S(α) per buyer at equilibrium; the same for both kinds."""
        a = self._checked(alpha)
        if self.low_price_blind:
            truthful, evading = self.low + a * self.mu * self.spread, self.low - self.mu * self.seller_cost
        else:
            truthful = self.mu * self.high + a * (1 - self.mu) * self.low
            evading = self.mu * self.high - self.mu * self.q_star * self.seller_cost
        return _plain(np.where(self._truthful(a), truthful, evading))

    @guarded
    def buyer_utility(self, alpha: ArrayLike, kind: Kind = "printed") -> FloatArray | float:
        """u_B(α) of a θ_H buyer at equilibrium."""
        a = self._checked(alpha)
        if self.low_price_blind:
            return _plain(np.where(self._truthful(a), (1 - a) * self.spread, self.spread - self.buyer_cost))
        evading = self.q_star * (a * self.spread - self.buyer_cost) if kind == "printed" else np.zeros_like(a)
        return _plain(np.where(self._truthful(a), 0.0, evading))

    def commitment(self) -> Commitment:
        """The promise that is best for the seller: α = α*, all buyers truthful, seller utility U_1* (Corollary 3)."""
        alpha = self.alpha_star
        return Commitment(
            alpha, self.blind_price, float(self.seller_utility(alpha)), float(self.buyer_utility(alpha, "printed"))
        )

    def seller_payoff(self, high_at_high: ArrayLike, high_at_low: ArrayLike, evasion: ArrayLike) -> FloatArray:
        """Expected seller utility per buyer when θ_H is charged with these probabilities at the high and the low signal
        (else θ_L) and θ_H buyers evade with probability `evasion`."""
        refuse_masked(high_at_high=high_at_high, high_at_low=high_at_low, evasion=evasion)
        hh, hl, q = (np.asarray(v, dtype=float) for v in (high_at_high, high_at_low, evasion))
        at_high = self.mu * (1 - q) * (hh * self.high + (1 - hh) * self.low)
        at_low = hl * self.mu * q * self.high + (1 - hl) * (self.mu * q + 1 - self.mu) * self.low
        return np.asarray(at_high + at_low - self.mu * q * self.seller_cost)

    def buyer_payoff(self, high_at_high: ArrayLike, high_at_low: ArrayLike, evasion: ArrayLike) -> FloatArray:
        """Expected utility of a θ_H buyer at the same prices and evasion."""
        refuse_masked(high_at_high=high_at_high, high_at_low=high_at_low, evasion=evasion)
        hh, hl, q = (np.asarray(v, dtype=float) for v in (high_at_high, high_at_low, evasion))
        return np.asarray((1 - q) * (1 - hh) * self.spread + q * ((1 - hl) * self.spread - self.buyer_cost))

    def deviation_gains(self, equilibrium: Equilibrium) -> DeviationGains:
        """Best-response check by enumeration: all prices on a grid and both values; both signals."""
        q, a, r = equilibrium.evasion, equilibrium.alpha, equilibrium.low_price_at_low_signal
        prices = np.append(np.linspace(0.0, 1.2 * self.high, 1001), [self.low, self.high])
        posterior = q * self.mu / (q * self.mu + 1 - self.mu)  # P(θ_H | low signal)

        def revenue(price: FloatArray | float, share_high: float) -> FloatArray:
            p = np.asarray(price)
            return np.asarray(p * ((p <= self.low) * (1 - share_high) + (p <= self.high) * share_high))

        played = r * revenue(self.low, posterior) + (1 - r) * revenue(self.high, posterior)
        blind = revenue(equilibrium.blind_price, self.mu)
        from_blind = (1 - a) * (self.high - equilibrium.blind_price)
        honest, evading = from_blind, from_blind + a * r * self.spread - self.buyer_cost
        return DeviationGains(
            aware_at_low_signal=float(np.max(revenue(prices, posterior)) - played),
            aware_at_high_signal=float(np.max(revenue(prices, 1.0)) - self.high),
            blind=float(np.max(revenue(prices, self.mu)) - blind),
            buyer_low=max(-self.buyer_cost, 0.0),  # a θ_L buyer never pays less than θ_L, so evading only costs c_B
            buyer_high=max(honest, evading) - (q * evading + (1 - q) * honest),
        )

    def _truthful(self, alpha: FloatArray | float) -> NDArray[np.bool_]:
        # 0.3 typed by hand may differ from α* by a rounding error
        return np.asarray(np.asarray(alpha) <= self.alpha_star + 1e-12)

    def _checked(self, alpha: ArrayLike) -> FloatArray:
        refuse_masked(alpha=alpha)
        a = np.asarray(alpha, dtype=float)
        if not ((a >= 0) & (a <= 1)).all():
            raise ConfigError(
                f"alpha is a probability and must lie in [0, 1]; got {a.tolist()}. Pass a number between."
            )
        return a


def _plain(values: FloatArray) -> FloatArray | float:
    return float(values) if values.ndim == 0 else values
