"""The numerical part of personalised logistic regression: clients in blocks, and all clients' modes by Newton's method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from coterie.estimation.conventions import Array, Ints
from coterie.estimation.regression.grouped import Grouped


@dataclass(frozen=True)
class Block:
    """Some clients of like size: θ_i = μ + L V_i β_i, with V_i of r = min(n, d) orthonormal columns and B_i = X_i L V_i.

    L Lᵀ is the prior's covariance, if it is not spherical (`root`, the diagonal of L or all of it; None is the identity).
    The part of θ_i − μ outside the span of a client's rows stays at the prior, so Newton's systems are r × r.
    """

    clients: Ints
    X: Array  # (c, n, d)
    y: Array
    weight: Array  # (c, n); 0 for padding
    B: Array  # (c, n, r)
    basis: Array | None  # V_iᵀ (c, r, d); None is the identity
    root: Array | None = None

    def turned(self, rows: Array) -> Array:
        """Rows (…, d) of z as rows of L z."""
        if self.root is None:
            return rows
        return np.asarray(rows * self.root if self.root.ndim == 1 else rows @ self.root.T)

    def spread(self, beta: Array) -> Array:
        """L V_i β_i."""
        return self.turned(beta if self.basis is None else (beta[:, None] @ self.basis)[:, 0])

    def prior_diagonal(self) -> Array:
        """diag L Lᵀ, for every client (c, d)."""
        shape = (len(self.clients), self.X.shape[2])
        if self.root is None:
            return np.ones(shape)
        return np.broadcast_to(np.square(self.root) if self.root.ndim == 1 else np.square(self.root).sum(1), shape)

    @property
    def rank(self) -> int:
        return int(self.B.shape[2])


def make_blocks(rows: Grouped, root: Array | None = None) -> list[Block]:
    blocks = []
    for clients, X, y, weight in rows.blocks():
        Z = X if root is None else X * root if root.ndim == 1 else X @ root
        if X.shape[1] >= X.shape[2]:
            blocks.append(Block(clients, X, y, weight, Z, None, root))
            continue
        eigen, U = np.linalg.eigh(Z @ Z.swapaxes(1, 2))
        keep = eigen > Z.shape[2] * np.finfo(np.float64).eps * np.maximum(eigen[:, -1:], 1e-300)
        length = np.sqrt(np.where(keep, eigen, 0.0))
        basis = (U * np.divide(1.0, length, out=np.zeros_like(length), where=keep)[:, None]).swapaxes(1, 2) @ Z
        blocks.append(Block(clients, X, y, weight, U * length[:, None], basis, root))
    return blocks


def find_modes(block: Block, mean: Array, prior_variance: float, steps: int = 50) -> Array:
    """Minimise −log p(y, θ_i | μ, σ_θ²) by Newton's method with step halving, all clients at once; returns β̂."""
    offset = block.X @ mean
    eye = np.eye(block.rank) / prior_variance

    def evaluate(beta: Array) -> tuple[Array, Array]:
        score = offset + (block.B @ beta[:, :, None])[:, :, 0]
        loss = (block.weight * (np.logaddexp(0.0, score) - block.y * score)).sum(1)
        return loss + np.square(beta).sum(1) / (2 * prior_variance), expit(score)

    beta = np.zeros((len(block.clients), block.rank))
    value, chance = evaluate(beta)
    moves = np.ones(len(beta), np.bool_)
    for _ in range(steps):
        gradient = ((block.weight * (chance - block.y))[:, None] @ block.B)[:, 0] + beta / prior_variance
        weight = block.weight * chance * (1 - chance)
        curvature = block.B.swapaxes(1, 2) @ (weight[:, :, None] * block.B) + eye
        step = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        decrement = (gradient * step).sum(1)
        moves &= decrement >= 1e-14  # a client's steps end by its own rows
        if not moves.any():
            break
        step, decrement = step * moves[:, None], decrement * moves
        scale = np.ones(len(beta))
        for _ in range(20):
            trial, chance = evaluate(beta - scale[:, None] * step)
            worse = trial > value - 0.1 * scale * decrement + 1e-12 * (1 + np.abs(value))
            if not worse.any():
                break
            scale = np.where(worse, scale / 2, scale)
        beta, value = beta - scale[:, None] * step, trial
    return beta
