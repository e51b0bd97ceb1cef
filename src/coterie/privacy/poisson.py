"""Poisson sampling: privacy loss distributions by dp-accounting, pessimistic (they never under-report).

Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions" (PoPETs 2022).

*Zero-out* is the pair N(0, z²) against (1−q)·N(0, z²) + q·N(1, z²), in both orders, as for add/remove.

*Replace* is not covered by either order alone once rounds compose. By advanced joint convexity (Balle, Barthe and
Gaboardi 2018, Theorem 2) the trade-off of two replaced users is at most that of *remove* for ε ≥ 0, and, by symmetry, that
of *add* for ε < 0, both taken at the replace sensitivity. The larger of the two at every ε is the curve of a pair that
dominates, and composition keeps domination (Zhu, Dong and Wang 2022). This module composes that pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

FINE = 0.03  # the grid's step, in standard deviations of one round's loss: ε is too large by about 1e-4 of itself
COARSE = 0.15  # for the search of a bracket
_ORDERS = (*range(2, 65), *range(72, 257, 8), 512, 1024)  # whole ones: fractional ones are slow and may not converge
_LONGEST = 4e6  # points of a grid
_MASS = -50.0  # log of the probability that truncation moves to "infinite loss"


def interval(parts: Sequence[tuple[float, float, int]], fine: float = FINE) -> float:
    """A step of the loss grid for groups of (noise multiplier, sampling, count).

    Rounding up inflates ε by about (step/sd)²/10, where sd is that of one round's loss, q·√(e^(1/z²) − 1) (measured); so
    rounds that lose little need a fine grid. The other limit is the length of the grid of all rounds together."""
    rounds = [
        (1.0 / z * math.sqrt(n), 1) if q == 1 else (q * math.sqrt(math.expm1(min(z**-2, 50))), n) for z, q, n in parts
    ]
    largest = [1 / z for z, _, _ in parts]
    sizes = [sd if q == 1 else min(sd, top) for (sd, _), top, (_, q, _) in zip(rounds, largest, parts, strict=True)]
    variance = sum(n * sd**2 for (_, n), sd in zip(rounds, sizes, strict=True))
    wanted = min([1e-3, *(fine * sd for sd, _ in rounds)])
    return max(wanted, (variance / 2 + 10 * math.sqrt(variance)) / _LONGEST)


@lru_cache(maxsize=64)
def gaussian(noise_multiplier: float, sampling: float, count: int, step: float, adjacency: str) -> Any:
    """The loss distribution of ``count`` rounds."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    if sampling == 1.0:  # exact: count rounds are one round with less noise
        noise_multiplier, count = noise_multiplier / math.sqrt(count), 1
    if sampling < 1.0 and adjacency == "replace":
        one = _replaced(noise_multiplier, sampling, step)
    else:
        one = pld.from_gaussian_mechanism(
            noise_multiplier,
            value_discretization_interval=step,
            log_mass_truncation_bound=_MASS,
            sampling_prob=sampling,
            use_connect_dots=True,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    return one if count == 1 else one.self_compose(count)


def _replaced(noise_multiplier: float, sampling: float, step: float) -> Any:
    """The dominating pair of the module's docstring as a loss distribution."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld import privacy_loss_mechanism as mechanism

    orders = [
        mechanism.GaussianPrivacyLoss(
            noise_multiplier, log_mass_truncation_bound=_MASS, sampling_prob=sampling, adjacency_type=order
        )
        for order in (mechanism.AdjacencyType.REMOVE, mechanism.AdjacencyType.ADD)
    ]
    bounds = [order.connect_dots_bounds() for order in orders]
    low = math.floor(min(b.epsilon_lower for b in bounds) / step)
    high = math.ceil(max(b.epsilon_upper for b in bounds) / step)
    grid = np.arange(low, high + 1) * step
    deltas = np.maximum(*(np.asarray(order.get_delta_for_epsilon(grid)) for order in orders))
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, deltas))


@lru_cache(maxsize=16)
def pure(epsilon: float, step: float) -> Any:
    """The loss distribution of an ε-private release with δ = 0."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=step
    )


def rdp_epsilon(groups: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Rényi accounting of (noise multiplier, sampling, count) groups: an upper bound, used as the cross-check."""
    import dp_accounting as dp
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders=_ORDERS)
    for noise_multiplier, sampling, count in groups:
        event: Any = dp.GaussianDpEvent(noise_multiplier)
        if sampling < 1:
            event = dp.PoissonSampledDpEvent(sampling, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def version() -> str:
    """dp-accounting's version."""
    from importlib.metadata import version as of

    return of("dp-accounting")
