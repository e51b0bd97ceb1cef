"""Shrunk towards all: an empirical-Bayes model with a prior variance per coefficient.

    y_i = Z_i (μ + b_i) + e,   b_i ~ N(0, σ² diag θ),   μ ~ N(0, σ² φ) (slopes; the intercept of μ is free).

θ and φ maximise the marginal likelihood. With A_i = Z_iᵀZ_i, c_i = Z_iᵀy_i, D = diag θ, K_i = (I + A_i D)⁻¹,
M_i = K_i A_i, v_i = K_i c_i, G = (Σ M_i + Φ⁻¹)⁻¹ and μ = G Σ v_i:

    2·objective = N ln q + Σ ln|I + A_i D| + ln|I + Φ Σ M_i|,   q = Σ yᵀy − Σ cᵀDv − μᵀΣv,
    2·∂/∂θ_j    = −(N/q) Σ (v_i − M_i μ)_j² + Σ (M_i − M_i G M_i)_jj,
    2·∂/∂ln φ   = Σ_j [1 − G_jj/φ − (N/q) μ_j²/φ]   over the slopes.

The prior on μ keeps wide tables (more columns than rows) well posed. Classes: softmax, σ² = 1, N ln q
becomes q, and the likelihood is replaced by its quadratic approximation at the current coefficients (penalised
quasi-likelihood) until they settle. L-BFGS works on θ itself: in √θ it would stick at zero."""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from coterie.decision.candidates.base import Fit, mean_coefficients
from coterie.decision.candidates.rows import Floats, Rows, grams, sigmoid

_FREE = 1e6  # prior variance of the intercept of μ
_TIE_ABOVE = 40  # with more columns the slopes share one prior variance
_LINEARISATIONS = 40
_SETTLED = 0.01  # probabilities that move by a quarter of this have settled; scores of separable classes never do
_ROUGH = 0.5  # while probabilities still move by more, the prior is only improved, not optimised


@dataclass(frozen=True)
class _Posterior:
    coef: Floats  # (clients, p)
    mean: Floats  # μ
    covariance: Floats  # (clients, p, p) of μ + b_i, for σ² = 1
    theta: Floats
    parameters: Floats
    converged: bool


@dataclass(frozen=True)
class _Evidence:
    """The marginal likelihood of given quadratic forms. ``total`` is Σ yᵀy, or None where σ² = 1 is known."""

    A: Floats
    c: Floats
    n_rows: int
    total: float | None

    @property
    def tied(self) -> bool:
        return bool(self.c.shape[1] > _TIE_ABOVE)

    def theta(self, parameters: Floats) -> Floats:
        theta = parameters[:-1]
        return np.concatenate([theta[:1], np.repeat(theta[1:], self.c.shape[1] - 1)]) if self.tied else theta

    def pieces(self, parameters: Floats) -> tuple[Floats, ...]:
        theta, p = self.theta(parameters), self.c.shape[1]
        prior: Floats = np.full(p, np.exp(parameters[-1]), dtype=np.float64)
        prior[0] = _FREE
        inner = np.eye(p) + self.A * theta
        K: Floats = np.asarray(np.linalg.inv(inner), dtype=np.float64)
        M = K @ self.A
        v = (K @ self.c[..., None])[..., 0]
        summed = M.sum(0)
        G = np.linalg.inv(summed + np.diag(1 / prior))
        return theta, prior, inner, K, M, v, (G + G.T) / 2

    def __call__(self, parameters: Floats) -> tuple[float, Floats]:
        theta, prior, inner, _, M, v, G = self.pieces(parameters)
        u = v.sum(0)
        mean = G @ u
        q = -float((self.c * theta * v).sum()) - float(mean @ u)
        logs = float(np.linalg.slogdet(inner)[1].sum()) - float(np.linalg.slogdet(G)[1]) + float(np.log(prior).sum())
        if self.total is None:
            value, ratio = q + logs, 1.0
        else:
            q = max(self.total + q, 1e-10 * self.total)
            value, ratio = self.n_rows * np.log(q) + logs, self.n_rows / q
        residual = v - M @ mean
        trace = np.einsum("ijj->j", M) - ((M @ G) * M.swapaxes(1, 2)).sum((0, 2))
        slope = trace - ratio * (residual**2).sum(0)
        if self.tied:
            slope = np.array([slope[0], slope[1:].sum()])
        by_prior = (1 - (np.diag(G)[1:] + ratio * mean[1:] ** 2) / prior[1:]).sum()
        return value / 2 / self.n_rows, np.append(slope, by_prior) / 2 / self.n_rows

    def starts(self) -> list[Floats]:
        p = self.c.shape[1]
        if self.tied:
            return [np.array([0.3, 0.1 / p, -np.log(p)])]
        return [np.array([0.3] + [0.03] * (p - 1) + [-1.0]), np.array([3.0] + [0.5] * (p - 1) + [-1.0])]

    def maximise(self, starts: list[Floats], largest: float, steps: int = 200) -> _Posterior:
        tries = []
        for start in starts:
            bounds = [(0.0, largest)] * (len(start) - 1) + [(-14.0, min(7.0, float(np.log(largest))))]
            options: Any = {"maxiter": steps, "ftol": 1e-9, "gtol": 1e-6}
            tries.append(minimize(cast(Any, self), start, jac=True, method="L-BFGS-B", bounds=bounds, options=options))
        best = min(tries, key=lambda done: float(done.fun))
        theta, _, _, K, _, v, G = self.pieces(best.x)
        mean = G @ v.sum(0)
        DK = theta[:, None] * K
        coef = mean + (DK @ (self.c - self.A @ mean)[..., None])[..., 0]
        keep = np.eye(len(mean)) - DK @ self.A
        covariance = DK + keep @ G @ keep.swapaxes(1, 2)
        converged = bool(best.success) or float(np.abs(_projected(best.jac, best.x, largest)).max()) < 1e-4
        return _Posterior(coef, mean, covariance, theta, best.x, converged)


def _projected(gradient: Floats, at: Floats, largest: float) -> Floats:
    stuck = ((at[:-1] <= 0) & (gradient[:-1] > 0)) | ((at[:-1] >= largest) & (gradient[:-1] < 0))
    return np.append(np.where(stuck, 0.0, gradient[:-1]), 0.0)


@dataclass(frozen=True)
class Shrunk:
    """Every client's coefficients shrunk towards the population's, each coefficient by its own estimated amount."""

    name: str = "shrunk"

    def fit(self, rows: Rows, rng: np.random.Generator, like: Fit | None = None) -> Fit:
        starts = list(like.details["start"]) if like is not None else None
        found = _classes(rows, starts) if rows.classification else [_regression(rows, starts)]
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


def _nudged(found: _Posterior) -> Floats:
    """The parameters found, moved off their bounds so that a search can start there."""
    return np.append(np.clip(found.parameters[:-1], 1e-4, 1e3), np.clip(found.parameters[-1], -12.0, 5.0))


def _regression(rows: Rows, starts: list[Floats] | None) -> _Posterior:
    y = rows.y[:, 0]
    A, c = grams(rows.Z, y, None, rows.owner, rows.n_clients)
    evidence = _Evidence(A, c, len(y), float(y @ y) + 1e-12)
    return evidence.maximise(starts or evidence.starts(), 1e5)


def _classes(rows: Rows, starts: list[Floats] | None) -> list[_Posterior]:
    """Quadratic approximations until the coefficients settle; a client's scores move by at most 1.5 at a time.

    With several classes the commonest has score zero, and each other is improved in turn, given the scores of the rest:
    with those fixed, softmax is a logistic model whose scores are offset by their log-sum-exp."""
    m, q = rows.n_clients, rows.n_outputs
    coef = np.repeat(mean_coefficients(rows)[None], m, axis=0)  # (clients, p, outputs)
    zero = int(rows.y.sum(0).argmax()) if q > 1 else -1
    coef = coef - coef[..., [zero]] if q > 1 else coef
    eta = np.einsum("np,npq->nq", rows.Z, coef[rows.owner])
    begin: list[list[Floats] | None] = [[s] for s in starts] if starts is not None else [None] * q
    found, far = {zero: _at_zero(m, coef.shape[1])}, np.full(q, np.inf)
    if q > 1:
        far[zero] = 0.0
    for _ in range(_LINEARISATIONS):
        for c in (c for c in range(q) if c != zero):
            steps = 10 if far[c] > _ROUGH else 200
            others = _others(eta, c)
            posterior, move = _linearised(rows, c, coef[..., c], eta[:, c] - others, begin[c], steps)
            begin[c], before = [_nudged(posterior)], sigmoid(eta[:, c] - others)
            coef[..., c] += (posterior.coef - coef[..., c]) * np.minimum(1, 1.5 / np.maximum(move, 1e-12))[:, None]
            eta[:, c] = np.einsum("np,np->n", rows.Z, coef[rows.owner, :, c])
            far[c] = 4 * float(np.abs(sigmoid(eta[:, c] - others) - before).max())
            found[c] = replace(posterior, coef=coef[..., c].copy())
        if far.max() < _SETTLED and all(f.converged for f in found.values()):
            break
    settled = bool(far.max() < _SETTLED)
    return [replace(found[c], converged=settled and found[c].converged) for c in range(q)]


def _at_zero(m: int, p: int) -> _Posterior:
    """Of the class whose score is zero."""
    start = np.append(np.full(min(p, 2) if p > _TIE_ABOVE else p, 1e-4), -1.0)
    return _Posterior(np.zeros((m, p)), np.zeros(p), np.zeros((m, p, p)), np.zeros(p), start, True)


def _others(eta: Floats, c: int) -> Floats:
    """Log-sum-exp of the scores of all other classes; zero for one output."""
    if eta.shape[1] == 1:
        return np.zeros(len(eta))
    return np.asarray(logsumexp(np.delete(eta, c, axis=1), axis=1))


def _linearised(
    rows: Rows, output: int, coef: Floats, eta: Floats, starts: list[Floats] | None, steps: int
) -> tuple[_Posterior, Floats]:
    """The posterior of the quadratic approximation at ``coef``, and how far it moves every client's scores."""
    chance = sigmoid(eta)
    weight = np.maximum(chance * (1 - chance), 0.01)
    A, slope = grams(rows.Z, rows.y[:, output] - chance, weight, rows.owner, rows.n_clients)
    evidence = _Evidence(A, (A @ coef[..., None])[..., 0] + slope, len(eta), None)
    found = evidence.maximise(starts or evidence.starts(), 9.0, steps)
    move = np.zeros(rows.n_clients)
    change = found.coef - coef
    np.maximum.at(move, rows.owner, np.abs(np.einsum("np,np->n", rows.Z, change[rows.owner])))
    return found, move
