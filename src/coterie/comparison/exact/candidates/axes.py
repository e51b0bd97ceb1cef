"""Units (a client, a group, everybody) on their own principal axes, and paths of penalties along which they are solved."""

from dataclasses import dataclass

import numpy as np

from coterie.comparison.exact.candidates.rows import Floats
from coterie.estimation.blocks import Block


@dataclass(frozen=True)
class Path:
    """Which penalties are tried, whether they are multiplied by the unit's rows, and whether they are averaged."""

    penalties: tuple[float, ...]
    per_row: bool
    average: bool


@dataclass(frozen=True)
class Axes:
    """A block of units on their own principal axes: ``scores`` (units, rows, axes), their squared lengths ``power``."""

    mean: Floats
    back: Floats  # (units, features, axes): from axes to the units of the features
    scores: Floats
    power: Floats
    count: Floats


def axes_of(block: Block, X: Floats, weight: Floats | None = None) -> Axes:
    """With weights, rows count as the square root of theirs, around the weighted mean."""
    x, n = block.take(X), block.mask.sum(1)
    if weight is None:
        mean = x.sum(1) / n[:, None]
        x = (x - mean[:, None]) * block.mask[..., None]
    else:
        w = block.take(weight) * block.mask
        mean = (x * w[..., None]).sum(1) / w.sum(1)[:, None]
        x = (x - mean[:, None]) * np.sqrt(w)[..., None]
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
    return Axes(mean, turn * inverse[..., None], scores, np.maximum(power, 0), n)


def _safe_inverse(values: Floats, least: float) -> Floats:
    return np.where(values > least, 1 / np.maximum(values, least), 0.0)


def weights_of(loss: Floats, n: Floats, path: Path, logarithm: bool) -> Floats:
    """Weights (units, penalties) from leave-one-out losses; a unit with fewer than three rows keeps its mean."""
    log_loss = np.log(np.maximum(loss, 1e-20)) / 2 if logarithm else loss
    if path.average:
        score = -n[:, None] * log_loss
        weight = np.exp(score - score.max(1, keepdims=True))
    else:
        weight = np.eye(loss.shape[1])[loss.argmin(1)]
    weight = np.where(n[:, None] < 3, np.eye(loss.shape[1])[-1], weight)
    return np.asarray(weight / weight.sum(1, keepdims=True))


def penalties_of(path: Path, n: Floats) -> Floats:
    """(units, penalties); infinity becomes a number that leaves the mean alone in the model."""
    tried = np.where(np.isinf(path.penalties), 1e12, path.penalties)
    return np.asarray(tried * (n[:, None] if path.per_row else np.ones((len(n), 1))))
