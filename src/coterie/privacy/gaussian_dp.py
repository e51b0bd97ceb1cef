"""The Gaussian mechanism in closed form: its δ(ε), and the inverses.

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
Denoising" (ICML 2018), Theorem 8; Dong, Roth and Su, "Gaussian Differential Privacy" (2019), Corollaries 2.13 and 3.3.
A Gaussian release with noise σ and sensitivity Δ has μ = Δ/σ; several releases compose exactly to μ² = Σ μ_i².
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from coterie.base.annotations import guarded
from coterie.errors import ConfigError

_ROUNDING = 1e-15  # of a logarithm, relative


def delta_of(mu: float, epsilon: float) -> float:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), computed so that small values keep their digits, and rounded up."""
    if mu == 0:
        return max(0.0, -math.expm1(min(epsilon, 0.0)))
    if math.isinf(mu):
        return 1.0
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    if first < -745:  # below the smallest number above 0
        return 0.0
    second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    rounding = _ROUNDING * (1 + abs(first))  # of the two logarithms, which nearly cancel where μ is tiny
    return min(float(np.exp(first) * (rounding - np.expm1(min(second - first, 0.0)))), 1.0)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ."""
    if mu == 0 or delta_of(mu, 0.0) <= delta:
        return 0.0
    # Above this point Φ(−ε/μ + μ/2) alone is below δ.
    high = mu * mu / 2 + mu * (math.sqrt(2 * math.log(1 / delta)) + 1)
    found = float(brentq(lambda e: delta_of(mu, e) - delta, 0.0, high, xtol=1e-13 * high, rtol=1e-13))
    step = 1e-13 * high
    while delta_of(mu, found) > delta:  # a root is found from both sides
        found, step = found + step, 2 * step
    return found


@guarded
def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ whose releases are (ε, δ)-private."""
    if not (epsilon >= 0 and 0 < delta < 1):
        raise ConfigError(f"ε must be ≥ 0 and δ in (0, 1); got {epsilon:g} and {delta:g}. Correct the one outside.")
    high = 1.0
    while delta_of(high, epsilon) < delta:
        high *= 2
    found = float(brentq(lambda m: delta_of(m, epsilon) - delta, 0.0, high, xtol=1e-300, rtol=1e-13, maxiter=2000))
    step = 1e-13
    while found > 0 and delta_of(found, epsilon) > delta:
        found, step = found * (1 - step), min(2 * step, 0.5)
    if found <= 0:
        raise ConfigError(
            f"no noise is large enough for ε = {epsilon:g} at δ = {delta:g}, got both so small; raise one."
        )
    return found
