"""Common slopes and an intercept per client: the smallest personal model, and often a good one for few rows.

Minimises squared error + λ Σ b_c² + κ n |β|², where b_c is client c's own intercept and β the slopes of all. Intercepts
are eliminated: b_c = n_c / (n_c + λ) (ȳ_c − x̄_cᵀβ). λ and κ have the lowest loss on inner folds. Two classes: the same by
reweighted steps on the logistic scale; with more classes there are no intercepts, and the fit is the model for all."""

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import expit

from coterie.comparison.exact.candidates.base import Fit
from coterie.comparison.exact.candidates.rows import Floats, Ints, Rows, losses

_INTERCEPTS = (0.1, 0.5, 2.0, 8.0, 30.0, 200.0)
_SLOPES = (1e-4, 3e-3, 0.03, 0.3)
_INNER_FOLDS = 4
_STEPS = 12


@dataclass(frozen=True)
class Offsets:
    """Common slopes with an intercept per client, shrunk towards the common one."""

    name: str = "offsets"

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        if rows.n_outputs > 1:
            coef = rows.pooled[0]
            return Fit(coef, np.zeros(rows.n_clients, np.int64), coef[0], rows.classification)
        fold = rng.permutation(len(rows.y)) % _INNER_FOLDS
        total = np.zeros(len(_INTERCEPTS) * len(_SLOPES))
        for f in range(_INNER_FOLDS):
            train, test = rows.part(fold != f), rows.part(fold == f)
            total += [_loss(test, *_solved(train, *pair)) for pair in product(_INTERCEPTS, _SLOPES)]
        best = list(product(_INTERCEPTS, _SLOPES))[int(np.argmin(total))]
        level, own, slope = _solved(rows, *best)
        coef = np.repeat(np.append(level, slope)[None, :, None], rows.n_clients, axis=0)
        coef[:, 0, 0] += own
        return Fit(coef, np.arange(rows.n_clients), np.append(level, slope)[:, None], rows.classification)


def _loss(rows: Rows, level: float, own: Floats, slope: Floats) -> float:
    eta = (level + own[rows.owner] + rows.X @ slope)[:, None]
    loss = losses(eta, rows.y) if rows.classification else ((rows.y - eta) ** 2)[:, 0]
    return float(loss.sum() if rows.weight is None else loss @ rows.weight)


def _solved(rows: Rows, intercepts: float, slopes: float) -> tuple[float, Floats, Floats]:
    """The common intercept, every client's own, and the slopes."""
    y = rows.y[:, 0]
    if not rows.classification:
        return _weighted(rows, y, np.ones(len(y)) if rows.weight is None else rows.weight, intercepts, slopes)
    mean = np.clip(y.mean(), 0.5 / len(y), 1 - 0.5 / len(y))
    level, own, slope = float(np.log(mean / (1 - mean))), np.zeros(rows.n_clients), np.zeros(rows.X.shape[1])
    for _ in range(_STEPS):
        eta = level + own[rows.owner] + rows.X @ slope
        chance = expit(eta)
        weight = np.maximum(chance * (1 - chance), 0.01)
        moved = _weighted(rows, eta + (y - chance) / weight, weight, intercepts / 4, slopes / 4)
        far = np.abs(moved[0] + moved[1][rows.owner] + rows.X @ moved[2] - eta).max()
        share = min(1.0, 2.0 / max(float(far), 1e-12))
        level += share * (moved[0] - level)
        own, slope = own + share * (moved[1] - own), slope + share * (moved[2] - slope)
        if far < 1e-3:
            break
    return level, own, slope


def _weighted(rows: Rows, y: Floats, weight: Floats, intercepts: float, slopes: float) -> tuple[float, Floats, Floats]:
    """Weighted least squares with penalised intercepts (eliminated) and slopes."""
    Z, owner, m = rows.Z, rows.owner, rows.n_clients
    count = np.bincount(owner, weights=weight, minlength=m)
    sums = _sums(Z * weight[:, None], owner, m)
    target = np.bincount(owner, weights=weight * y, minlength=m)
    share = 1 / (count + intercepts)
    left = (Z * weight[:, None]).T @ Z - (sums * share[:, None]).T @ sums
    right = Z.T @ (weight * y) - sums.T @ (share * target)
    left[np.diag_indices(len(left))] += np.append(1e-9, np.full(Z.shape[1] - 1, slopes * len(y)))
    both = np.linalg.solve(left, right)
    own = share * (target - sums @ both)
    return float(both[0]), own, np.asarray(both[1:])


def _sums(values: Floats, owner: Ints, m: int) -> Floats:
    """Column sums per client."""
    return np.stack([np.bincount(owner, weights=v, minlength=m) for v in values.T], 1)
