"""Budget to noise, and noise to budget.

Every release is Gaussian with noise multiplier z = σ/Δ, where Δ is the sensitivity under the chosen adjacency. Full
participation uses the exact closed form of ``gaussian_dp``; Poisson sampling uses dp-accounting's privacy loss distributions
(``poisson``). A cohort of fixed size is *not* Poisson sampling and must not be accounted as such.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Part, Positive, shown
from coterie.errors import ConfigError
from coterie.privacy import poisson
from coterie.privacy.events import Event
from coterie.privacy.gaussian_dp import delta_of, epsilon_of, mu_of
from coterie.privacy.terms import Adjacency, Delta

_LEAST = 0.05  # with sampling, no less noise than this is planned, however large the budget
_MARGIN = 1e-9  # relative: calibrated noise is rounded up, reported budgets too


@dataclass(frozen=True)
class Composition:
    """The joint cost of several releases: ``epsilon(delta)`` and ``delta(epsilon)``, both upper bounds.

    ``mu`` joins the unsampled Gaussian releases exactly. ``sampled`` holds (noise multiplier, sampling, count, adjacency)
    groups, ``pure`` the (ε, count) of randomised responses. ``slack`` is added to ε for the lattice, ``failure`` to δ."""

    mu: float = 0.0
    sampled: tuple[tuple[float, float, int, str], ...] = ()
    pure: tuple[tuple[float, int], ...] = ()
    slack: float = 0.0
    failure: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the closed form applies."""
        return not self.sampled and not self.pure

    @property
    def accountant(self) -> str:
        """The name of the method, for the receipt."""
        if self.exact:
            return "Gaussian differential privacy, exact closed form"
        if not self.sampled and not self.mu:
            return "sum of pure ε"
        return f"privacy loss distributions, dp-accounting {poisson.version()}"

    @guarded
    def epsilon(self, delta: Delta) -> float:
        """The smallest ε for this δ."""
        return composed_epsilon(self, float(delta))

    def delta(self, epsilon: float) -> float:
        """The smallest δ for this ε ≥ 0."""
        free = float(epsilon) - self.slack  # may be slightly below 0, where δ(ε) is defined as well
        if self.exact:
            found = delta_of(self.mu, free)
        elif not self.sampled and not self.mu:
            found = delta_pure(sum(e * n for e, n in self.pure), free)
        else:
            found = float(_losses(self, poisson.FINE).get_delta_for_epsilon(free))
        return min(1.0, self.failure + found * math.exp(self.slack) * (1 + _MARGIN))


def delta_pure(total: float, epsilon: float) -> float:
    """δ(ε) of a release that is ``total``-private with δ = 0: that of randomised response."""
    if epsilon >= total:
        return 0.0
    return (math.exp(total) - math.exp(epsilon)) / (1 + math.exp(total))


@lru_cache(maxsize=512)
def composed_epsilon(costs: Composition, delta: float, fine: float = poisson.FINE) -> float:
    inner = (delta - costs.failure) * math.exp(-costs.slack)
    if inner <= 0:  # failures alone exceed δ, or the lattice is so coarse that its cost is beyond floating point
        return math.inf
    if costs.exact:
        found = epsilon_of(costs.mu, inner)
    elif not costs.sampled and not costs.mu:
        found = sum(e * n for e, n in costs.pure)
    else:
        found = float(_losses(costs, fine).get_epsilon_for_delta(inner))
    return (found + costs.slack) * (1 + _MARGIN)


@lru_cache(maxsize=8)
def _losses(costs: Composition, fine: float) -> Any:
    """The joint loss distribution, on one common grid."""
    parts = [(z, q, n, a) for z, q, n, a in costs.sampled]
    if costs.mu:
        parts.append((1 / costs.mu, 1.0, 1, "zero-out"))
    step = poisson.interval([part[:3] for part in parts], fine) if parts else 1e-3
    losses = [poisson.gaussian(z, q, n, step, a) for z, q, n, a in parts]
    losses += [poisson.pure(e, step).self_compose(n) if n > 1 else poisson.pure(e, step) for e, n in costs.pure]
    joint = losses[0]
    for other in losses[1:]:
        joint = joint.compose(other)
    return joint


@guarded
def compose(events: Iterable[Event]) -> Composition:
    """The joint cost of events, whatever their order; Gaussian ones without sampling join exactly."""
    mu2, slack, failure = 0.0, 0.0, 0.0
    sampled: Counter[tuple[float, float, str]] = Counter()
    pure: Counter[float] = Counter()
    for event in events:
        if not isinstance(event, Event):
            raise ConfigError(
                f"events must be Events, which mechanisms make; got {shown(event)}. Pass mechanism.event()."
            )
        slack += event.slack * event.count
        failure += event.failure * event.count
        if event.count == 0:
            continue
        if event.kind == "randomised response":
            pure[event.pure_epsilon] += event.count
        elif event.sampling == 1.0:
            mu2 += event.count / event.noise_multiplier**2
        else:
            sampled[(event.noise_multiplier, event.sampling, event.adjacency)] += event.count
    groups = tuple((z, q, n, a) for (z, q, a), n in sorted(sampled.items()))
    return Composition(math.sqrt(mu2), groups, tuple(sorted(pure.items())), slack, failure)


def rounds_cost(noise_multiplier: float, rounds: int, sampling: float, adjacency: str) -> Composition:
    """``rounds`` equal Gaussian releases."""
    if sampling == 1.0:
        return Composition(mu=math.sqrt(rounds) / noise_multiplier)
    return Composition(sampled=((noise_multiplier, sampling, rounds, adjacency),))


@guarded
def epsilon(
    noise_multiplier: Positive, delta: Delta, rounds: Count, sampling: Part = 1.0, *, adjacency: Adjacency = "zero-out"
) -> float:
    """The ε that ``rounds`` Gaussian releases with σ = noise_multiplier·Δ cost at this δ.

    ``sampling`` below 1 means that every client takes part in every round by its own coin flip (Poisson sampling)."""
    return rounds_cost(noise_multiplier, rounds, sampling, adjacency).epsilon(delta)


@guarded
def adaped_epsilon(
    noise: Positive, clip: Positive, delta: Delta, *, rounds: Count, cohort: Count, clients: Count, steps: Count = 10
) -> tuple[float, float]:
    """ε of DP-AdaPeD as printed, whose `steps` local steps each clip the derivatives of μ and of ψ to `clip` and add noise
    of deviation `noise`: what Theorem 7 of Ozkara et al. (2023) says, and what holds.

    Theorem 7: Rényi ε(α) = 6α(K/m)²·rounds·2C²/(Kσ²), at the best order α. It lacks a factor, and its 6 fails at usual
    sampling rates (erratum E17). What holds: the noise of a step changes the next step's derivatives, so that only
    composition over all steps of the rounds·K/m rounds of a client covers it; neither sums nor sampling help."""
    slope = 12 * (cohort / clients) ** 2 * rounds * clip**2 / (cohort * noise**2)
    orders = np.concatenate([np.linspace(1.01, 20, 400), np.geomspace(20, 1e5, 400)])
    printed = orders * slope + np.log1p(-1 / orders) + (math.log(1 / delta) - np.log(orders)) / (orders - 1)
    taken = math.ceil(rounds * cohort / clients - 1e-9)
    return float(printed.min()), epsilon(noise / (clip * math.sqrt(2 * steps)), delta, taken)


@guarded
def delta(
    noise_multiplier: Positive,
    epsilon: Positive,
    rounds: Count,
    sampling: Part = 1.0,
    *,
    adjacency: Adjacency = "zero-out",
) -> float:
    """The δ that goes with this ε; see ``epsilon``."""
    return rounds_cost(noise_multiplier, rounds, sampling, adjacency).delta(epsilon)


@guarded
def noise_multiplier(
    epsilon: Positive, delta: Delta, rounds: Count, sampling: Part = 1.0, *, adjacency: Adjacency = "zero-out"
) -> float:
    """The smallest z = σ/Δ with which ``rounds`` Gaussian releases are (ε, δ)-private together.

    Full participation is exact. With Poisson sampling the answer is rounded up by at most one part in ten thousand."""
    full = math.sqrt(rounds) / mu_of(epsilon, delta) * (1 + _MARGIN)
    return full if sampling == 1.0 else _calibrated(epsilon, delta, rounds, sampling, adjacency, full)


@lru_cache(maxsize=128)
def _calibrated(epsilon: float, delta: float, rounds: int, sampling: float, adjacency: str, full: float) -> float:
    def cost(log_z: float, fine: float) -> float:
        return composed_epsilon(rounds_cost(math.exp(log_z), rounds, sampling, adjacency), delta, fine)

    if sampling * rounds <= delta:  # clients take part so rarely that the sampling alone is private enough
        return _LEAST
    # The central limit of Poisson sampling (Bu et al. 2020) as a first guess, and no sampling as an upper end.
    mu = math.sqrt(rounds) / full
    guess = 1 / math.sqrt(math.log1p(mu * mu / (rounds * sampling**2)))
    return math.exp(least_noise(cost, epsilon, math.log(min(guess, full)), math.log(full)))


def least_noise(cost: Callable[[float, float], float], epsilon: float, guess: float, end: float = math.inf) -> float:
    """The smallest logarithm of noise x ≤ end with cost(x, fine grid) ≤ ε, to one part in ten thousand.

    log ε falls almost linearly in x, so secants on the coarse grid find it in a few steps; the fine grid, which asks for
    slightly less noise, decides. Every cost is an upper bound, so x is never too small."""

    def gap(x: float, fine: float) -> float:
        return math.log(max(cost(x, fine), 1e-12) / epsilon)

    low = min(math.log(_LEAST), guess)
    here, slope = guess, -1.0
    found = gap(here, poisson.COARSE)
    for _ in range(30):
        step = min(max(-found / slope, -0.7), 0.7)
        there = max(min(here + step, end), low)
        if abs(there - here) < 2e-3:
            break
        other = gap(there, poisson.COARSE)
        slope = min((other - found) / (there - here), -0.2)
        here, found = there, other
    here = max(min(here - gap(here, poisson.FINE) / slope + 2e-5, end), low)
    while here < end and gap(here, poisson.FINE) > 0:
        here = min(here + 5e-5, end)
    return here


def cross_check(costs: Composition, delta: float) -> tuple[str, float]:
    """A second opinion on ``costs.epsilon(delta)`` by another method, for the receipt."""
    delta -= costs.failure
    if delta > 0 and costs.exact and costs.mu:
        step = poisson.interval([(1 / costs.mu, 1.0, 1)])
        loss = poisson.gaussian(1 / costs.mu, 1.0, 1, step, "zero-out")
        found = float(loss.get_epsilon_for_delta(delta))
        return f"privacy loss distribution, dp-accounting {poisson.version()}", found + costs.slack
    if delta > 0 and costs.sampled and not costs.pure and all(a == "zero-out" for *_, a in costs.sampled):
        groups = [(z, q, n) for z, q, n, _ in costs.sampled]
        if costs.mu:
            groups.append((1 / costs.mu, 1.0, 1))
        found = poisson.rdp_epsilon(tuple(groups), delta)
        return f"Rényi differential privacy (an upper bound), dp-accounting {poisson.version()}", found + costs.slack
    return "none", float("nan")


def curve(costs: Composition, epsilons: Iterable[float]) -> list[tuple[float, float]]:
    """The points (ε, δ(ε)), δ rounded up to three digits."""
    return [(float(e), round_up(costs.delta(float(e)))) for e in epsilons]


def round_up(value: float, digits: int = 3) -> float:
    """The smallest number with so many digits that is not smaller than the given one."""
    if value <= 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    up = math.ceil(value * scale * (1 - 1e-12)) / scale
    return up if up >= value else float(np.nextafter(value, math.inf))
