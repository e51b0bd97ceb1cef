"""Alternating gradient steps on all θ_i, μ, σ_θ² (and σ_x²), each computed from the values before the round.

Algorithms 2 and 3 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Departures: the prior's term is (θ−μ)/σ_θ² (erratum E12); steps on variances are taken in the logarithm and
end at a floor, since plain steps can cross zero (E18) and the objective falls without bound as σ_θ → 0 (E19).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from coterie.estimation.checks import Array
from coterie.estimation.regression.grouped import Grouped

FLOOR = 1e-8  # the smallest variance, as a share of where it started


@dataclass(frozen=True)
class State:
    """θ (m, d) stays with the clients; μ, σ_θ², σ_x² are the averages the server broadcasts."""

    theta: Array
    mean: Array
    prior_variance: float
    noise_variance: float | None = None


class _Free(Protocol):
    @property
    def mean(self) -> bool: ...
    @property
    def prior(self) -> bool: ...
    @property
    def noise(self) -> bool: ...


def _curvature(rows: Grouped) -> Array:
    """λ_max(X_iᵀX_i) of each client."""
    top = np.empty(len(rows.counts))
    for clients, X, _, _ in rows.blocks():
        gram = X @ X.swapaxes(1, 2) if X.shape[1] <= X.shape[2] else X.swapaxes(1, 2) @ X
        top[clients] = np.linalg.eigvalsh(gram)[:, -1]
    return top


def _server(state: State, free: _Free, learning_rate: float | None, floor: float) -> tuple[Array, float]:
    """The averages of the clients' μ_i and σ_{θ,i}².

    With η None the step sizes are σ_θ²/2 for μ and 1/d for log σ_θ², which are safe."""
    prior, d = state.prior_variance, len(state.mean)
    gap = state.mean - state.theta
    eta = 0.5 * prior if learning_rate is None else learning_rate
    mean = state.mean - eta * gap.mean(0) / prior if free.mean else state.mean
    slope = d / 2 - float(np.square(gap).sum(1).mean()) / (2 * prior)  # the gradient in log σ_θ²
    return mean, _log_step(prior, slope, d, learning_rate, floor) if free.prior else prior


def _log_step(variance: float, slope: float, size: float, learning_rate: float | None, floor: float) -> float:
    step = slope / size if learning_rate is None else learning_rate * slope
    return float(max(variance * np.exp(-np.clip(step, -1.0, 1.0)), floor))


def linear(rows: Grouped, state: State, free: _Free, rounds: int, learning_rate: float | None) -> State:
    """Algorithm 2 (L-1b)."""
    owner, top = rows.owner, _curvature(rows)
    per_client = float(rows.counts.mean())
    floor, noise_floor = FLOOR * state.prior_variance, FLOOR * (state.noise_variance or 1.0)
    for _ in range(rounds):
        noise, prior = state.noise_variance or 1.0, state.prior_variance
        error = rows.y - np.einsum("nd,nd->n", rows.X, state.theta[owner])
        gradient = -rows.sums(error[:, None] * rows.X) / noise + (state.theta - state.mean) / prior
        eta = (1 / (top / noise + 1 / prior))[:, None] if learning_rate is None else learning_rate
        slope = per_client / 2 - float(error @ error) / len(rows.counts) / (2 * noise)  # the gradient in log σ_x²
        new_noise = _log_step(noise, slope, per_client, learning_rate, noise_floor) if free.noise else noise
        mean, new_prior = _server(state, free, learning_rate, floor)
        state = State(state.theta - eta * gradient, mean, new_prior, new_noise)
    return state


def logistic(rows: Grouped, state: State, free: _Free, rounds: int, learning_rate: float | None) -> State:
    """Algorithm 3 (L-2): the loss gradient is Σ_j (σ(θᵀx_j) − y_j) x_j, and there is no σ_x²."""
    owner, top, floor = rows.owner, _curvature(rows) / 4, FLOOR * state.prior_variance
    for _ in range(rounds):
        prior = state.prior_variance
        error = expit(np.einsum("nd,nd->n", rows.X, state.theta[owner])) - rows.y
        gradient = rows.sums(error[:, None] * rows.X) + (state.theta - state.mean) / prior
        eta = (1 / (top + 1 / prior))[:, None] if learning_rate is None else learning_rate
        mean, new_prior = _server(state, free, learning_rate, floor)
        state = State(state.theta - eta * gradient, mean, new_prior)
    return state
