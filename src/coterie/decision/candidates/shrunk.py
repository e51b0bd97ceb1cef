"""Shrunk towards all: an empirical-Bayes model with a prior variance per coefficient.

    y_i = Z_i (μ + b_i) + e,   b_i ~ N(0, σ² diag θ),   μ ~ N(0, σ² φ) (slopes; the intercept of μ is free).

θ and φ maximise the marginal likelihood (`coterie.estimation.regression.evidence`). The prior on μ keeps wide tables (more
columns than rows) well posed. Classes: one against the rest, σ² = 1, and the likelihood is replaced by its quadratic
approximation at the current coefficients (penalised quasi-likelihood) until they settle."""

from dataclasses import dataclass, replace

import numpy as np

from coterie.decision.candidates.base import Fit
from coterie.decision.candidates.rows import Floats, Rows, grams, sigmoid
from coterie.estimation.regression.evidence import Evidence, Found

_TIE_ABOVE = 40  # with more columns the slopes share one prior variance
_LINEARISATIONS = 25


def _evidence(A: Floats, c: Floats, n_rows: int, total: float | None) -> Evidence:
    p = c.shape[1]
    return Evidence(A, c, n_rows, total, np.minimum(np.arange(p), 1 if p > _TIE_ABOVE else p))


def _starts(p: int) -> list[Floats]:
    if p > _TIE_ABOVE:
        return [np.array([0.3, 0.1 / p, -np.log(p)])]
    return [np.array([0.3] + [0.03] * (p - 1) + [-1.0]), np.array([3.0] + [0.5] * (p - 1) + [-1.0])]


@dataclass(frozen=True)
class Shrunk:
    """Every client's coefficients shrunk towards the population's, each coefficient by its own estimated amount."""

    name: str = "shrunk"

    def fit(self, rows: Rows, rng: np.random.Generator, like: Fit | None = None) -> Fit:
        solve = _classes if rows.classification else _regression
        starts = [[s] for s in like.details["start"]] if like is not None else [None] * rows.n_outputs
        found = [solve(rows, output, start) for output, start in enumerate(starts)]
        spread = np.stack([f.covariance for f in found], 1) if rows.classification else None
        notes = () if all(f.converged for f in found) else ("The prior of the shrunk models did not converge.",)
        return Fit(
            np.stack([f.coef for f in found], 2),
            np.arange(rows.n_clients),
            np.stack([f.mean for f in found], 1),
            rows.classification,
            spread,
            notes,
            {"prior_variance": np.stack([f.theta for f in found], 1), "start": np.stack([_nudged(f) for f in found])},
        )


def _nudged(found: Found) -> Floats:
    """The parameters found, moved off their bounds so that a search can start there."""
    return np.append(np.clip(found.parameters[:-1], 1e-4, 1e3), np.clip(found.parameters[-1], -8.0, 4.0))


def _regression(rows: Rows, output: int, starts: list[Floats] | None) -> Found:
    y = rows.y[:, output]
    A, c = grams(rows.Z, y, None, rows.owner, rows.n_clients)
    return _evidence(A, c, len(y), float(y @ y) + 1e-12).maximise(starts or _starts(c.shape[1]), 1e5)


def _classes(rows: Rows, output: int, starts: list[Floats] | None) -> Found:
    """Quadratic approximations until the coefficients settle; a client's scores move by at most 1.5 at a time."""
    y, owner, Z = rows.y[:, output], rows.owner, rows.Z
    coef = np.zeros((rows.n_clients, Z.shape[1]))
    rate = (y.sum() + 0.5) / (len(y) + 1)
    coef[:, 0] = np.log(rate / (1 - rate))
    settled = False
    for _ in range(_LINEARISATIONS):
        chance = sigmoid(np.einsum("np,np->n", Z, coef[owner]))
        A, slope = grams(Z, y - chance, np.maximum(chance * (1 - chance), 0.01), owner, rows.n_clients)
        evidence = _evidence(A, (A @ coef[..., None])[..., 0] + slope, len(y), None)
        found = evidence.maximise(starts or _starts(Z.shape[1]), 9.0, steps=10)
        starts = [_nudged(found)]
        change = found.coef - coef
        move = np.zeros(rows.n_clients)
        np.maximum.at(move, owner, np.abs(np.einsum("np,np->n", Z, change[owner])))
        coef = coef + change * np.minimum(1, 1.5 / np.maximum(move, 1e-12))[:, None]
        settled = bool(move.max() < 0.01)
        if settled:
            break
    return replace(found, coef=coef, converged=settled and found.converged)
