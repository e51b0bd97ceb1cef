"""Models from sums of squares: ridge with a penalty chosen on inner parts, shrunk, and groups.

Matrices are A = Σ z zᵀ and c = Σ z y over standardised rows z = (1, x), per client and inner part of the training rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.comparison.exact.candidates.groups import Forms, hard_em, number_of_groups, sorted_by_size
from coterie.comparison.exact.candidates.path import POOLED
from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.candidates.shrunk import from_sums
from coterie.comparison.sites.study import INNER

PENALTIES = np.where(np.isinf(POOLED), 1e12, POOLED)
STARTS, MOST = 3, 6


@dataclass(frozen=True)
class Units:
    """Takes rows v = (1, x, y) about the agreed centre to standardised ones w = L v."""

    L: Floats

    @classmethod
    def of(cls, total: Floats, target: bool) -> Units:
        """From Σ v vᵀ over training rows; a constant column is sent to zero, and `target` is scaled too."""
        n, q = max(total[0, 0], 1.0), len(total)
        mean, square = total[0] / n, np.diag(total) / n
        sd = np.sqrt(np.maximum(square - mean**2, 0))
        inverse = np.where(sd > 1e-7 * np.sqrt(square), 1 / np.where(sd > 0, sd, 1.0), 0.0)
        mean, inverse = mean.copy(), inverse.copy()
        if not target:
            mean[-1], inverse[-1] = 0.0, 1.0
        L = np.diag(inverse)
        L[1:, 0] = -(mean * inverse)[1:]
        L[0] = np.eye(q)[0]
        return cls(L)

    @property
    def columns(self) -> Floats:
        return self.L[:-1, :-1]

    def outside(self, coef: Floats) -> Floats:
        """Coefficients (…, 1 + columns) for rows about the agreed centre."""
        scale = self.L[-1, -1]
        out = coef @ self.columns / (scale or 1.0)
        out[..., 0] -= self.L[-1, 0] / (scale or 1.0)
        return np.asarray(out)

    def outside_spread(self, spread: Floats) -> Floats:
        return np.asarray(self.columns.T @ spread @ self.columns)


@dataclass(frozen=True)
class Sums:
    """A, c and Σ y² of every client and inner part."""

    A: Floats  # (clients, parts, p, p)
    c: Floats
    yy: Floats

    @classmethod
    def of(cls, moments: Floats, units: Units) -> Sums:
        W = units.L @ moments @ units.L.T
        return cls(W[..., :-1, :-1], W[..., :-1, -1], W[..., -1, -1])

    def of_groups(self, group: Ints, k: int) -> Sums:
        member = np.eye(k)[group].T
        return Sums(*(np.tensordot(member, part, 1) for part in (self.A, self.c, self.yy)))

    def merged(self, part: Ints, parts: int) -> Sums:
        """`part` (clients, folds) says where each fold goes."""
        member = (part[:, None] == np.arange(parts)[:, None]) * 1.0
        return Sums(*(np.einsum("mjk,mk...->mj...", member, v) for v in (self.A, self.c, self.yy)))

    def losses(self, beta: Floats) -> Floats:
        """(clients, models): squared errors of models (models, p)."""
        A, c, yy = self.A.sum(1), self.c.sum(1), self.yy.sum(1)
        return np.asarray(yy[:, None] - 2 * c @ beta.T + np.einsum("kp,mpq,kq->mk", beta, A, beta))


def ridges(A: Floats, per_row: Floats) -> Floats:
    """Penalties (…, penalties, p) of the slopes: a share of each column's sum of squares about its mean."""
    d = np.diagonal(A, axis1=-2, axis2=-1)
    n = np.maximum(A[..., :1, 0], 1e-9)
    spread = d - A[..., 0] ** 2 / n
    empty = spread <= 1e-9 * np.maximum(d, n)
    made = per_row[:, None] * np.where(empty, 0.0, spread)[..., None, :] + np.where(empty, n, 0.0)[..., None, :]
    made[..., 0] = 1e-9
    return np.asarray(made)


def _solved(A: Floats, c: Floats, penalty: Floats) -> Floats:
    return np.asarray(np.linalg.solve(A + penalty[..., None] * np.eye(A.shape[-1]), c[..., None])[..., 0])


def chosen_ridge(sums: Sums) -> Floats:
    """A ridge model per unit (units, p); its penalty has the lowest error on the inner parts, each left out in turn."""
    A, c = sums.A.sum(1), sums.c.sum(1)
    left, right = A[:, None] - sums.A, c[:, None] - sums.c
    beta = _solved(left[:, :, None], right[:, :, None], ridges(left, PENALTIES))  # (units, parts, penalties, p)
    fit = np.einsum("ujlp,ujpq,ujlq->ujl", beta, sums.A, beta, optimize=True)
    error = (fit - 2 * np.einsum("ujlp,ujp->ujl", beta, sums.c)).sum(1)
    best = PENALTIES[error.argmin(1)]
    return _solved(A, c, np.stack([ridges(a, b[None])[0] for a, b in zip(A, best, strict=True)]))


@dataclass(frozen=True)
class Fitted:
    """Standardised models of one fit: constant and together (p), shrunk and groups (clients, p)."""

    constant: Floats
    together: Floats
    shrunk: Floats
    groups: Floats
    group: Ints
    settled: bool
    spread: Floats | None = None
    forms: tuple[Floats, Floats, Floats] | None = None  # around together, per client: A, c, and Σ r² (numbers)


def fit_regression(sums: Sums, part: Ints, rng: np.random.Generator) -> Fitted:
    """All methods from the sums of clients; `part` (clients, folds) merges folds for the choice of the number of groups."""
    A, c = sums.A.sum(1), sums.c.sum(1)
    m, p = c.shape
    n, total = float(A[:, 0, 0].sum()), float(sums.yy.sum())
    constant = np.eye(p)[0] * c[:, 0].sum() / max(n, 1)
    base = chosen_ridge(sums.of_groups(np.zeros(m, np.int64), 1))
    found = from_sums(A, c, round(n), total + 1e-12)
    parts = sums.merged(part, INNER)
    test = Forms(parts.A.swapaxes(0, 1)[:, None], (parts.c - parts.A @ base[0]).swapaxes(0, 1)[:, None])
    forms = Forms(A[None, None], (c - A @ base[0])[None, None])
    penalty = max(1.0, (p - 1) / 10)
    k, _ = number_of_groups(forms, test, MOST, STARTS, penalty, rng)
    group, coef = np.zeros(m, np.int64), base
    if k > 1:
        group = hard_em(forms, k, 2 * STARTS, penalty, rng)[1][0]
        for _ in range(5):
            group, k = sorted_by_size(group)
            coef = chosen_ridge(sums.of_groups(group, k))
            new = sums.losses(coef).argmin(1)
            if np.array_equal(new, group):
                break
            group = new
    return Fitted(constant, base[0], found.coef, coef[group], group, found.converged)
