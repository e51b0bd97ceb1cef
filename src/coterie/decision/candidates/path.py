"""Ridge and logistic ridge paths for many units at once (a unit is a client, a group, or everybody).

Every unit is centred and scaled by its own rows and turned to its principal axes, so a unit with n rows and d columns
costs min(n, d)³. The penalty is judged by the leave-one-out loss; the coefficients along the path are either averaged
with weights that fall with that loss, or the best is taken. Averaging keeps a lone client from overfitting its choice
of penalty: a weak "alone" would fake gains for everybody else."""

from dataclasses import dataclass

import numpy as np

from coterie.decision.candidates.rows import Block, Floats, Ints, blocks, sigmoid

ALONE_LINEAR = (1e-3, 0.03, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, np.inf)
ALONE_LOGISTIC = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, np.inf)
POOLED = (1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, np.inf)
_NEWTON_STEPS = 40


@dataclass(frozen=True)
class Path:
    """Which penalties are tried, whether they are multiplied by the unit's rows, and whether they are averaged."""

    penalties: tuple[float, ...]
    per_row: bool
    average: bool


POOLED_PATH = Path(POOLED, per_row=True, average=False)


@dataclass(frozen=True)
class _Axes:
    """A block of units on their own principal axes: ``scores`` (units, rows, axes), their squared lengths ``power``."""

    mean: Floats
    back: Floats  # (units, features, axes): from axes to the units of the features
    scores: Floats
    power: Floats
    count: Floats


def _axes(block: Block, X: Floats) -> _Axes:
    x, n = block.take(X), block.mask.sum(1)
    mean = x.sum(1) / n[:, None]
    x = (x - mean[:, None]) * block.mask[..., None]
    sd = np.sqrt((x**2).sum(1) / n[:, None])
    inverse = np.where(sd > 1e-8, 1 / np.maximum(sd, 1e-8), 0.0)
    x = x * inverse[:, None]
    if x.shape[1] < x.shape[2]:
        power, left = np.linalg.eigh(x @ x.transpose(0, 2, 1))
        length = np.sqrt(np.maximum(power, 0))
        turn = x.transpose(0, 2, 1) @ (left * _safe_inverse(length, 1e-6)[:, None])
        scores = left * length[:, None]
    else:
        power, turn = np.linalg.eigh(x.transpose(0, 2, 1) @ x)
        scores = x @ turn
    return _Axes(mean, turn * inverse[..., None], scores, np.maximum(power, 0), n)


def _safe_inverse(values: Floats, least: float) -> Floats:
    return np.where(values > least, 1 / np.maximum(values, least), 0.0)


def _weights(loss: Floats, n: Floats, path: Path, logarithm: bool) -> Floats:
    """Weights (units, penalties) from leave-one-out losses; a unit with fewer than three rows keeps its mean."""
    log_loss = np.log(np.maximum(loss, 1e-20)) / 2 if logarithm else loss
    if path.average:
        score = -n[:, None] * log_loss
        weight = np.exp(score - score.max(1, keepdims=True))
    else:
        weight = np.eye(loss.shape[1])[loss.argmin(1)]
    weight = np.where(n[:, None] < 3, np.eye(loss.shape[1])[-1], weight)
    return np.asarray(weight / weight.sum(1, keepdims=True))


def _penalties(path: Path, n: Floats) -> Floats:
    """(units, penalties); infinity becomes a number that leaves the mean alone in the model."""
    tried = np.where(np.isinf(path.penalties), 1e12, path.penalties)
    return np.asarray(tried * (n[:, None] if path.per_row else np.ones((len(n), 1))))


def _linear(axes: _Axes, block: Block, y: Floats, path: Path) -> Floats:
    """Coefficients with the intercept first (units, 1 + features); leave-one-out by PRESS, r / (1 − h)."""
    target = block.take(y)
    mean = target.sum(1) / axes.count
    target = (target - mean[:, None]) * block.mask
    shrink = 1 / (axes.power[..., None] + _penalties(path, axes.count)[:, None])
    along = (axes.scores.transpose(0, 2, 1) @ target[..., None]) * shrink
    leverage = axes.scores**2 @ shrink + (1 / axes.count)[:, None, None]
    residual = (target[..., None] - axes.scores @ along) / np.maximum(1 - leverage, 1e-6) * block.mask[..., None]
    loss = (residual**2).sum(1) / axes.count[:, None]
    weight = _weights(loss, axes.count, path, logarithm=True)
    slope = (axes.back @ (along @ weight[..., None]))[..., 0]
    return np.column_stack([mean - (slope * axes.mean).sum(1), slope])


def _logistic(axes: _Axes, block: Block, y: Floats, path: Path) -> tuple[Floats, bool]:
    """As `_linear` for 0/1 targets, by Newton steps for all units and penalties at once; two half rows at the mean
    (one of each class) keep every fit finite. The leave-one-out loss takes one Newton step."""
    b, n, r = axes.scores.shape
    rows = np.concatenate([np.ones((b, n, 1)), axes.scores], 2)[:, None] * block.mask[:, None, :, None]
    target, mask = block.take(y)[:, None], block.mask[:, None]
    penalty = np.concatenate(
        [np.zeros((b, len(path.penalties), 1)), np.repeat(_penalties(path, axes.count)[..., None], r, 2)], 2
    )
    rate = (target.sum(2) + 0.5) / (axes.count[:, None] + 1)
    beta = np.zeros(penalty.shape)
    beta[..., 0] = np.log(rate / (1 - rate))
    at_zero, diagonal = np.zeros(r + 1), np.arange(r + 1)
    at_zero[0] = 1.0
    settled = False
    for _ in range(_NEWTON_STEPS):
        chance = sigmoid((rows @ beta[..., None])[..., 0])
        middle = sigmoid(beta[..., 0])
        slope = ((target - chance) * mask)[..., None, :] @ rows
        gradient = slope[..., 0, :] + (0.5 - middle)[..., None] * at_zero - penalty * beta
        hessian = (rows * (chance * (1 - chance))[..., None]).swapaxes(-1, -2) @ rows
        hessian[..., diagonal, diagonal] += penalty + 1e-9
        hessian[..., 0, 0] += middle * (1 - middle)
        if settled:
            break
        step = np.linalg.solve(hessian, gradient[..., None])
        move = np.abs(rows @ step).max((2, 3))
        beta = beta + step[..., 0] * np.minimum(1, 4 / np.maximum(move, 1e-12))[..., None]
        settled = bool(move.max() < 1e-6)
    inverse = np.linalg.inv(hessian)
    leverage = ((rows @ inverse) * rows).sum(-1)
    eta = (rows @ beta[..., None])[..., 0]
    left_out = eta + leverage * (chance - target) / np.maximum(1 - chance * (1 - chance) * leverage, 1e-3)
    loss = ((np.logaddexp(0, left_out) - target * left_out) * mask).sum(2) / axes.count[:, None]
    weight = _weights(loss, axes.count, path, logarithm=False)
    mixed = (weight[..., None] * beta).sum(1)
    slope = (axes.back @ mixed[:, 1:, None])[..., 0]
    return np.column_stack([mixed[:, 0] - (slope * axes.mean).sum(1), slope]), settled


def fit_units(X: Floats, y: Floats, unit: Ints, n_units: int, path: Path, logistic: bool) -> tuple[Floats, bool]:
    """Coefficients (units, 1 + features, outputs) of every unit, and whether all of them converged.

    A unit without rows gets NaN: the caller says what stands in."""
    coef = np.full((n_units, 1 + X.shape[1], y.shape[1]), np.nan)
    converged = True
    width = (1 + X.shape[1]) * (len(path.penalties) if logistic else 1)
    for block in blocks(unit, n_units, width):
        axes = _axes(block, X)
        for output in range(y.shape[1]):
            if logistic:
                coef[block.units, :, output], settled = _logistic(axes, block, y[:, output], path)
                converged &= settled
            else:
                coef[block.units, :, output] = _linear(axes, block, y[:, output], path)
    return coef, converged
