"""How large the balls of Threshold-Clustering are: the radius rules of the text, the theorems, the proofs and the
experiments, which all differ (erratum EC-12).

Section 2.3, and the proofs in section 2.6, of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

Symbols: δ `delta`, the share of all points in a centre's own cluster; σ² = E‖z − Ez‖² within it; Δ `separation` from the
means of the others; β `malicious`, the share of malicious points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, NotNegative, Part, Percent, Positive
from coterie.errors import ConfigError

RadiusRule = Callable[[Tensor, int], Tensor]
"""The radii (…, K) of inner round l = 0, 1, … from the current distances (…, K, N)."""


@guarded
@dataclass(frozen=True)
class Percentile:
    """The p-th percentile of the current distances of all N points, an own point at distance 0 included.

    p must not exceed 100 δ, or the ball reaches into other clusters; with K equal clusters use 100 / K. At most p % of the
    way is made per round: at p = 20 the start still weighs 0.8¹⁰ ≈ 11 % after 10 rounds."""

    p: Percent = 20.0

    def __call__(self, distances: Tensor, round: int) -> Tensor:
        place = self.p * (distances.shape[-1] - 1) / 100
        place = float(np.round(place)) if abs(place - np.round(place)) < 1e-9 else place  # 0.29 · 100 is not exactly 29
        low = math.floor(place)
        ordered = distances.sort(-1).values
        above = ordered[..., min(low + 1, ordered.shape[-1] - 1)]
        return ordered[..., low] + (place - low) * (above - ordered[..., low])


@guarded
@dataclass(frozen=True)
class Fixed:
    """The same radius for every centre and round."""

    radius: NotNegative

    def __call__(self, distances: Tensor, round: int) -> Tensor:
        return torch.full_like(distances[..., 0], self.radius)


@guarded
@dataclass(frozen=True)
class Theory:
    """τ = √(δσΔ), the radius of Theorem 1; `delta=1` gives the √(σΔ) of the section "Setting τ" (erratum EC-12).

    For mini-batches of size B pass sigma = σ/√B (Theorem 3), for momenta sigma = √α σ (Theorem 4)."""

    delta: Part
    sigma: NotNegative
    separation: Positive

    def __call__(self, distances: Tensor, round: int) -> Tensor:
        return torch.full_like(distances[..., 0], math.sqrt(self.delta * self.sigma * self.separation))


@guarded
@dataclass(frozen=True)
class Proof:
    """τ_l² = c_l² + A⁴E‖∇f̄‖² + δσΔ, the radius in the proofs (erratum EC-12), c_l² the squared error before round l.

    The error is not known, so its bound is used: c_1² = `start_error`² (σ² by default, what Theorem 1 assumes) and
    c_{l+1}² = (1 − δ/2) c_l² + σ²/n + σ³/Δ + βσΔ (display (iii) of the proof, constants one).
    `members` is n; `malicious` is β; `gradient` is A⁴E‖∇f̄‖² (Theorem 3, zero for points)."""

    delta: Part
    sigma: NotNegative
    separation: Positive
    members: Count
    malicious: NotNegative = 0.0
    gradient: NotNegative = 0.0
    start_error: NotNegative | None = None

    def squared_error(self, round: int) -> float:
        """c² before inner round 0, 1, …"""
        s, d = self.sigma, self.separation
        floor = s**2 / self.members + s**3 / d + self.malicious * s * d
        keep = (1 - self.delta / 2) ** round
        start = s if self.start_error is None else self.start_error
        return keep * start**2 + floor * (1 - keep) * 2 / self.delta

    def __call__(self, distances: Tensor, round: int) -> Tensor:
        square = self.squared_error(round) + self.gradient + self.delta * self.sigma * self.separation
        return torch.full_like(distances[..., 0], math.sqrt(square))


RADIUS_RULES: dict[str, type] = {
    "percentile": Percentile,
    "fixed": Fixed,
    "theory": Theory,
    "proof": Proof,
}


def radius_rule(radius: RadiusRule | float) -> RadiusRule:
    """A rule as it is; a number is a `Fixed` radius."""
    if isinstance(radius, Real):
        return Fixed(float(radius))
    if callable(radius):
        return radius
    raise ConfigError(f"radius must be a number or a rule such as Percentile(20); got {radius!r}. Pass one of these.")
