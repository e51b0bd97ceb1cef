"""The empirical audit: run a mechanism many times in two neighbouring worlds and certify how well they can be told apart.

The audit uses two statistics. (a) A threshold near the middle gives a lower bound on μ of Gaussian differential privacy
(Nasr et al. 2023). It is sharp for Gaussian mechanisms and misses rare events. (b) The threshold with the largest certified
ε is chosen on one half of the trials and certified on the other by Clopper–Pearson bounds (Jagielski et al. 2020). It finds
rare events.

A certified bound above the claim refutes the claim. A bound below it proves nothing by itself, so an audit whose μ reaches
less than 80 % of the claim is called too weak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from coterie.base.annotations import guarded
from coterie.base.arguments import Level, Positive, whole
from coterie.errors import ConfigError
from coterie.privacy.terms import Delta

Scores = NDArray[np.float64]
World = Callable[
    [np.random.Generator, int], Any
]  # (generator, trials) → one score per trial; larger scores point to world 1
_STRONG = 0.8


class Claim(Protocol):
    """A privacy curve, such as ``Composition``."""

    def delta(self, epsilon: float) -> float:
        """The claimed δ(ε)."""
        ...

    def epsilon(self, delta: float) -> float:
        """The claimed ε(δ)."""
        ...


@guarded
@dataclass(frozen=True)
class PointClaim:
    """The privacy curve that follows from one claimed pair (ε, δ)."""

    claimed_epsilon: Positive
    claimed_delta: Delta

    def delta(self, epsilon: float) -> float:
        """δ(ε): above the claimed ε it stays at δ; below, the worst (ε, δ)-private pair decides."""
        e, d = self.claimed_epsilon, self.claimed_delta
        return d if epsilon >= e else d + (1 - d) * (math.exp(e) - math.exp(epsilon)) / (1 + math.exp(e))

    def epsilon(self, delta: float) -> float:
        """The claimed ε, for the claimed δ or a larger one."""
        return self.claimed_epsilon if delta >= self.claimed_delta else math.inf


@dataclass(frozen=True)
class Point:
    """A test's certified errors: false alarms at most ``alpha`` and misses at most ``beta``."""

    alpha: float
    beta: float

    def delta(self, epsilon: float) -> float:
        """δ(ε) is at least this."""
        e = math.exp(epsilon)
        return max(0.0, 1 - self.beta - e * self.alpha, 1 - self.alpha - e * self.beta)

    def epsilon(self, delta: float) -> float:
        """ε(δ) is at least this."""
        pairs = ((1 - self.beta - delta, self.alpha), (1 - self.alpha - delta, self.beta))
        return max(0.0, *(math.log(top / low) for top, low in pairs if top > 0 and low > 0))

    @property
    def mu(self) -> float:
        """μ is at least this."""
        return max(0.0, float(-ndtri(self.alpha) - ndtri(self.beta)))


@dataclass(frozen=True)
class Audit:
    """The result of an audit. ``verdict`` is "pass", "fail" (the claim is false) or "too weak" (the audit shows nothing)."""

    verdict: str
    caught_by: tuple[str, ...]
    delta: float
    claimed_epsilon: float
    claimed_mu: float
    mu_lower: float
    epsilon_lower: float
    points: tuple[Point, Point]
    trials: int
    confidence: float
    claim: Claim

    @property
    def passed(self) -> bool:
        """Whether the audit did not refute the claim and was strong enough to refute a false one."""
        return self.verdict == "pass"

    def certified(self, epsilon: float) -> float:
        """The certified lower bound on δ(ε), of both statistics."""
        return max(point.delta(epsilon) for point in self.points)

    def to_text(self) -> str:
        """Three lines."""
        caught = f", refuted by {' and '.join(self.caught_by)}" if self.caught_by else ""
        return (
            f"audit: {self.verdict}{caught} ({self.trials:,} trials per world, confidence {self.confidence:g})\n"
            f"claimed    ε = {self.claimed_epsilon:.4g} at δ = {self.delta:g}, μ = {self.claimed_mu:.4g}\n"
            f"certified  ε ≥ {self.epsilon_lower:.4g} by the threshold, μ ≥ {self.mu_lower:.4g} by the middle"
        )

    def plot(self, ax: Any = None) -> Any:
        """The claimed curve δ(ε) against the certified lower bound; a bound above the curve refutes the claim."""
        from matplotlib import pyplot as plt

        axes = plt.subplots(figsize=(6, 4))[1] if ax is None else ax
        limit = self.claimed_epsilon if math.isfinite(self.claimed_epsilon) else self.epsilon_lower
        grid = np.linspace(0, 1.3 * max(limit, self.epsilon_lower, 0.5), 120)
        axes.plot(grid, [max(self.claim.delta(float(e)), 1e-12) for e in grid], label="claimed: δ is at most this")
        low = np.array([self.certified(float(e)) for e in grid])
        axes.plot(
            grid, np.where(low > 0, low, np.nan), "--", label=f"certified: δ is at least this ({self.confidence:.0%})"
        )
        axes.set(yscale="log", ylim=(min(self.delta / 10, 1e-6), 1.2), xlabel="ε", ylabel="δ(ε)")
        axes.set_title(f"Privacy audit: {self.verdict}")
        axes.legend()
        return axes


@guarded
def audit(
    worlds: tuple[World, World],
    claim: Claim | tuple[float, float],
    trials: Annotated[int, whole(100)] = 20_000,
    seed: int = 0,
    *,
    delta: Delta = 1e-5,
    confidence: Level = 0.95,
) -> Audit:
    """Compare two worlds, without and with the canary, against a claim: a ``Composition``, or a pair (ε, δ).

    Each world gives scores, larger when the canary seems present. ``coterie.privacy.canaries`` builds worlds."""
    if not isinstance(worlds, (tuple, list)) or len(worlds) != 2 or not all(callable(world) for world in worlds):
        raise ConfigError(
            f"an audit needs two worlds, without and with the canary, got {type(worlds).__name__}; see mechanism_worlds."
        )
    if isinstance(claim, (tuple, list)) and len(claim) == 2:
        claim = PointClaim(*claim)
        delta = claim.claimed_delta
    if not hasattr(claim, "delta") or not hasattr(claim, "epsilon"):
        raise ConfigError(f"a claim is a Composition or a pair (ε, δ), got {claim!r}; pass one of them.")
    streams = np.random.default_rng(seed).spawn(2)
    out, inside = (_scores(world, rng, trials) for world, rng in zip(worlds, streams, strict=True))
    level = (1 - confidence) / 4  # two statistics, two errors each
    few = trials // 10  # a central threshold needs few trials to be found
    cut = _central(out[:few], inside[:few])
    middle = _certify(out[few:], inside[few:], cut, level)
    half = trials // 2
    cut = _sharpest(out[:half], inside[:half], level, delta)
    sharp = _certify(out[half:], inside[half:], cut, level)
    claimed_mu = 2 * float(ndtri(min((1 + claim.delta(0.0)) / 2, 1 - 1e-16)))
    caught = tuple(
        name
        for name, point in (("(a) the μ bound", middle), ("(b) the threshold", sharp))
        if _refutes(point, claim, delta)
    )
    verdict = "fail" if caught else ("pass" if middle.mu >= _STRONG * claimed_mu else "too weak")
    return Audit(
        verdict,
        caught,
        delta,
        float(claim.epsilon(delta)),
        claimed_mu,
        middle.mu,
        sharp.epsilon(delta),
        (middle, sharp),
        trials,
        confidence,
        claim,
    )


def _scores(world: World, rng: np.random.Generator, trials: int) -> Scores:
    scores = np.asarray(world(rng, trials), dtype=np.float64)
    if scores.shape != (trials,) or np.isnan(scores).any():
        raise ConfigError(f"a world must give {trials} scores that are numbers, got shape {scores.shape}; correct it.")
    return scores


def _central(out: Scores, inside: Scores) -> float:
    """The threshold with the fewest errors."""
    cuts = np.unique(np.concatenate([out, inside]))
    alarms = 1 - np.searchsorted(np.sort(out), cuts, side="right") / len(out)
    misses = np.searchsorted(np.sort(inside), cuts, side="right") / len(inside)
    return float(cuts[np.argmin(alarms + misses)])


def _sharpest(out: Scores, inside: Scores, level: float, delta: float) -> float:
    """The threshold with the largest ε that this half would certify."""
    pooled = np.unique(np.concatenate([out, inside]))
    places = np.linspace(0, len(pooled) - 1, min(len(pooled), 400)).round().astype(int)
    cuts = np.unique(np.concatenate([pooled[places], pooled[:50], pooled[-50:], [out.max(), inside.min()]]))
    alarms = len(out) - np.searchsorted(np.sort(out), cuts, side="right")
    misses = np.searchsorted(np.sort(inside), cuts, side="right")
    alpha, miss = _upper(alarms, len(out), level), _upper(misses, len(inside), level)
    found = [Point(float(a), float(b)).epsilon(delta) for a, b in zip(alpha, miss, strict=True)]
    return float(cuts[int(np.argmax(found))])


def _upper(count: Any, n: int, level: float) -> Any:
    """The Clopper–Pearson upper bound of a probability."""
    count = np.asarray(count)
    return np.where(count >= n, 1.0, betaincinv(count + 1, np.maximum(n - count, 1), 1 - level))


def _certify(out: Scores, inside: Scores, cut: float, level: float) -> Point:
    alarms, misses = int((out > cut).sum()), int((inside <= cut).sum())
    return Point(float(_upper(alarms, len(out), level)), float(_upper(misses, len(inside), level)))


def _refutes(point: Point, claim: Claim, delta: float) -> bool:
    """Whether the point refutes the claim: the lower bound on δ(ε) is above the claimed curve somewhere."""
    if point.epsilon(delta) > claim.epsilon(delta):
        return True
    top = max(point.epsilon(0.0), 1e-3)
    return any(point.delta(float(e)) > claim.delta(float(e)) for e in np.linspace(0, top, 60))
