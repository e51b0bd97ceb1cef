"""Rotate every client's regression so that its rows are orthogonal: afterwards no client needs a matrix of its own.

A way to compute Theorem 6 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

X_i = U S Vᵀ turns Y_i = X_i θ_i + w_i into rows R = UᵀX_i (orthogonal, squared lengths s²) and ỹ = UᵀY_i. Under
θ_i ~ N(μ, σ_θ² I) the ỹ_j are independent N(R_jμ, σ_θ²s_j² + σ_x²), so Theorem 6's posterior, its trace and the
marginal likelihood are sums over rows, for any number of (μ, σ_θ², σ_x²) tried. One eigen-decomposition of the smaller Gram
matrix per client (n_i × n_i or d × d, batched) replaces a d × d Cholesky factor and inverse per client *and* iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.estimation.conventions import Array, Ints
from coterie.estimation.regression.grouped import Grouped

CHUNK = 4_000_000


@dataclass(frozen=True)
class Rotated:
    """Rows R (r, d), targets ỹ (r,) or (r, c), squared lengths s², the client of each row (contiguous), and the residue
    of each column of Y outside range X."""

    R: Array
    target: Array
    square: Array
    owner: Ints
    residue: Array
    clients: int
    rows: int  # N, the rows before rotation

    def column(self, j: int) -> Rotated:
        """The same rows with one of several targets."""
        return replace(self, target=self.target[:, j], residue=self.residue[j])

    def per_client(self, factor: Array, power: int = 1) -> Array:
        """Σ_j factor_j R_j^power over the rows of each client, (m, d); chunked so that no copy of R is made."""
        d = self.R.shape[1]
        out = np.zeros((self.clients, d))
        if len(self.owner) == 0:
            return out
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
        ends = np.append(starts[1:], len(self.owner))
        first = 0
        while first < len(starts):
            last = max(first + 1, int(np.searchsorted(ends, starts[first] + CHUNK // d, side="right")))
            here = slice(starts[first], ends[last - 1])
            block = self.R[here] if power == 1 else np.square(self.R[here])
            out[self.owner[starts[first:last]]] = np.add.reduceat(
                factor[here, None] * block, starts[first:last] - starts[first]
            )
            first = last
        return out

    def totals(self, values: Array) -> Array:
        """Σ_j values_j over the rows of each client, (m,)."""
        return np.bincount(self.owner, values, self.clients).astype(np.float64)


def rotate(data: Grouped) -> Rotated:
    d = data.X.shape[1]
    parts: list[tuple[Array, Array, Array, Ints]] = []
    residue = np.zeros(data.y.shape[1:])
    for clients, X, y, _ in data.blocks():
        Y = y.reshape(*y.shape[:2], -1)
        wide = X.shape[1] <= d
        eigen, U = np.linalg.eigh(X @ X.swapaxes(1, 2) if wide else X.swapaxes(1, 2) @ X)
        keep = eigen > max(X.shape[1:]) * np.finfo(np.float64).eps * np.maximum(eigen[:, -1:], 1e-300)
        length = np.sqrt(np.where(keep, eigen, 1.0))[:, :, None]
        if wide:
            R, target = U.swapaxes(1, 2) @ X, U.swapaxes(1, 2) @ Y
            left = target[~keep]
        else:
            R = length * U.swapaxes(1, 2)
            target = U.swapaxes(1, 2) @ (X.swapaxes(1, 2) @ Y) / length
            left = Y - X @ (U @ np.where(keep[:, :, None], target / length, 0.0))
        residue = residue + np.square(left).reshape(-1, Y.shape[2]).sum(0).reshape(residue.shape)
        owner = np.broadcast_to(clients[:, None], keep.shape)
        parts.append((R[keep], target[keep].reshape(-1, *residue.shape), eigen[keep], owner[keep]))
    R, target, square, owners = (np.concatenate([p[i] for p in parts]) for i in range(4))
    return Rotated(R, target, square, owners.astype(np.int64), residue, len(data.counts), data.n_rows)
