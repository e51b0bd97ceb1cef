"""Linear models with a prior variance per coefficient, or a full prior covariance, by restricted maximum likelihood.

Theorem 6 with θ_i ~ N(μ, Σ) instead of N(μ, σ_θ² I): on real designs one variance for all coefficients makes slopes worse
than pooling. Columns are measured in units of their size, and the pooled fit is taken off y first: both leave REML
unchanged and keep the digits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.estimation.blocks import grams
from coterie.estimation.conventions import Array, Ints
from coterie.estimation.regression.client_models import Fitted
from coterie.estimation.regression.evidence import Evidence, Found, averaged, posterior_given
from coterie.estimation.regression.grouped import Grouped

LARGEST = 1e8  # of a prior variance, in noise variances per unit of a column


def maximise(evidence: Evidence, start: Array | None = None, largest: float = LARGEST) -> Found:
    """REML by L-BFGS in units of the variances' errors, which are measured anew until nothing is gained."""
    if evidence.pooled:
        return evidence.posterior(np.zeros(1))
    if evidence.ties is None:
        return _maximise_full(evidence, largest)
    number = int(evidence.ties.max()) + 1
    starts = [np.full(number, 0.05), np.full(number, 1.0)] if start is None else [start]
    tries = [evidence.maximise([s], largest, scale=evidence.error_of_variances(s)) for s in starts]
    found = min(tries, key=lambda f: evidence(f.parameters)[0])
    for _ in range(6):
        again = evidence.maximise([found.parameters], largest, scale=evidence.error_of_variances(found.parameters))
        gain = (evidence(found.parameters)[0] - evidence(again.parameters)[0]) * evidence.n_rows
        found = again if gain >= 0 else found
        if gain < 1e-4:
            break
    return found


def _maximise_full(evidence: Evidence, largest: float) -> Found:
    """Θ = L Lᵀ from the diagonal solution, whose zeros are lifted: at L = 0 the gradient vanishes."""
    p = evidence.width
    diagonal = replace(evidence, ties=np.arange(p))
    variances = maximise(diagonal, largest=largest).parameters
    root = np.sqrt(np.maximum(variances, 0.3 * diagonal.error_of_variances(variances)))
    start, rows = np.diag(root)[np.tril_indices(p)], np.tril_indices(p)[0]
    found = evidence.maximise([start], largest, steps=500, scale=root[rows])
    return evidence.maximise([found.parameters], largest, steps=500, scale=root[rows])


def fit_reml(rows: Grouped, ties: Ints | None, noise: float | None, pooled: bool) -> Fitted:
    """The REML fit. `pooled`: all rows belong to one model, the population's."""
    size = rows.sizes
    Z = rows.X / size
    offset = np.linalg.lstsq(Z, rows.y)[0]
    error = rows.y - Z @ offset
    A, c = grams(Z, error, None, rows.owner, len(rows.counts))
    rank = max(int(np.linalg.matrix_rank(A.sum(0), hermitian=True)), 1)
    known = 1.0 if noise is None else noise
    total = float(error @ error) + 1e-24 * float(rows.y @ rows.y) + 1e-300 if noise is None else None
    evidence = Evidence(A / known, c / known, rows.n_rows, total, ties, rank, pooled=pooled)
    found = maximise(evidence)
    mean, variance = averaged(evidence, found)
    used = 1 - np.einsum("ijj->ij", evidence.parts(found.parameters).K)
    return Fitted(
        found.coef + offset,
        found.mean + offset,
        variance + np.square(mean - found.coef),
        found.theta * found.noise_variance,
        found.noise_variance * found.mean_covariance,
        used.mean(1),
        noise=found.noise_variance * known,
        freedom=np.inf if noise is not None else max(evidence.freedom - float(used.sum()), 1.0),
        converged=found.converged,
    ).rescaled(size)


def fit_given(rows: Grouped, mean: Array, covariance: Array, noise: float, error: Array) -> Fitted:
    """Clients under a known population (Theorem 6): N(mean, covariance), the mean itself with an error."""
    A, c = grams(rows.X, rows.y, None, rows.owner, len(rows.counts))
    prior = np.broadcast_to(covariance, mean.shape) if covariance.ndim == 0 else covariance
    theta, spread, left = posterior_given(A / noise, c / noise, prior, mean, error)
    variance = np.maximum(np.einsum("ijj->ij", spread), 0.0)
    return Fitted(theta, mean, variance, covariance, error, 1 - left.mean(1), noise=noise)


def local_risk(rows: Grouped, mean: Array, covariance: Array, noise: float) -> float:
    """Mean risk of pinv(X_i)Y_i: σ_x² tr (X_iᵀX_i)⁺, plus E‖(I − X⁺X)θ_i‖² where n_i < d."""
    A, _ = grams(rows.X, rows.y, None, rows.owner, len(rows.counts))
    value, turn = np.linalg.eigh(A)
    seen = value > len(mean) * np.finfo(np.float64).eps * np.maximum(value[:, -1:], 1e-300)
    second = (np.diag(covariance) if covariance.ndim == 1 else covariance) + np.outer(mean, mean)
    unseen = np.where(seen, 0.0, np.einsum("ijk,jl,ilk->ik", turn, second, turn, optimize=True))
    noisy = np.where(seen, noise / np.where(seen, value, 1.0), 0.0)
    return float((unseen + noisy).sum() / len(A))
