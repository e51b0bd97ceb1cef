"""The marginal likelihood of many linear models at once, with a prior variance per coefficient or a full covariance.

    y_i = Z_i (μ + b_i) + e,   b_i ~ N(0, σ² Θ),   e ~ N(0, σ² I).

With A_i = Z_iᵀZ_i, c_i = Z_iᵀy_i, K_i = (I + A_i Θ)⁻¹, M_i = K_i A_i, v_i = K_i c_i, G = (Σ M_i + Φ⁻¹)⁻¹ and μ = G Σ v_i:

    2·objective = n ln q + Σ ln|I + A_i Θ| − ln|G| + ln|Φ|,   q = Σ yᵀy − Σ cᵀΘv − μᵀΣv,
    2·∂/∂Θ      = Σ (M_i − M_i G M_i) − (n/q) Σ r_i r_iᵀ,   r_i = v_i − M_i μ,
    2·∂/∂ln φ   = Σ_j [1 − G_jj/φ − (n/q) μ_j²/φ]   over the slopes.

A flat μ (Φ⁻¹ = 0, n = rows − rank) makes this REML, which does not understate variances where clients are few. A proper
prior on μ, slopes N(0, σ² φ) and n = rows, keeps wide tables (more columns than rows) well posed. Where σ² is known, A and
c are divided by it and n ln q becomes q. Expectation propagation turns logistic rows into such a model, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.optimize import minimize

from coterie.estimation.conventions import Array, Ints

FREE = 1e6  # prior variance of the intercept of μ, where the slopes of μ have a proper prior
# Deviations √θ_j at which the likelihood of θ_j is looked at, in units of its estimate (or its error, if that is larger)
GRID = np.array([0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1, 1.2, 1.45, 1.75, 2.2, 2.8, 3.6, 4.8, 6.5])


class Parts(NamedTuple):
    """The matrices of the module's formulas at one Θ."""

    theta: Array  # (p,) or (p, p)
    inner: Array
    K: Array
    M: Array
    v: Array
    G: Array
    log_det_G: float


@dataclass(frozen=True)
class Found:
    """Posterior of all clients at one Θ; covariances are for σ² = 1."""

    coef: Array  # (clients, p)
    mean: Array  # μ
    covariance: Array  # (clients, p, p) of μ + b_i, with the error of μ
    mean_covariance: Array  # G
    theta: Array
    noise_variance: float
    parameters: Array
    converged: bool


@dataclass(frozen=True)
class Evidence:
    """`total` is Σ yᵀy, or None where σ² = 1 is known. `ties[j]` is the number of coefficient j's variance; None asks
    for a full Θ = L Lᵀ, whose parameters are the rows of L. `rank`: that of Σ A_i where μ is flat; 0 for the proper prior on
    μ, whose ln φ is then the last parameter (coefficient 0 is the intercept)."""

    A: Array
    c: Array
    n_rows: int
    total: float | None
    ties: Ints | None
    rank: int = 0
    weak: float = 0.0  # precision that keeps a flat μ finite where labels are separable
    pooled: bool = False  # all rows belong to one model, the population's; Θ is zero

    def __post_init__(self) -> None:
        if self.pooled:
            object.__setattr__(self, "ties", np.zeros(self.width, dtype=np.int64))

    @property
    def width(self) -> int:
        return int(self.c.shape[1])

    @property
    def freedom(self) -> int:
        return max(self.n_rows - self.rank, 1)

    def theta(self, parameters: Array) -> Array:
        variances = parameters if self.rank else parameters[:-1]
        if self.ties is not None:
            return np.asarray(variances[self.ties])
        L = self._factor(variances)
        return np.asarray(L @ L.T)

    def _factor(self, values: Array) -> Array:
        L = np.zeros((self.width, self.width))
        L[np.tril_indices(self.width)] = values
        return L

    def _phi(self, parameters: Array) -> Array:
        prior = np.full(self.width, np.inf if self.rank else np.exp(parameters[-1]), dtype=np.float64)
        prior[0] = np.inf if self.rank else FREE
        return prior

    def parts(self, parameters: Array) -> Parts:
        theta = self.theta(parameters)
        inner = np.eye(self.width) + (self.A * theta if theta.ndim == 1 else self.A @ theta)
        K: Array = np.asarray(np.linalg.inv(inner), dtype=np.float64)
        M = K @ self.A
        v = (K @ self.c[..., None])[..., 0]
        summed = M.sum(0) + np.diag(1 / self._phi(parameters) + self.weak)
        value, turn = np.linalg.eigh((summed + summed.T) / 2)
        keep = slice(self.width - (self.rank or self.width), None)  # directions that no row shows stay at zero
        value, turn = np.maximum(value[keep], 1e-300), turn[:, keep]
        return Parts(theta, inner, K, M, v, (turn / value) @ turn.T, -float(np.log(value).sum()))

    def __call__(self, parameters: Array) -> tuple[float, Array]:
        """(objective, gradient), both per row."""
        at, prior = self.parts(parameters), self._phi(parameters)
        mean = at.G @ at.v.sum(0)
        q = self._misfit(at, mean)
        logs = float(np.linalg.slogdet(at.inner)[1].sum()) - at.log_det_G
        logs += 0.0 if self.rank else float(np.log(prior).sum())
        value, ratio = (q, 1.0) if self.total is None else (self.freedom * np.log(q), self.freedom / q)
        residual = at.v - at.M @ mean
        if self.ties is not None:
            trace = np.einsum("ijj->j", at.M) - ((at.M @ at.G) * at.M.swapaxes(1, 2)).sum((0, 2))
            slope = np.bincount(self.ties, trace - ratio * (residual**2).sum(0))
        else:
            whole = (at.M - at.M @ at.G @ at.M).sum(0) - ratio * residual.T @ residual
            L = self._factor(parameters if self.rank else parameters[:-1])
            slope = ((whole + whole.T) @ L)[np.tril_indices(self.width)]
        if not self.rank:
            slope = np.append(slope, (1 - (np.diag(at.G)[1:] + ratio * mean[1:] ** 2) / prior[1:]).sum())
        return (value + logs) / 2 / self.n_rows, slope / 2 / self.n_rows

    def _misfit(self, at: Parts, mean: Array) -> float:
        spread = self.c * at.theta if at.theta.ndim == 1 else self.c @ at.theta
        q = -float((spread * at.v).sum()) - float(mean @ at.v.sum(0))
        return q if self.total is None else max(self.total + q, 1e-10 * self.total)

    def maximise(self, starts: list[Array], largest: float, steps: int = 200, scale: Array | float = 1.0) -> Found:
        """The best of L-BFGS from `starts`, in units of `scale`. It works on θ itself: in √θ it would stick at zero."""
        tries = []
        for start in starts:
            bounds = None if self.ties is None else self._bounds(largest / np.broadcast_to(scale, start.shape))
            options: Any = {"maxiter": steps, "ftol": 1e-9, "gtol": 1e-6}

            def scaled(x: Array) -> tuple[float, Array]:
                value, slope = self(x * scale)
                return value, slope * scale

            made = minimize(
                cast(Any, scaled), start / scale, jac=True, method="L-BFGS-B", bounds=bounds, options=options
            )
            tries.append(made)
        best = min(tries, key=lambda done: float(done.fun))
        flat = np.abs(best.jac if self.ties is None else self._projected(best.jac, best.x * scale, largest))
        return self.posterior(best.x * scale, bool(best.success) or float(flat.max(initial=0.0)) < 1e-4)

    def _bounds(self, largest: Array) -> list[tuple[float, float]]:
        variances = [(0.0, float(most)) for most in (largest if self.rank else largest[:-1])]
        return variances if self.rank else [*variances, (-14.0, min(7.0, float(np.log(largest.max()))))]

    def _projected(self, gradient: Array, at: Array, largest: float) -> Array:
        """The gradient without components that point out of the bounds; ln φ does not count."""
        gradient, at = (gradient, at) if self.rank else (gradient[:-1], at[:-1])
        stuck = ((at <= 0) & (gradient > 0)) | ((at >= largest) & (gradient < 0))
        return np.where(stuck, 0.0, gradient)

    def posterior(self, parameters: Array, converged: bool = True) -> Found:
        at = self.parts(parameters)
        mean = at.G @ at.v.sum(0)
        coef, covariance, _ = posterior_given(self.A, self.c, at.theta, mean, at.G, at.K)
        noise = 1.0 if self.total is None else self._misfit(at, mean) / self.freedom
        return Found(coef, mean, covariance, at.G, at.theta, noise, parameters, converged)

    def error_of_variances(self, parameters: Array) -> Array:
        """Standard errors of the θ_j by the expected information ½ Σ_i ((M_i)_jk)² of independent clients."""
        assert self.ties is not None
        M = self.parts(parameters).M
        size = int(self.ties.max()) + 1
        information = np.zeros((size, size))
        np.add.at(information, np.ix_(self.ties, self.ties), 0.5 * np.square(M).sum(0))
        return np.asarray(1 / np.sqrt(np.maximum(np.diag(information), 1e-300)))


def posterior_given(
    A: Array, c: Array, theta: Array, mean: Array, error: Array, K: Array | None = None
) -> tuple[Array, Array, Array]:
    """Theorem 6 for σ² = 1 and any Θ: θ̂_i = μ + ΘK_i(c_i − A_iμ), its covariance ΘK_i + W C Wᵀ, W = I − ΘK_iA_i the weight
    of μ and C its `error`, and diag K_i, the share of each prior variance that is left."""
    eye = np.eye(len(mean))
    if K is None:
        K = np.asarray(np.linalg.inv(eye + (A * theta if theta.ndim == 1 else A @ theta)))
    DK = theta[:, None] * K if theta.ndim == 1 else theta @ K
    weight = eye - DK @ A
    coef = mean + (DK @ (c - A @ mean)[..., None])[..., 0]
    return coef, DK + weight @ error @ weight.swapaxes(1, 2), np.einsum("ijj->ij", K)


def averaged(evidence: Evidence, found: Found) -> tuple[Array, Array]:
    """Means and variances (clients, p) of the coefficients, averaged over the possible values of their prior variances.

    Coefficient j is averaged over θ_j by its likelihood and a flat prior on √θ_j, with the other variances fixed. Plugging
    in the estimate would make intervals too narrow where clients are few, and empty where the estimate is 0. A covariance
    is plugged in."""
    mean, variance = found.coef.copy(), found.noise_variance * np.einsum("ijj->ij", found.covariance)
    if evidence.ties is None or evidence.pooled:
        return mean, variance
    error = evidence.error_of_variances(found.parameters)
    for number in range(int(evidence.ties.max()) + 1):
        unit = np.sqrt(max(float(found.parameters[number]), float(error[number])))
        moved = [_moved(found.parameters, number, (g * unit) ** 2) for g in GRID]
        heights = np.array([-evidence.n_rows * evidence(at)[0] for at in moved])  # log-likelihoods
        weight = np.exp(heights - heights.max()) * np.gradient(GRID)
        weight /= weight.sum()
        columns = np.flatnonzero(evidence.ties == number)
        first, second = np.zeros((2, len(found.coef), len(columns)))
        for at, share in zip(moved, weight, strict=True):
            if share > 1e-4:
                here = evidence.posterior(at)
                off = here.coef[:, columns] - found.coef[:, columns]
                own = here.noise_variance * np.einsum("ijj->ij", here.covariance)[:, columns]
                first, second = first + share * off, second + share * (off**2 + own)
        mean[:, columns] += first
        variance[:, columns] = np.maximum(second - first**2, 0.0)
    return mean, variance


def _moved(parameters: Array, number: int, value: float) -> Array:
    out = parameters.copy()
    out[number] = value
    return out
