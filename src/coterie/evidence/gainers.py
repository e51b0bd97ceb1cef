"""How many clients gain, and by about how much each: answers with power where single clients cannot be told apart.

Client i's measured gain g_i has error s_i. True gains are taken as normal, δ_i ~ N(μ, τ²), with μ and τ² estimated from all
clients by moments, and drawn given g_i for many resamples of the clients, so that the error of μ and τ² is part of the
answer. The share of clients that gain is that of δ_i > 0; a client's shrunken gain is the mean of its
draws. True gains are skewed rather than normal, so the interval also holds that of shares without shrinking (τ² infinite),
which errs to the other side. The strict marks of `gains` control false discoveries; these answers name nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.evidence.gains import LEVEL, Floats, Gains

DRAWS = 400
FEWEST = 4  # clients; fewer say nothing about a share


@dataclass(frozen=True)
class Gainers:
    """The share of clients that gain with its interval, and every client's shrunken gain and its error (NaN without a
    score)."""

    share: float
    low: float
    high: float
    gains: Floats
    errors: Floats

    def to_json(self) -> dict[str, Any]:
        return {"share": self.share, "interval": [self.low, self.high]}

    def words(self, method: str) -> str:
        low, high = (f"{100 * v:.0f}" for v in (self.low, self.high))
        return f"About {100 * self.share:.0f} % of the clients gain with {method} (interval {low} to {high} %)."


def gainers(gains: Gains, level: float = LEVEL, seed: int = 0) -> Gainers | None:
    """None for fewer than four clients with a score."""
    known = np.flatnonzero(gains.known & np.isfinite(gains.error) & (gains.error > 0))
    m = len(known)
    if m < FEWEST:
        return None
    rng = np.random.default_rng([seed, 37])
    g, variance = gains.mean[known], gains.error[known] ** 2
    draws = np.empty((DRAWS, m))
    for b in range(DRAWS):
        some = rng.integers(m, size=m)
        mean, between = _population(g[some], variance[some])
        kept = between / (between + variance)
        draws[b] = mean + kept * (g - mean) + rng.normal(size=m) * np.sqrt(kept * variance)
    some = rng.integers(m, size=(DRAWS, m))
    alike = g[some] + rng.normal(size=(DRAWS, m)) * np.sqrt(variance)[some]
    shares = (draws > 0).mean(1)
    bounds = [np.quantile(s, [(1 - level) / 2, (1 + level) / 2]) for s in (shares, (alike > 0).mean(1))]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    found, error = np.full((2, len(gains.mean)), np.nan)
    found[known], error[known] = draws.mean(0), draws.std(0)
    return Gainers(float(shares.mean()), float(low), float(high), found, error)


def _population(g: Floats, variance: Floats) -> tuple[float, float]:
    """The mean of true gains, and their variance by moments, at least a little so that draws are never all alike."""
    weight = 1 / variance
    mean = float((weight * g).sum() / weight.sum())
    excess = float((weight * (g - mean) ** 2).sum()) - (len(g) - 1)
    scale = float(weight.sum() - (weight**2).sum() / weight.sum())
    between = max(excess / scale if scale > 0 else 0.0, 0.05 * float(np.median(variance)))
    weight = 1 / (variance + between)
    return float((weight * g).sum() / weight.sum()), between
