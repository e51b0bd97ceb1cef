"""The questions of a study, and how a client answers them from its own rows.

    counts     the number of rows, and the sums of columns and target          below `least` rows: nothing
    moments    Σ (1, x, y)(1, x, y)ᵀ about an agreed centre, per repeat and fold
    forms      classes: loss, gradient and curvature of given models on the training rows of given folds
    scores     per method: mean losses, their within-client products, and sums per fold

A client deals its folds by its own random stream, so that they do not depend on the other clients. Each fold has `least`
rows or more; a client with few rows has fewer folds. What is fitted on a client's rows alone stays there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.tree import Tree
from coterie.comparison.exact.candidates.axes import Path
from coterie.comparison.exact.candidates.path import ALONE_LINEAR, ALONE_LOGISTIC, fit_units
from coterie.comparison.exact.candidates.rows import Floats, Ints, chances, losses
from coterie.comparison.exact.folds import deal
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.exchange.messages import Context, Up

INNER = 3  # parts of a training set, on which penalties of classes and the number of groups are chosen
WEIGHT = 0.01  # the least weight of a row in the curvature, as of all exact fits


@dataclass(frozen=True)
class Study:
    """What all clients know before the first question. `least`: clients send no sum of fewer rows; None: two more than there
    are columns, so that a sum of squares has more rows than columns."""

    classification: bool
    metric: str
    seed: int = 0
    least: int | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(METRICS["classification" if self.classification else "regression"])

    def fewest(self, columns: int) -> int:
        return max(5, columns + 2) if self.least is None else self.least

    def client(self, ctx: Context) -> Tree:
        """Clients keep nothing between questions."""
        return {}

    # ---- what a client tells ---------------------------------------------------------------------------------------

    def counts(self, ctx: Context) -> Up:
        """The number of rows and the sums of columns and target; a client with too few rows tells zeros."""
        X, y = _rows(ctx)
        enough = len(y) >= self.fewest(X.shape[1])
        sums = np.append(X.sum(0), y.sum()) if enough else np.zeros(X.shape[1] + 1)
        return _up(count=np.array(len(y) * enough, np.float64), sums=sums)

    def moments(self, ctx: Context, centre: Tensor, shape: Tensor) -> Up:
        """Upper halves of Σ (1, x, y)(1, x, y)ᵀ about the centre (repeats, folds, …)."""
        X, y = _rows(ctx)
        repeats, folds = map(int, shape)
        fold = self._folds(ctx, repeats, folds)
        V = np.column_stack([np.ones(len(y)), X - _array(centre)[:-1], y - float(centre[-1])])
        found = np.zeros((repeats, folds, V.shape[1], V.shape[1]))
        for r, k in np.ndindex(repeats, folds) if len(y) >= self.fewest(X.shape[1]) else ():
            part = V[fold[r] == k]
            found[r, k] = part.T @ part
        return _up(moments=halves(found))

    def forms(
        self, ctx: Context, centre: Tensor, shape: Tensor, fit: Tensor, inner: Tensor, models: Tensor, parted: Tensor
    ) -> Up:
        """Loss, gradient and curvature of `models` (given, 1 + columns) on the training rows of `fit`, and gradient and
        curvature of `parted` on each of three parts of the training rows of `inner`."""
        X, y = _rows(ctx)
        repeats, folds = map(int, shape)
        fold = self._folds(ctx, repeats, folds)
        Z = np.column_stack([np.ones(len(y)), X - _array(centre)[:-1]])
        p, usable = Z.shape[1], len(y) >= self.fewest(X.shape[1])
        value, slope, curve = np.zeros(len(fit)), np.zeros((len(fit), p)), np.zeros((len(fit), p, p))
        for a, f in enumerate(fit.tolist() if usable else ()):
            keep = fold[_repeat(f, folds, repeats)] != f % folds if f < repeats * folds else np.ones(len(y), bool)
            value[a], slope[a], curve[a] = _form(Z[keep], y[keep], _array(models[a]))
        slopes, curves = np.zeros((len(inner), INNER, p)), np.zeros((len(inner), INNER, p, p))
        for a, f in enumerate(inner.tolist() if usable else ()):
            here = fold[_repeat(f, folds, repeats)]
            out = f % folds if f < repeats * folds else None
            part = inner_parts(np.bincount(here, minlength=folds) > 0, out)[here]
            for j in range(INNER):
                _, slopes[a, j], curves[a, j] = _form(Z[part == j], y[part == j], _array(parted[a]))
        return _up(value=value, slope=slope, curve=halves(curve), slopes=slopes, curves=halves(curves))

    def scores(
        self, ctx: Context, centre: Tensor, shape: Tensor, common: Tensor,
        shared: Tensor, shrunk: Tensor, groups: Tensor, spread: Tensor,
    ) -> Up:  # fmt: skip
        """What the rule needs of this client's losses on rows that the models did not see. `shared` are the constant and
        the model for all per fit, `shrunk` and `groups` this client's models, `spread` the covariance of `shrunk`."""
        cover = squares(_array(spread), ctx.x.shape[1] + 1) if spread.numel() else None
        given = [_array(shared)[:, 0], None, _array(shared)[:, 1], _array(shrunk), _array(groups)]
        return _up(**self._judged(ctx, centre, shape, int(common), given, cover))

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _judged(
        self, ctx: Context, centre: Tensor, shape: Tensor, common: int, given: list[Floats | None],
        cover: Floats | None = None,
    ) -> dict[str, Floats]:  # fmt: skip
        """Losses of the models per fit (None: those of this client's rows alone); the fourth may have a covariance."""
        X, y = _rows(ctx)
        repeats, folds = map(int, shape)
        fold = self._folds(ctx, repeats, folds)
        Z = np.column_stack([np.ones(len(y)), X - _array(centre)[:-1]])
        target = y - float(centre[-1])
        eta = np.zeros((repeats, len(given), len(y)))
        for r in range(repeats):
            own = self._alone(Z[:, 1:], y if self.classification else target, fold[r], folds)
            for k in np.unique(fold[r]):
                at, f = fold[r] == k, r * folds + k
                eta[r][:, at] = np.stack([(own[k] if g is None else g[f]) @ Z[at].T for g in given])
                if cover is not None:
                    variance = np.einsum("np,pq,nq->n", Z[at], cover[f], Z[at])
                    eta[r, 3, at] /= np.sqrt(1 + np.pi / 8 * np.maximum(variance, 0))
        return self._told(eta, y if self.classification else target, fold, folds, common)

    def _folds(self, ctx: Context, repeats: int, folds: int) -> Ints:
        """The fold of every row (repeats, rows). A client with few rows uses only some of the folds."""
        n, label = len(ctx.y), ctx.y.numpy() if self.metric == "auc" else None
        cells = max(min(folds, n // self.fewest(ctx.x.shape[1])), 1)
        found = np.empty((repeats, n), np.int64)
        for r in range(repeats):
            own = np.random.default_rng([self.seed, 1, r, int(ctx.key) & (2**63 - 1)])
            first = own.integers(folds)
            dealt = deal(np.zeros(n, np.int64), 1, cells, own, label)
            found[r] = (first + dealt * folds // cells) % folds
        return found

    def _alone(self, X: Floats, y: Floats, fold: Ints, folds: int) -> Floats:
        """Coefficients (folds, 1 + columns) of this client's own models, each without one fold."""
        without = [np.flatnonzero(fold != k) for k in range(folds)]
        rows, unit = np.concatenate(without), np.repeat(np.arange(folds), [len(w) for w in without])
        path = Path(ALONE_LOGISTIC if self.classification else ALONE_LINEAR, per_row=False, average=True)
        found, _ = fit_units(X[rows], y[rows, None], unit, folds, path, self.classification)
        return np.asarray(found[..., 0])

    def own_model(self, X: Floats, y: Floats, centre: Floats) -> Floats:
        """The model of all rows of a client about the centre, which stays with it."""
        y = y if self.classification else y - centre[-1]
        return np.asarray(self._alone(X - centre[:-1], y, np.ones(len(y), np.int64), 1)[0])

    def _told(self, eta: Floats, y: Floats, fold: Ints, folds: int, common: int) -> dict[str, Floats]:
        here = _Here(y, self.classification)
        found: dict[str, Floats] = {}
        usable = len(np.unique(fold[0])) > 1
        for metric in self.metrics:
            rows = np.zeros(eta.shape)
            if usable:
                rows = np.stack([[here.losses(metric, e, f) for e in of] for of, f in zip(eta, fold, strict=True)])
            if metric == "accuracy":
                rows[:, 0] = y != common
            known = bool(usable and np.isfinite(rows).all())
            rows = rows if known else np.zeros_like(rows)
            each = np.concatenate([rows.mean(0)[None], rows])  # (parts, methods, rows)
            mean = each.mean(2)
            apart = each - mean[..., None]
            sums = np.zeros((len(rows), folds, eta.shape[1]))
            for r in range(len(rows)):
                np.add.at(sums[r], fold[r], rows[r].T)
            found |= {
                f"{metric} known": np.array(float(known)), f"{metric} mean": mean,
                f"{metric} products": apart @ apart.swapaxes(1, 2), f"{metric} folds": sums,
            }  # fmt: skip
        return found


class _Here:
    """One client's rows in the form that metrics take."""

    def __init__(self, y: Floats, classes: bool) -> None:
        self.y, self.classes, self.owner, self.n_clients = y, classes, np.zeros(len(y), np.int64), 1
        self.n_classes, self.sizes = 2 if classes else 0, np.array([len(y)])

    def losses(self, metric: str, eta: Floats, fold: Ints) -> Floats:
        """The loss of every row; a squared error in the target's own units."""
        if metric == "mse":
            return np.asarray((self.y - eta) ** 2)
        made = eta[:, None]
        if self.classes:
            made = np.column_stack([1 - chances(made), chances(made)])
        loss = METRICS["classification" if self.classes else "regression"][metric]
        return loss(self, Predictions(made, fold))  # type: ignore[arg-type]


def _form(Z: Floats, y: Floats, beta: Floats) -> tuple[float, Floats, Floats]:
    """Loss, −gradient and curvature of a logistic model."""
    eta = Z @ beta
    chance = chances(eta[:, None])[:, 0]
    weight = np.maximum(chance * (1 - chance), WEIGHT)
    return float(losses(eta[:, None], y[:, None]).sum()), Z.T @ (y - chance), (Z * weight[:, None]).T @ Z


def _repeat(fit: int, folds: int, repeats: int) -> int:
    """The repeat whose folds a fit uses; the fit to all rows, the last, uses those of the first."""
    return fit // folds if fit < repeats * folds else 0


def inner_parts(used: Any, out: int | None) -> Ints:
    """The part (0, 1, 2) of a training set that each fold of a client belongs to; −1 for folds without rows and the one that
    is left out."""
    order = np.array([k for k in np.flatnonzero(used) if k != out], np.int64)
    part = np.full(len(used), -1)
    part[order] = (np.arange(len(order)) + order[:1].sum()) % INNER
    return part


def halves(full: Floats) -> Floats:
    """The upper halves of symmetric matrices (…, p, p)."""
    i, j = np.triu_indices(full.shape[-1])
    return np.asarray(full[..., i, j])


def squares(half: Floats, p: int) -> Floats:
    """The symmetric matrices of these upper halves."""
    i, j = np.triu_indices(p)
    full = np.zeros((*half.shape[:-1], p, p))
    full[..., i, j] = half
    full[..., j, i] = half
    return full


def _rows(ctx: Context) -> tuple[Floats, Floats]:
    return ctx.x.double().numpy(), ctx.y.double().numpy()


def _array(values: Tensor) -> Floats:
    return values.double().numpy()


def _up(**send: Any) -> Up:
    return Up({name: torch.from_numpy(np.asarray(value, np.float64)) for name, value in send.items()})
