"""Alternating gradient steps on all θ_i, μ, σ_θ² (and σ_x²), each computed from the values before the round.

Algorithms 2 and 3 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Departures: the prior's term is (θ−μ)/σ_θ² (erratum E12); steps on variances are taken in the logarithm and
end at a floor, since plain steps can cross zero (E18) and the objective falls without bound as σ_θ → 0 (E19).
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from coterie.estimation.conventions import Array
from coterie.estimation.regression.grouped import Grouped
from coterie.estimation.regression.spherical import Free, Population

FLOOR = 1e-8  # the smallest variance, as a share of where it started


def _curvature(rows: Grouped) -> Array:
    """λ_max(X_iᵀX_i) of each client."""
    top = np.empty(len(rows.counts))
    for clients, X, _, _ in rows.blocks():
        gram = X @ X.swapaxes(1, 2) if X.shape[1] <= X.shape[2] else X.swapaxes(1, 2) @ X
        top[clients] = np.linalg.eigvalsh(gram)[:, -1]
    return top


def descend(
    rows: Grouped,
    start: Population,
    free: Free,
    rounds: int,
    learning_rate: float | None,
    *,
    labels: bool = False,
    theta: Array | None = None,
) -> tuple[Array, Population]:
    """The clients' θ (m, d), which stay with them, and the averages that the server broadcasts.

    Algorithm 2 (L-1b); with `labels` Algorithm 3 (L-2), whose loss gradient is Σ_j (σ(θᵀx_j) − y_j) x_j without σ_x².
    With η None the step sizes are σ_θ²/2 for μ, 1/d for log σ_θ² and the inverse curvature for θ_i, which are safe. The
    clients start at `theta`, or at the population's mean."""
    owner, top, d = rows.owner, _curvature(rows) / (4 if labels else 1), len(start.mean)
    per_client, clients = float(rows.seen.mean()), len(rows.counts)
    floor, noise_floor = FLOOR * start.prior_variance, FLOOR * start.noise_variance
    theta, now = np.tile(start.mean, (clients, 1)) if theta is None else theta, start
    for _ in range(rounds):
        noise, prior = now.noise_variance, now.prior_variance
        score = np.einsum("nd,nd->n", rows.X, theta[owner])
        error = (expit(score) if labels else score) - rows.y
        gap = now.mean - theta
        gradient = rows.sums(error[:, None] * rows.X) / noise - gap / prior
        eta = (1 / (top / noise + 1 / prior))[:, None] if learning_rate is None else learning_rate
        if free.noise:
            slope = per_client / 2 - float(error @ error) / clients / (2 * noise)  # the gradient in log σ_x²
            noise = _log_step(noise, slope, per_client, learning_rate, noise_floor)
        slope = d / 2 - float(np.square(gap).sum(1).mean()) / (2 * prior)  # the gradient in log σ_θ²
        rate = 0.5 * prior if learning_rate is None else learning_rate
        mean = now.mean - rate * gap.mean(0) / prior if free.mean else now.mean
        new_prior = _log_step(prior, slope, d, learning_rate, floor) if free.prior else prior
        theta, now = theta - eta * gradient, Population(mean, new_prior, noise)
    return theta, now


def _log_step(variance: float, slope: float, size: float, learning_rate: float | None, floor: float) -> float:
    step = slope / size if learning_rate is None else learning_rate * slope
    return float(max(variance * np.exp(-np.clip(step, -1.0, 1.0)), floor))
