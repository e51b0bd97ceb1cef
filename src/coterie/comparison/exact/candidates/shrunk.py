"""Shrunk towards all: an empirical-Bayes model with a prior variance per coefficient.

    y_i = Z_i (μ + b_i) + e,   b_i ~ N(0, σ² diag θ),   μ ~ N(0, σ² φ) (slopes; the intercept of μ is free).

θ and φ maximise the marginal likelihood (`coterie.estimation.regression.evidence`). The prior on μ keeps wide tables (more
columns than rows) well posed. Classes: softmax, σ² = 1, and the likelihood is replaced by its quadratic
approximation at the current coefficients (penalised quasi-likelihood) until they settle. With two classes the variances
are then corrected (`laplace`)."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logsumexp

from coterie.comparison.exact.candidates.base import Fit, mean_coefficients
from coterie.comparison.exact.candidates.laplace import widened
from coterie.comparison.exact.candidates.rows import Floats, Rows
from coterie.estimation.blocks import grams
from coterie.estimation.regression.evidence import Evidence, Found

_LARGEST = 9.0  # prior variance of a score's coefficient
_TIE_ABOVE = 40  # with more columns the slopes share one prior variance
_LINEARISATIONS = 40
_SETTLED = 0.01  # probabilities that move by a quarter of this have settled; scores of separable classes never do
_ROUGH = 0.5  # while probabilities still move by more, the prior is improved without being optimised fully


def evidence_of(A: Floats, c: Floats, n_rows: int, total: float | None) -> Evidence:
    p = c.shape[1]
    return Evidence(A, c, n_rows, total, np.minimum(np.arange(p), 1 if p > _TIE_ABOVE else p))


def starts_of(p: int) -> list[Floats]:
    if p > _TIE_ABOVE:
        return [np.array([0.3, 0.1 / p, -np.log(p)])]
    return [np.array([0.3] + [0.03] * (p - 1) + [-1.0]), np.array([3.0] + [0.5] * (p - 1) + [-1.0])]


@dataclass(frozen=True)
class Shrunk:
    """Every client's coefficients shrunk towards the population's, each coefficient by its own estimated amount."""

    name: str = "shrunk"

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        found = _classes(rows) if rows.classification else [_regression(rows)]
        spread = np.stack([f.covariance for f in found], 1) if rows.classification else None
        notes = () if all(f.converged for f in found) else ("The prior of the shrunk models did not converge.",)
        return Fit(
            np.stack([f.coef for f in found], 2),
            np.arange(rows.n_clients),
            np.stack([f.mean for f in found], 1),
            rows.classification,
            spread,
            notes,
            {"prior_variance": np.stack([f.theta for f in found], 1)},
        )


def nudged(found: Found) -> Floats:
    """The parameters found, moved off their bounds so that a search can start there."""
    return np.append(np.clip(found.parameters[:-1], 1e-4, 1e3), np.clip(found.parameters[-1], -12.0, 5.0))


def _regression(rows: Rows) -> Found:
    y = rows.y[:, 0]
    wy = y if rows.weight is None else rows.weight * y
    return from_sums(*grams(rows.Z, wy, rows.weight, rows.owner, rows.n_clients), len(y), float(wy @ y) + 1e-12)


def from_sums(A: Floats, c: Floats, n_rows: int, total: float) -> Found:
    """The fit from the sums of clients: A_i = Zᵀ Z, c_i = Zᵀ y and Σ yᵀ y."""
    return evidence_of(A, c, n_rows, total).maximise(starts_of(c.shape[1]), 1e5)


def _classes(rows: Rows) -> list[Found]:
    """Quadratic approximations until the coefficients settle; a client's scores move by at most 1.5 at a time.

    With several classes the commonest has score zero, and each other is improved in turn, given the scores of the rest:
    with those fixed, softmax is a logistic model whose scores are offset by their log-sum-exp."""
    m, q = rows.n_clients, rows.n_outputs
    coef = np.repeat(mean_coefficients(rows)[None], m, axis=0)  # (clients, p, outputs)
    zero = int(rows.y.sum(0).argmax()) if q > 1 else -1
    coef = coef - coef[..., [zero]] if q > 1 else coef
    eta = np.einsum("np,npq->nq", rows.Z, coef[rows.owner])
    begin: list[list[Floats]] = [starts_of(coef.shape[1])] * q
    found, far = {zero: _at_zero(m, coef.shape[1])}, np.full(q, np.inf)
    if q > 1:
        far[zero] = 0.0
    for _ in range(_LINEARISATIONS):
        for c in (c for c in range(q) if c != zero):
            steps = 10 if far[c] > _ROUGH else 200
            others = _others(eta, c)
            posterior, move = _linearised(rows, c, coef[..., c], eta[:, c] - others, begin[c], steps)
            begin[c], before = [nudged(posterior)], expit(eta[:, c] - others)
            coef[..., c] += (posterior.coef - coef[..., c]) * np.minimum(1, 1.5 / np.maximum(move, 1e-12))[:, None]
            eta[:, c] = np.einsum("np,np->n", rows.Z, coef[rows.owner, :, c])
            far[c] = 4 * float(np.abs(expit(eta[:, c] - others) - before).max())
            found[c] = replace(posterior, coef=coef[..., c].copy())
        if far.max() < _SETTLED and all(f.converged for f in found.values()):
            break
    settled = bool(far.max() < _SETTLED)
    if q == 1:
        return [replace(widened(rows, found[0], evidence_of, _LARGEST), converged=settled and found[0].converged)]
    return [replace(found[c], converged=settled and found[c].converged) for c in range(q)]


def _at_zero(m: int, p: int) -> Found:
    """The fit of the class whose score is fixed at zero."""
    start = np.append(np.full(min(p, 2) if p > _TIE_ABOVE else p, 1e-4), -1.0)
    return Found(np.zeros((m, p)), np.zeros(p), np.zeros((m, p, p)), np.zeros((p, p)), np.zeros(p), 1.0, start, True)


def _others(eta: Floats, c: int) -> Floats:
    """Log-sum-exp of the scores of all other classes; zero for one output."""
    if eta.shape[1] == 1:
        return np.zeros(len(eta))
    return np.asarray(logsumexp(np.delete(eta, c, axis=1), axis=1))


def _linearised(
    rows: Rows, output: int, coef: Floats, eta: Floats, starts: list[Floats], steps: int
) -> tuple[Found, Floats]:
    """The posterior of the quadratic approximation at ``coef``, and how far it moves every client's scores."""
    chance = expit(eta)
    weight = np.maximum(chance * (1 - chance), 0.01)
    A, slope = grams(rows.Z, rows.y[:, output] - chance, weight, rows.owner, rows.n_clients)
    evidence = evidence_of(A, (A @ coef[..., None])[..., 0] + slope, len(eta), None)
    found = evidence.maximise(starts, _LARGEST, steps)
    move = np.zeros(rows.n_clients)
    change = found.coef - coef
    np.maximum.at(move, rows.owner, np.abs(np.einsum("np,np->n", rows.Z, change[rows.owner])))
    return found, move
