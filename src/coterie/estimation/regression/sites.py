"""Logistic models with a prior variance per coefficient: expectation propagation and REML take turns.

With the sites (τ, ν) held, a logistic model is a linear one with A_i = X_iᵀ diag(τ) X_i, c_i = X_iᵀν and σ² = 1, so the
population of `evidence` fits it; under the new population the sites are found anew. Where nothing moves, μ and Θ are
stationary points of EP's own marginal likelihood (μ integrated out, as in REML), because its slopes are those with the sites
held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.estimation.conventions import Array, Ints
from coterie.estimation.regression.client_models import Fitted
from coterie.estimation.regression.evidence import Evidence, Found, averaged
from coterie.estimation.regression.expectation_propagation import WEAK, laplace_sites, settle
from coterie.estimation.regression.grouped import Grouped
from coterie.estimation.regression.newton import find_modes, make_blocks
from coterie.estimation.regression.reml import maximise

LARGEST = 400.0  # of a prior variance for columns of unit size: labels are certain long before
START = 0.3


@dataclass(frozen=True)
class Told:
    """Rows that stay with their clients, which tell what is asked: `forms` under a population of columns of unit size, and
    posteriors under a population."""

    clients: NDArray[Any]
    seen: Ints
    sizes: Array
    forms: Callable[[Array, Array], tuple[Array, ...]]
    posteriors: Callable[[Array, Array, Array], tuple[Array, ...]]

    @property
    def counts(self) -> Ints:
        return self.seen

    @property
    def n_rows(self) -> int:
        return int(self.seen.sum())

    @property
    def width(self) -> int:
        return len(self.sizes)


def forms_of(rows: Grouped, mean: Array, root: Array) -> tuple[Array, Array]:
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


def learn(rows: Grouped | Told, ties: Ints | None, pooled: bool, rounds: int, tol: float) -> tuple[Fitted, int]:
    """The population, the clients' posterior means and variances averaged over possible priors, and the rounds that it took.

    Rows are brought to unit size first. `pooled`: one model for all rows."""
    size = rows.sizes
    p = rows.width
    forms = rows.forms if isinstance(rows, Told) else partial(forms_of, replace(rows, X=rows.X / size))
    mean, theta, start = np.zeros(p), np.full(p, 0.0 if pooled else START), None
    theta = np.diag(theta) if ties is None and not pooled else theta
    found: Found | None = None
    converged = False
    for number in range(1, rounds + 1):  # noqa: B007
        A, c = forms(mean, square_root(theta))
        evidence = Evidence(A, c, rows.n_rows, None, ties, p, WEAK, pooled)
        found = maximise(evidence, start, LARGEST)
        moved = float(np.abs(found.mean - mean).max())
        change = float(np.abs(square_root(found.theta) - square_root(theta)).max())
        mean, theta = found.mean, found.theta
        start = None if ties is None else np.maximum(found.parameters, 1e-3)
        converged = max(moved, change) < tol * (0.1 + float(np.sqrt(np.abs(theta).max())))
        if converged:
            break
    assert found is not None
    average, variance = averaged(evidence, found)
    made = Fitted(average, mean, variance, theta, found.mean_covariance, converged=converged)
    return made.rescaled(size), number
