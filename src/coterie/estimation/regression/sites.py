"""Logistic models with a prior variance per coefficient: expectation propagation and REML take turns.

With the sites (τ, ν) held, a logistic model is a linear one with A_i = X_iᵀ diag(τ) X_i, c_i = X_iᵀν and σ² = 1, so the
population of `evidence` fits it; under the new population the sites are found anew. Where nothing moves, μ and Θ are
stationary points of EP's own marginal likelihood (μ integrated out, as in REML), because its slopes are those with the sites
held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.estimation.checks import Array, Ints
from coterie.estimation.regression.evidence import Evidence, Found, averaged
from coterie.estimation.regression.expectation_propagation import WEAK, laplace_sites, settle
from coterie.estimation.regression.grouped import Grouped
from coterie.estimation.regression.newton import find_modes, make_blocks
from coterie.estimation.regression.reml import maximise

LARGEST = 400.0  # of a prior variance for columns of unit size: labels are certain long before
START = 0.3


@dataclass(frozen=True)
class Learned:
    """The population in the units of the columns, and the clients' posteriors, averaged over possible variances."""

    mean: Array
    covariance: Array  # (p,) or (p, p)
    mean_covariance: Array
    posterior_mean: Array
    variance: Array
    rounds: int
    converged: bool


def _forms(rows: Grouped, mean: Array, root: Array) -> tuple[Array, Array]:
    """A_i and c_i of EP's sites under θ_i ~ N(mean, L Lᵀ)."""
    p = rows.X.shape[1]
    A, c = np.zeros((len(rows.counts), p, p)), np.zeros((len(rows.counts), p))
    for block in make_blocks(rows, root):
        post = settle(block, mean, 1.0, laplace_sites(block, mean, find_modes(block, mean, 1.0)))
        turned = block.X.swapaxes(1, 2)
        A[block.clients] = turned @ (post.tau[:, :, None] * block.X)
        c[block.clients] = (turned @ post.nu[:, :, None])[:, :, 0]
    return A, c


def square_root(theta: Array) -> Array:
    """L with L Lᵀ = Θ: roots of the variances, or the symmetric root of a covariance."""
    if theta.ndim == 1:
        return np.sqrt(theta)
    value, turn = np.linalg.eigh(theta)
    return np.asarray((turn * np.sqrt(np.maximum(value, 0.0))) @ turn.T)


def learn(rows: Grouped, ties: Ints | None, size: Array, pooled: bool, rounds: int, tol: float) -> Learned:
    """Rows are brought to unit size first. `pooled`: one model for all rows."""
    unit = Grouped(rows.X / size, rows.y, rows.clients, rows.starts, rows.counts, rows.weight)
    p = len(size)
    mean, theta, start = np.zeros(p), np.full(p, 0.0 if pooled else START), None
    theta = np.diag(theta) if ties is None and not pooled else theta
    found: Found | None = None
    converged = False
    for number in range(1, rounds + 1):  # noqa: B007
        A, c = _forms(unit, mean, square_root(theta))
        groups = np.zeros(p, dtype=np.int64) if pooled else ties
        evidence = Evidence(A, c, len(rows.y), None, groups, p, WEAK)
        found = evidence.posterior(np.zeros(1)) if pooled else maximise(evidence, start, LARGEST)
        moved = float(np.abs(found.mean - mean).max())
        change = float(np.abs(square_root(found.theta) - square_root(theta)).max())
        mean, theta = found.mean, found.theta
        start = None if ties is None else np.maximum(found.parameters, 1e-3)
        converged = max(moved, change) < tol * (0.1 + float(np.sqrt(np.abs(theta).max())))
        if converged:
            break
    assert found is not None
    average, variance = found.coef, np.einsum("ijj->ij", found.covariance)
    if not pooled and ties is not None:
        average, variance = averaged(evidence, found)
    across = np.outer(size, size)
    covariance = theta / size**2 if theta.ndim == 1 else theta / across
    return Learned(
        mean / size, covariance, found.mean_covariance / across, average / size, variance / size**2, number, converged
    )
