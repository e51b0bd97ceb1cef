"""Ridge and logistic ridge paths for many units at once (a unit is a client, a group, or everybody).

Every unit is centred and scaled by its own rows and turned to its principal axes, so a unit with n rows and d columns
costs min(n, d)³. The penalty is judged by the leave-one-out loss; the coefficients along the path are either averaged
with weights that fall with that loss, or the best is taken. Averaging keeps a lone client from overfitting its choice
of penalty. A weak "alone" would make all other methods seem to gain."""

import numpy as np

from coterie.comparison.exact.candidates.axes import Axes, Path, axes_of, penalties_of, weights_of
from coterie.comparison.exact.candidates.rows import Floats, Ints, chances, losses
from coterie.estimation.blocks import Block, blocks

ALONE_LINEAR = (1e-3, 0.03, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, np.inf)
ALONE_LOGISTIC = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, np.inf)
POOLED = (1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, np.inf)
_NEWTON_STEPS, _SOFTMAX_STEPS = 40, 100
_KEEP = 0.1  # softmax: when scores move by less, the curvature is kept


POOLED_PATH = Path(POOLED, per_row=True, average=False)


def _linear(axes: Axes, block: Block, y: Floats, path: Path, weight: Floats | None = None) -> Floats:
    """Coefficients with the intercept first (units, 1 + features); leave-one-out by PRESS, r / (1 − h)."""
    w = block.mask if weight is None else block.take(weight) * block.mask
    total = w.sum(1)
    target = block.take(y)
    mean = (target * w).sum(1) / total
    target = (target - mean[:, None]) * np.sqrt(w)
    shrink = 1 / (axes.power[..., None] + penalties_of(path, axes.count)[:, None])
    along = (axes.scores.transpose(0, 2, 1) @ target[..., None]) * shrink
    leverage = axes.scores**2 @ shrink + (w / total[:, None])[..., None]
    residual = (target[..., None] - axes.scores @ along) / np.maximum(1 - leverage, 1e-6) * block.mask[..., None]
    loss = (residual**2).sum(1) / axes.count[:, None]
    weight = weights_of(loss, axes.count, path, logarithm=True)
    slope = (axes.back @ (along @ weight[..., None]))[..., 0]
    return np.column_stack([mean - (slope * axes.mean).sum(1), slope])


def _logistic(axes: Axes, block: Block, y: Floats, path: Path) -> tuple[Floats, bool]:
    """The same as `_linear` for classes (units, 1 + features, outputs), by Newton steps for all units and penalties at once.

    Half a row of every class at the mean keeps each fit finite. With one output a step is Newton's. With one per class
    (softmax) every class has a curvature of its own: per row diag(p(1 − p)) ≤ W ≤ 2 diag(p(1 − p)) between classes, so
    that 1.5 times the diagonal steps to the same optimum, and a curvature that changes little is kept. The leave-one-out
    loss takes one step; there the diagonal counts q/(q − 1) times, which is exact for equally likely classes."""
    fit = _Classes(axes, block, y, path)
    beta, hessian = fit.start(), None
    far, value = np.inf, fit.value(beta)
    most = np.full(value.shape, 4.0)  # how far scores may move at once; less after a step that did not help
    for _ in range(_NEWTON_STEPS if fit.q == 1 else _SOFTMAX_STEPS):
        chance, middle = fit.chances(beta)
        if hessian is None or fit.q == 1 or far > _KEEP:
            hessian = fit.hessian(chance, middle, 1.0 if fit.q == 1 else 1.5)
        step: Floats = np.asarray(
            np.linalg.solve(hessian, fit.gradient(beta, chance, middle)[..., None])[..., 0], float
        )
        move = np.abs(fit.scores(step)).max((2, 3))
        tried = fit.centred(beta + step * np.minimum(1, most / np.maximum(move, 1e-12))[..., None, None])
        new = fit.value(tried)
        better = new <= value + 1e-9 * np.abs(value)
        beta, value = np.where(better[..., None, None], tried, beta), np.where(better, new, value)
        most = np.where(better, np.minimum(2 * most, 4.0), np.minimum(most, move) / 4)
        far = float(move.max())
        if far < 1e-6:
            break
    loss = fit.left_out(beta)
    weight = weights_of(loss, axes.count, path, logarithm=False)
    settled = bool((move[weight > 0.01] < 1e-4).all())  # of the penalties that count
    mixed = (weight[..., None, None] * beta).sum(1)  # (units, outputs, 1 + axes)
    slope = axes.back @ mixed[..., 1:].swapaxes(1, 2)
    level = mixed[..., 0] - (slope * axes.mean[..., None]).sum(1)
    return np.concatenate([level[:, None], slope], 1), settled


class _Classes:
    """The penalised likelihood of a block's units for every penalty; coefficients are (units, penalties, outputs, p)."""

    def __init__(self, axes: Axes, block: Block, y: Floats, path: Path) -> None:
        b, n, r = axes.scores.shape
        self.q, self.p, self.count = y.shape[1], r + 1, axes.count
        self.mask = block.mask[:, None, :, None]
        self.rows = np.concatenate([np.ones((b, n, 1)), axes.scores], 2)[:, None] * self.mask
        self.target = block.take(y)[:, None]  # (units, 1, rows, outputs)
        penalty = np.repeat(penalties_of(path, axes.count)[..., None], r, 2)
        self.penalty = np.concatenate([np.zeros((*penalty.shape[:2], 1)), penalty], 2)
        self.half = 0.5 * self.q if self.q > 1 else 1.0  # rows added at the mean

    def start(self) -> Floats:
        beta = np.zeros((*self.penalty.shape[:2], self.q, self.p))
        rate = (self.target.sum(2) + 0.5) / (self.count[:, None, None] + self.half)
        beta[..., 0] = np.log(rate) if self.q > 1 else np.log(rate / (1 - rate))
        return self.centred(beta)

    def centred(self, beta: Floats) -> Floats:
        """Remove the constant that all classes share: it changes no probability, and the penalties are lowest without it."""
        return beta - beta.mean(2, keepdims=True) if self.q > 1 else beta

    def scores(self, beta: Floats) -> Floats:
        """(units, penalties, rows, outputs)."""
        return np.asarray(self.rows @ beta.swapaxes(-1, -2))

    def chances(self, beta: Floats) -> tuple[Floats, Floats]:
        """The probabilities of every row, and those at the mean."""
        return chances(self.scores(beta)), chances(beta[..., 0])

    def value(self, beta: Floats) -> Floats:
        """The objective that is minimised (units, penalties)."""
        own = (losses(self.scores(beta), self.target) * self.mask[..., 0]).sum(2)
        added = 0.5 * sum(losses(beta[..., 0], one) for one in (np.eye(self.q) if self.q > 1 else (0.0, 1.0)))
        return np.asarray(own + added + 0.5 * (self.penalty[:, :, None] * beta**2).sum((2, 3)))

    def gradient(self, beta: Floats, chance: Floats, middle: Floats) -> Floats:
        slope = ((self.target - chance) * self.mask).swapaxes(-1, -2) @ self.rows
        slope[..., 0] += 0.5 - self.half * middle
        return np.asarray(slope - self.penalty[:, :, None] * beta)

    def hessian(self, chance: Floats, middle: Floats, factor: float) -> Floats:
        weight, at_mean = factor * chance * (1 - chance), factor * self.half * middle * (1 - middle)
        found = np.stack(
            [(self.rows * weight[..., c, None]).swapaxes(-1, -2) @ self.rows for c in range(self.q)], axis=2
        )
        diagonal = np.arange(self.p)
        found[..., diagonal, diagonal] += self.penalty[:, :, None] + 1e-9
        found[..., 0, 0] += at_mean
        return np.asarray(found)

    def left_out(self, beta: Floats) -> Floats:
        """The leave-one-out loss (units, penalties)."""
        factor = 1.0 if self.q == 1 else self.q / (self.q - 1)
        chance, middle = self.chances(beta)
        inverse = np.linalg.inv(self.hessian(chance, middle, factor))
        each = [((self.rows @ inverse[:, :, c]) * self.rows).sum(-1) for c in range(self.q)]
        leverage = np.stack(each, -1)
        hold = np.maximum(1 - factor * chance * (1 - chance) * leverage, 1e-3)
        eta = self.scores(beta) + leverage * (chance - self.target) / hold
        return np.asarray((losses(eta, self.target) * self.mask[..., 0]).sum(2) / self.count[:, None])


def fit_units(
    X: Floats, y: Floats, unit: Ints, n_units: int, path: Path, logistic: bool, weight: Floats | None = None
) -> tuple[Floats, bool]:
    """Coefficients (units, 1 + features, outputs) of every unit, and whether all of them converged.

    A unit without rows gets NaN, which the caller replaces."""
    coef = np.full((n_units, 1 + X.shape[1], y.shape[1]), np.nan)
    converged = True
    width = (1 + X.shape[1]) * (len(path.penalties) if logistic else 1)
    for block in blocks(unit, n_units, width):
        axes = axes_of(block, X, weight)
        if logistic:
            coef[block.units], settled = _logistic(axes, block, y, path)
            converged &= settled
        else:
            coef[block.units, :, 0] = _linear(axes, block, y[:, 0], path, weight)
    return coef, converged
