"""The numerical part of personalised logistic regression: all clients' Gaussian posteriors by Newton, and the
population."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from coterie.estimation._check import Array, Ints
from coterie.estimation._grouped import Grouped

FLOOR = -20.0  # least log σ_θ²: such clients are equal
WEAK = 1e-4  # precision of a flat prior on μ, which keeps it finite on separable data


@dataclass(frozen=True)
class Block:
    """Some clients of like size: θ_i = μ + V_i β_i, with V_i of r = min(n, d) orthonormal columns and B_i = X_i V_i.

    The part of θ_i − μ outside the span of a client's rows stays at the prior, so Newton's systems are r × r.
    """

    clients: Ints
    X: Array  # (c, n, d)
    y: Array
    mask: Array
    B: Array  # (c, n, r)
    basis: Array | None  # V_iᵀ (c, r, d); None is the identity

    def spread(self, beta: Array) -> Array:
        """V_i β_i."""
        return beta if self.basis is None else (beta[:, None] @ self.basis)[:, 0]

    @property
    def rank(self) -> int:
        return int(self.B.shape[2])


def make_blocks(rows: Grouped) -> list[Block]:
    blocks = []
    for clients, X, y, mask in rows.blocks():
        if X.shape[1] >= X.shape[2]:
            blocks.append(Block(clients, X, y, mask, X, None))
            continue
        eigen, U = np.linalg.eigh(X @ X.swapaxes(1, 2))
        keep = eigen > X.shape[2] * np.finfo(np.float64).eps * np.maximum(eigen[:, -1:], 1e-300)
        length = np.sqrt(np.where(keep, eigen, 0.0))
        basis = (U * np.divide(1.0, length, out=np.zeros_like(length), where=keep)[:, None]).swapaxes(1, 2) @ X
        blocks.append(Block(clients, X, y, mask, U * length[:, None], basis))
    return blocks


NODES, MASSES = np.polynomial.hermite_e.hermegauss(11)


def loss_and_slopes(score: Array, variance: Array | None) -> tuple[Array, Array, Array]:
    """softplus(s), σ(s) and σ(s)(1−σ(s)); with ``variance`` averaged over s ~ N(score, variance) by quadrature."""
    if variance is None:
        chance = expit(score)
        return np.logaddexp(0.0, score), chance, chance * (1 - chance)
    loss, mean, slope = np.zeros_like(score), np.zeros_like(score), np.zeros_like(score)
    deviation = np.sqrt(variance)
    for node, mass in zip(NODES, MASSES / MASSES.sum(), strict=True):
        moved = score + node * deviation
        chance = expit(moved)
        loss += mass * np.logaddexp(0.0, moved)
        mean += mass * chance
        slope += mass * chance * (1 - chance)
    return loss, mean, slope


def find_modes(
    block: Block, mean: Array, beta: Array, prior_variance: float, variance: Array | None = None, steps: int = 50
) -> tuple[Array, Array]:
    """Newton's method with step halving for all clients at once; returns β̂ and the inverse curvature H⁻¹ (c, r, r).

    Minimises −log p(y, θ_i | μ, σ_θ²), or with ``variance`` (c, n) of the scores its variational average.
    """
    offset = block.X @ mean
    eye = np.eye(block.rank) / prior_variance

    def evaluate(beta: Array) -> tuple[Array, Array, Array]:
        score = offset + (block.B @ beta[:, :, None])[:, :, 0]
        loss, chance, slope = loss_and_slopes(score, variance)
        value = (block.mask * (loss - block.y * score)).sum(1) + np.square(beta).sum(1) / (2 * prior_variance)
        return value, chance, slope

    value, chance, slope = evaluate(beta)
    for _ in range(steps):
        gradient = ((block.mask * (chance - block.y))[:, None] @ block.B)[:, 0] + beta / prior_variance
        curvature = block.B.swapaxes(1, 2) @ ((block.mask * slope)[:, :, None] * block.B) + eye
        step = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        decrement = (gradient * step).sum(1)
        if decrement.max(initial=0.0) < (1e-14 if variance is None else 1e-8):
            break
        scale = np.ones(len(beta))
        for _ in range(20):
            trial, chance, slope = evaluate(beta - scale[:, None] * step)
            worse = trial > value - 0.1 * scale * decrement + 1e-12 * (1 + np.abs(value))
            if not worse.any():
                break
            scale = np.where(worse, scale / 2, scale)
        beta, value = beta - scale[:, None] * step, trial
    inverse: Array = np.linalg.inv(curvature).astype(np.float64)
    return beta, inverse


@dataclass(frozen=True)
class Fit:
    mean: Array
    prior_variance: float
    betas: list[Array]
    inverses: list[Array]
    variances: list[Array]  # of the scores under each client's posterior
    covariance: Array | None = None


def solve_clients(blocks: list[Block], now: Fit, average: bool) -> Fit:
    """Every client's Gaussian posterior: at its mode, or averaged with the score variances of the round before."""
    solved = [
        find_modes(block, now.mean, beta, now.prior_variance, variance if average else None)
        for block, beta, variance in zip(blocks, now.betas, now.variances, strict=True)
    ]
    inverses = [inverse for _, inverse in solved]
    variances = [((b.B @ inverse) * b.B).sum(2) for b, inverse in zip(blocks, inverses, strict=True)]
    return replace(now, betas=[beta for beta, _ in solved], inverses=inverses, variances=variances)


def population_step(blocks: list[Block], now: Fit, clients: int) -> tuple[Array, Array, float]:
    """A Newton step for μ, its covariance, and EM's surplus: the relative change EM would make to σ_θ².

    EM: μ = mean θ̂_i, σ_θ² = Σ_i E‖θ_i − μ‖²/(md), with the prior variance off a client's span.
    """
    d, prior = len(now.mean), now.prior_variance
    gradient, information = WEAK * now.mean, WEAK * np.eye(d)
    moved = 0.0
    for block, beta, inverse, variance in zip(blocks, now.betas, now.inverses, now.variances, strict=True):
        known = np.eye(block.rank) - inverse / prior  # what the data say, as a share of the prior variance
        score = block.X @ now.mean + (block.B @ beta[:, :, None])[:, :, 0]
        error = block.mask * (loss_and_slopes(score, variance)[1] - block.y)
        gradient = gradient + error.ravel() @ block.X.reshape(
            -1, d
        )  # = Σ(μ − θ̂_i)/σ_θ² at the modes, without dividing by a tiny σ_θ²
        if block.basis is None:
            information = information + known.sum(0) / prior
        else:
            information = information + block.basis.reshape(-1, d).T @ (known @ block.basis).reshape(-1, d) / prior
        moved += float(np.square(beta).sum() + np.trace(inverse, axis1=1, axis2=2).sum())
        moved += len(beta) * (d - block.rank) * prior
    covariance: Array = np.linalg.inv(information).astype(np.float64)
    step = covariance @ gradient
    longest = 3.0 * np.sqrt(sum(float(b.mask.sum()) for b in blocks))  # no score may move by more than 3 on average
    length = np.sqrt(sum(float(np.square(b.X @ step).sum()) for b in blocks))
    return now.mean - step * min(1.0, longest / max(length, 1e-300)), covariance, moved / (prior * clients * d) - 1


@dataclass
class Search:
    """The learning of (μ, σ_θ²): at every σ_θ² tried, μ is brought to its optimum; σ_θ² is the root of EM's surplus."""

    blocks: list[Block]
    now: Fit
    clients: int
    rounds_left: int
    rounds: int = 0

    def surplus(self, log_variance: float) -> float:
        self.now = replace(self.now, prior_variance=float(np.exp(log_variance)))
        for inner in range(12):
            before, self.now = self.now.mean, solve_clients(self.blocks, self.now, average=True)
            mean, covariance, surplus = population_step(self.blocks, self.now, self.clients)
            self.now = replace(self.now, mean=mean, covariance=covariance)
            self.rounds += 1
            still = np.abs(mean - before).max() < 0.02 * np.sqrt(max(np.diag(covariance).min(), 1e-300))
            if (inner >= 1 and still) or self.rounds >= self.rounds_left:
                break
        return surplus

    def run(self, tol: float) -> Fit:
        """Step out from the start until the surplus changes sign, then close in; a vanishing variance ends at the
        floor."""
        place = float(np.log(self.now.prior_variance))
        value = self.surplus(place)
        towards = 1.5 if value > 0 else -1.5
        while self.rounds < self.rounds_left and FLOOR < place < -FLOOR:
            last, last_value = place, value
            place += towards
            value = self.surplus(place)
            if (value > 0) != (last_value > 0):
                self._close_in((last, last_value), (place, value), tol)
                break
        return self.now

    def _close_in(self, a: tuple[float, float], b: tuple[float, float], tol: float) -> None:
        """Regula falsi, Illinois variant: b is the newest point, a on the other side of the root."""
        while abs(a[0] - b[0]) > tol and self.rounds < self.rounds_left:
            place = b[0] - b[1] * (b[0] - a[0]) / (b[1] - a[1])
            value = self.surplus(place)
            a = b if (value > 0) != (b[1] > 0) else (a[0], a[1] / 2)
            if abs(place - b[0]) < tol / 2:
                break
            b = (place, value)
