"""Personalised linear regression under a Gaussian population.

Theorem 6 and Algorithm 2 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Model: Y_i = X_i θ_i + w_i, w ~ N(0, σ_x² I), θ_i ~ N(μ, σ_θ² I).
Symbols: θ_i `coef_`, μ `mean_`, σ_θ² `prior_variance_`, σ_x² `noise_variance_`.

`method="em"` maximises the marginal likelihood (L-1em). `method="gradient"` is Algorithm 2 with the sign of the
prior's term repaired (erratum E12). Its objective is unbounded below (E19), so what it returns depends on when it stops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm
from sklearn.base import BaseEstimator, RegressorMixin

from coterie.errors import ConfigError, DataError
from coterie.estimation.checks import Array, choice, confidence, finite, fitted, known_variance
from coterie.estimation.regression import gradient
from coterie.estimation.regression.grouped import Grouped, features, find, group_rows
from coterie.estimation.regression.rotated import Rotated, rotate
from coterie.settings import whole_number

NOTHING = 1e-9  # The smallest gain of the log-likelihood, in nats, that counts.
Prior = str | tuple[ArrayLike, float]


@dataclass(frozen=True)
class Population:
    """μ, σ_θ², σ_x², and the sampling covariance of μ̂ (zero where μ is known)."""

    mean: Array
    prior_variance: float
    noise_variance: float
    covariance: Array | None = None


@dataclass(frozen=True)
class Free:
    """Which parts of the population are to be estimated."""

    mean: bool
    prior: bool
    noise: bool


def known_prior(prior: Prior, dimension: int) -> tuple[Array, float] | None:
    """None for "estimate", else (μ (d,), σ_θ²) of a known prior."""
    if isinstance(prior, str):
        choice("prior", prior, ("estimate",))
        return None
    if not isinstance(prior, tuple) or len(prior) != 2:
        raise ConfigError(f'prior must be "estimate" or (mean, variance); got {prior!r}. Pass one of these.')
    mean, variance = finite("prior mean", prior[0]), prior[1]
    if mean.shape not in ((), (dimension,)) or not (np.isfinite(variance) and variance > 0):
        raise ConfigError(
            f"A known prior is (mean, a number or ({dimension},), variance > 0), an intercept counted last; "
            f"got mean of shape {mean.shape} and variance {variance}. Correct the one that differs."
        )
    return np.broadcast_to(mean, (dimension,)).astype(np.float64), float(variance)


def estimate_mean(data: Rotated, now: Population) -> Population:
    """The μ that maximises the marginal likelihood: weighted least squares over the rotated rows."""
    weight = 1 / (now.prior_variance * data.square + now.noise_variance)
    information = data.R.T @ (weight[:, None] * data.R)
    score = data.R.T @ (weight * data.target)
    covariance: Array = np.linalg.pinv(information, hermitian=True).astype(np.float64)
    return replace(now, mean=covariance @ score, covariance=covariance)


def estimate_variances(data: Rotated, now: Population, free: Free, steps: int, tol: float) -> Population:
    """Maximise over (log σ_θ², log σ_x²) at fixed μ; each step is one pass over the rows' squared residuals.

    `em` holds L-1em's updates. They also give the score, so a Fisher step is tried first, since EM is slow
    where n_i < d. The EM step, which never lowers the likelihood, is taken if the Fisher step fails.
    """
    s2, error2 = data.square, np.square(data.target - data.R @ now.mean)
    size, spare = data.clients * data.R.shape[1], data.rows - len(data.square)
    fixed = ~np.array([free.prior, free.noise])

    def likelihood(log: Array) -> float:
        total = np.exp(log[0]) * s2 + np.exp(log[1])
        return -0.5 * float((np.log(total) + error2 / total).sum() + spare * log[1] + data.residue / np.exp(log[1]))

    log = np.log([now.prior_variance, now.noise_variance])
    value = likelihood(log)
    for _ in range(steps):
        prior, noise = np.exp(log)
        share = np.stack([prior * s2, np.full_like(s2, noise)]) / (prior * s2 + noise)
        moved = share[0] ** 2 @ (error2 / s2) + prior * share[1].sum() + (size - len(s2)) * prior
        left = share[1] ** 2 @ error2 + data.residue + noise * share[0].sum()
        em = np.log(np.maximum([moved / size, left / data.rows], 1e-300)) - log
        score = 0.5 * np.array([size, data.rows]) * np.expm1(em)
        information = 0.5 * (share @ share.T + np.diag([0.0, spare]))
        information[fixed] = information[:, fixed] = 0.0
        step = np.clip(np.linalg.lstsq(information, np.where(fixed, 0.0, score))[0], -2.0, 2.0)
        trial = likelihood(log + step)
        if not trial > value:
            step = np.where(fixed, 0.0, em)
            trial = likelihood(log + step)
        gain = trial - value
        log, value = np.maximum(log + step, -600.0), trial
        if np.abs(step).max() < tol or abs(gain) < NOTHING:  # a variance that goes to zero never stops changing
            break
    return replace(now, prior_variance=float(np.exp(log[0])), noise_variance=float(np.exp(log[1])))


def posterior_means(data: Rotated, now: Population) -> Array:
    """E[θ_i | Y_i] of every client, (m, d) (Theorem 6)."""
    gain = now.prior_variance / (now.prior_variance * data.square + now.noise_variance)
    out: Array = now.mean + data.per_client(gain * (data.target - data.R @ now.mean))
    return out


def mean_error(data: Rotated, gain: Array, covariance: Array) -> Array:
    """What the error of μ̂, of covariance C, adds to every client's variances: diag A_i C A_i, (m, d).

    A_i = M_i⁻¹/σ_θ² = I − Σ_j gain_j R_j R_jᵀ is the weight of μ in θ̂_i, a matrix where features correlate."""
    out = np.tile(np.diag(covariance), (data.clients, 1))
    starts = np.flatnonzero(np.diff(data.owner, prepend=-1))
    owners, counts = data.owner[starts], np.diff(starts, append=len(data.owner))
    for chosen, R, g, _ in Grouped(data.R, gain, owners, starts, counts).blocks():
        across, scaled = R @ covariance, g[:, :, None] * R
        both = (across @ R.swapaxes(1, 2)) @ scaled
        out[owners[chosen]] += (scaled * (both - 2 * across)).sum(1)
    return np.maximum(out, 0.0)


def expect_maximise(data: Rotated, start: Population, free: Free, max_iter: int, tol: float) -> tuple[Population, int]:
    """Alternate the exact maximum over μ with EM steps for the variances: EM's fixed point in far fewer passes."""
    now, rounds = start, 0
    for rounds in range(1, max_iter + 1):  # noqa: B007
        before = now
        now = estimate_mean(data, now) if free.mean else now
        if free.prior or free.noise:
            now = estimate_variances(data, now, free, steps=200, tol=tol)
        shift = np.abs(now.mean - before.mean).max() / np.sqrt(now.prior_variance + np.square(now.mean).mean() + 1e-300)
        change = max(
            abs(now.prior_variance / before.prior_variance - 1), abs(now.noise_variance / before.noise_variance - 1)
        )
        if max(shift, change) < 10 * tol:
            break
    return now, rounds


class LinearModels(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """One linear model per client, all shrunk towards the population's.

    Parameters
    ----------
    prior : "estimate", or a known (mean, variance): then the exact posterior of Theorem 6.
    noise_variance : σ_x²; None estimates it.
    method : "em" or "gradient" (Algorithm 2, `max_iter` rounds).
    fit_intercept : add a constant feature, under the same prior as the others.
    learning_rate : of method="gradient": one η for every update as printed, or None for safe steps of each kind.
    max_iter, tol : rounds (default 50 for EM, 500 for the gradient), and the relative change that ends EM.

    Attributes
    ----------
    clients_ (m,) sorted names, coef_ (m, d), intercept_ (m,), mean_ (d,), mean_intercept_, prior_variance_,
    noise_variance_, weights_ (m,): the share of a client's prior variance that its own data removes (0: it leans on the
    others alone), standard_errors_ (m, d): posterior deviations of coef_, client_risk_ (m,) = tr M_i⁻¹ plus what the
    error of μ̂ adds, risk_ its mean, local_risk_ = the same for pinv(X_i)Y_i, n_iter_.
    """

    def __init__(
        self,
        prior: Prior = "estimate",
        noise_variance: float | None = None,
        method: str = "em",
        fit_intercept: bool = False,
        learning_rate: float | None = None,
        max_iter: int | None = None,
        tol: float = 1e-6,
    ) -> None:
        self.prior = prior
        self.noise_variance = noise_variance
        self.method = method
        self.fit_intercept = fit_intercept
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike) -> LinearModels:
        """Rows `X` (N, d) and `y` (N,) with the client of each row in `groups` (N,)."""
        choice("method", self.method, ("em", "gradient"))
        rows = group_rows(X, y, groups, self.fit_intercept)
        known = known_prior(self.prior, rows.X.shape[1])
        noise = known_variance("noise_variance", self.noise_variance)
        if noise == 0:
            raise ConfigError(
                "noise_variance must be > 0 for regression; got 0. Use a small number, or None to estimate it."
            )
        free = Free(mean=known is None, prior=known is None, noise=noise is None)
        data = rotate(rows)
        _check_identifiable(data, free)
        start = start_population(data, known, noise)
        if self.method == "em":
            rounds = 50 if self.max_iter is None else whole_number("max_iter", self.max_iter)
            now, self.n_iter_ = expect_maximise(data, start, free, rounds, self.tol)
        else:
            self.n_iter_ = 500 if self.max_iter is None else whole_number("max_iter", self.max_iter)
            state = gradient.State(
                np.tile(start.mean, (data.clients, 1)), start.mean, start.prior_variance, start.noise_variance
            )
            state = gradient.linear(rows, state, free, self.n_iter_, self.learning_rate)
            now = Population(state.mean, state.prior_variance, state.noise_variance or start.noise_variance)
        self.clients_ = rows.clients
        self._finish(data, now, None if self.method == "em" else state.theta)
        return self

    def _finish(self, data: Rotated, now: Population, theta: Array | None) -> None:
        prior, noise = now.prior_variance, now.noise_variance
        gain = prior / (prior * data.square + noise)
        theta = posterior_means(data, now) if theta is None else theta
        away = np.clip(1 - data.per_client(gain, power=2), 0.0, 1.0)  # diag of M_i⁻¹/σ_θ², the weight of μ
        variance = prior * away
        if now.covariance is not None:
            variance = variance + mean_error(data, gain, now.covariance)
        d = theta.shape[1]
        self.weights_ = data.totals(gain * data.square) / d
        self.client_risk_ = variance.sum(1)
        self.risk_ = float(self.client_risk_.mean())
        self.local_risk_ = _local_risk(data, now)
        self.prior_variance_, self.noise_variance_ = prior, noise
        self._theta, self._population = theta, now.mean
        split = d - 1 if self.fit_intercept else d
        self.coef_, self.mean_ = theta[:, :split], now.mean[:split]
        self.intercept_ = theta[:, split] if self.fit_intercept else np.zeros(len(theta))
        self.mean_intercept_ = float(now.mean[split]) if self.fit_intercept else 0.0
        self.standard_errors_ = np.sqrt(variance[:, :split])

    def predict(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """Each row by its client's model; rows of clients never seen by the population mean."""
        fitted(self, "coef_")
        return scores(X, groups, self.clients_, self._theta, self._population, self.fit_intercept)

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) of coef_."""
        fitted(self, "coef_")
        reach = float(norm.ppf(0.5 + confidence(level) / 2)) * self.standard_errors_
        return self.coef_ - reach, self.coef_ + reach

    def score(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike) -> float:
        """R² of predict."""
        target = finite("y", y)
        error = float(np.square(target - self.predict(X, groups)).sum())
        spread = float(np.square(target - target.mean()).sum())
        if spread == 0:  # scikit-learn's convention for a constant y
            return float(error == 0)
        return 1 - error / spread


def scores(X: ArrayLike, groups: ArrayLike, clients: Any, theta: Array, population: Array, intercept: bool) -> Array:
    """xᵀθ of each row's client, or xᵀμ where the client is new."""
    rows = features(X, intercept, expected=len(population) - intercept)
    place = find(clients, groups)
    if place.shape != (len(rows),):
        raise DataError(
            f"groups must name one client per row of X; got {place.shape} for {len(rows)} rows. Name each row's client."
        )
    out: Array = np.einsum("nd,nd->n", rows, np.vstack([theta, population])[place])
    return out


def start_population(data: Rotated, known: tuple[Array, float] | None = None, noise: float | None = None) -> Population:
    """A start: half of the variance around the pooled fit for the clients' differences, half for the noise."""
    d = data.R.shape[1]
    pooled = Population(np.zeros(d), 0.0, 1.0)
    mean = estimate_mean(data, pooled).mean if known is None else known[0]
    error = np.square(data.target - data.R @ mean).sum() + data.residue
    whole = np.square(data.target).sum() + data.residue
    variance = float(max(error, 1e-12 * whole) / data.rows) or 1e-12
    size = float(max(data.square.sum() / data.rows, 1e-300))
    return Population(
        mean, variance / (2 * size) if known is None else known[1], variance / 2 if noise is None else noise
    )


def _check_identifiable(data: Rotated, free: Free) -> None:
    if free.mean and data.clients < 2:
        raise DataError("The population needs two or more clients; got 1. Pass a known prior, or add clients.")
    if len(data.square) == 0:
        raise DataError("X must not be zero everywhere; got only zeros. Add a constant column, or other features.")
    full = data.rows > len(data.square)
    if free.prior and free.noise and not full and np.ptp(data.square) <= 1e-9 * data.square.max():
        raise DataError(
            "The noise cannot be told from the clients' differences: every client has one row of the same length. "
            "Pass noise_variance, or collect more rows per client."
        )


def _local_risk(data: Rotated, now: Population) -> float:
    """Mean risk of pinv(X_i)Y_i: σ_x² tr (X_iᵀX_i)⁺, plus E‖(I − X⁺X)θ_i‖² where n_i < d."""
    d = data.R.shape[1]
    seen = float((np.square(data.R @ now.mean) / data.square).sum())
    unseen = (
        (data.clients * d - len(data.square)) * now.prior_variance + data.clients * float(now.mean @ now.mean) - seen
    )
    return float(now.noise_variance * (1 / data.square).sum() + unseen) / data.clients
