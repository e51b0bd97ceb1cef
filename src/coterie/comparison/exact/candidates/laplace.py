"""Prior variances of two-class models by Laplace's approximation of the marginal likelihood.

Penalised quasi-likelihood takes the curvature p(1 − p) as given while it improves the variances θ. But larger variances make
the probabilities more extreme and the curvature smaller, so that it stops too early: with few rows per client deviations of
log odds come out a third too small (Breslow and Lin 1995). Here all θ are multiplied by what maximises

    Σ log-likelihood − ½ Σ b_iᵀ Θ⁻¹ b_i − ½ Σ ln|I + A_i Θ| + ½ ln|G|

at the posterior mode of each multiple, as glmer of lme4 does."""

from collections.abc import Callable

import numpy as np
from scipy.special import expit

from coterie.comparison.exact.candidates.rows import Floats, Rows, losses
from coterie.estimation.blocks import grams
from coterie.estimation.regression.evidence import Evidence, Found

_FACTORS = (1.4,) * 5
_MODE_STEPS, _SETTLED = 12, 0.01
Maker = Callable[[Floats, Floats, int, None], Evidence]


def widened(rows: Rows, found: Found, make: Maker, largest: float) -> Found:
    """The posterior at the best multiples of the variances of all coefficients, then of the intercepts, then of the slopes;
    larger multiples are tried while they improve."""
    best = _laplace(rows, found, found.parameters, make)
    every = np.arange(len(found.parameters) - 1)
    for some in (every, every[:1], every[1:]):
        for factor in _FACTORS:
            parameters = best[1].parameters.copy()
            parameters[some] = np.minimum(parameters[some] * factor, largest)
            tried = _laplace(rows, best[1], parameters, make)
            if tried[0] <= best[0]:
                break
            best = tried
    return best[1]


def _laplace(rows: Rows, start: Found, parameters: Floats, make: Maker) -> tuple[float, Found]:
    """Laplace's marginal likelihood and the posterior at these parameters; a score moves by at most 1.5 at a time."""
    coef, y, m = start.coef, rows.y[:, 0], rows.n_clients
    for step in range(_MODE_STEPS + 1):
        eta = np.einsum("np,np->n", rows.Z, coef[rows.owner])
        chance = expit(eta)
        A, slope = grams(rows.Z, y - chance, np.maximum(chance * (1 - chance), 0.01), rows.owner, m)
        evidence = make(A, (A @ coef[..., None])[..., 0] + slope, len(y), None)
        mode = evidence.posterior(parameters, start.converged)
        move = np.zeros(m)
        np.maximum.at(move, rows.owner, np.abs(np.einsum("np,np->n", rows.Z, (mode.coef - coef)[rows.owner])))
        if move.max() < _SETTLED or step == _MODE_STEPS:
            break
        coef = coef + (mode.coef - coef) * np.minimum(1, 1.5 / np.maximum(move, 1e-12))[:, None]
    at = evidence.parts(parameters)
    off = mode.coef - mode.mean
    used = at.theta > 1e-10
    prior = (off[:, used] ** 2 / at.theta[used]).sum()
    prior += (mode.mean[1:] ** 2).sum() / np.exp(parameters[-1])
    logs = float(np.linalg.slogdet(at.inner)[1].sum()) - at.log_det_G
    return -float(losses(eta[:, None], rows.y).sum()) - (prior + logs) / 2, mode
