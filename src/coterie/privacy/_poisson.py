"""Poisson sampling: privacy loss distributions by dp-accounting, pessimistic (they never under-report).

Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions" (PoPETs 2022).

*Zero-out* is the pair N(0, z²) against (1−q)·N(0, z²) + q·N(1, z²), in both orders: that of add/remove.

*Replace* is not covered by either order alone once rounds compose. By advanced joint convexity (Balle, Barthe and
Gaboardi 2018, Theorem 2) the trade-off of two replaced users is at most that of *remove* for ε ≥ 0, and, by symmetry, that
of *add* for ε < 0, both taken at the replace sensitivity. The larger of the two at every ε is the curve of a pair that
dominates, and composition keeps domination (Zhu, Dong and Wang 2022). That pair is what is composed here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

FINE = 1e-4  # steps of the privacy loss; coarser where the loss ranges over thousands
COARSE = 1e-3
_MASS = -50.0  # log of the probability that truncation moves to "infinite loss"


def interval(noise_multiplier: float, rounds: int, fine: float = FINE) -> float:
    """A step of the loss grid that keeps the grid below some millions of points."""
    mu2 = rounds / noise_multiplier**2
    return fine * max(1.0, (mu2 / 2 + 10 * math.sqrt(mu2)) / 400)


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

    accountant = rdp.RdpAccountant()
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
