"""One prior variance for all coefficients (Theorem 6 and L-1em), on rotated rows: fast for many clients and features.

Theorem 6 and Algorithm 2 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import DataError
from coterie.estimation.conventions import Array
from coterie.estimation.regression.client_models import Fitted
from coterie.estimation.regression.grouped import Grouped
from coterie.estimation.regression.rotated import Rotated

NOTHING = 1e-9  # The smallest gain of the log-likelihood, in nats, that counts.


@dataclass(frozen=True)
class Population:
    """μ, σ_θ², σ_x² (1 for labels), and the sampling covariance of μ̂ (None where μ is known, or it was not computed)."""

    mean: Array
    prior_variance: float
    noise_variance: float = 1.0
    covariance: Array | None = None


@dataclass(frozen=True)
class Free:
    """The parts of the population that are estimated."""

    mean: bool
    prior: bool
    noise: bool


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


def posterior_of(data: Rotated, now: Population, theta: Array | None = None) -> Fitted:
    """Theorem 6 for every client: E[θ_i | Y_i], unless there are other estimates `theta`, and the posterior variances."""
    prior, noise = now.prior_variance, now.noise_variance
    gain = prior / (prior * data.square + noise)
    if theta is None:
        theta = now.mean + data.per_client(gain * (data.target - data.R @ now.mean))
    away = np.clip(1 - data.per_client(gain, power=2), 0.0, 1.0)  # diag of M_i⁻¹/σ_θ², the weight of μ
    variance = prior * away
    if now.covariance is not None:
        variance = variance + mean_error(data, gain, now.covariance)
    weights = data.totals(gain * data.square) / theta.shape[1]
    return Fitted(theta, now.mean, variance, np.asarray(prior), now.covariance, weights, noise=noise)


def mean_error(data: Rotated, gain: Array, covariance: Array) -> Array:
    """The addition to every client's variances from the error of μ̂, of covariance C: diag A_i C A_i, (m, d).

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


def check_identifiable(data: Rotated, free: Free) -> None:
    if free.mean and data.clients < 2:
        raise DataError("The population needs two or more clients; got 1. Pass a known prior, or add clients.")
    if len(data.square) == 0:
        raise DataError("X must not be zero everywhere; got only zeros. Add a constant column, or other features.")
    full = data.rows > len(data.square)
    if free.prior and free.noise and not full and np.ptp(data.square) <= 1e-9 * data.square.max():
        raise DataError(
            "The noise cannot be separated from the clients' differences: every client has one row of the same length. "
            "Pass noise_variance, or collect more rows per client."
        )


def spherical_local_risk(data: Rotated, now: Population) -> float:
    """Mean risk of pinv(X_i)Y_i: σ_x² tr (X_iᵀX_i)⁺, plus E‖(I − X⁺X)θ_i‖² where n_i < d."""
    d = data.R.shape[1]
    seen = float((np.square(data.R @ now.mean) / data.square).sum())
    unseen = (
        (data.clients * d - len(data.square)) * now.prior_variance + data.clients * float(now.mean @ now.mean) - seen
    )
    return float(now.noise_variance * (1 / data.square).sum() + unseen) / data.clients
