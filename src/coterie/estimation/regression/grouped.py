"""Rows with a client column, sorted by client, and given out in padded blocks of clients of like size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.arguments import finite, refuse_masked, regular
from coterie.errors import DataError
from coterie.estimation.blocks import blocks
from coterie.estimation.conventions import Array, Ints, labels


@dataclass(frozen=True)
class Grouped:
    """Rows (N, d) sorted by client; client i owns rows starts[i] .. starts[i] + counts[i]."""

    X: Array
    y: Array
    clients: NDArray[Any]
    starts: Ints
    counts: Ints
    weight: Array | None = None  # how often each row counts
    told: Ints | None = None  # the number of each client's rows, of which these are the triangular root (`root_of`)

    @property
    def seen(self) -> Ints:
        """The number of rows of each client."""
        return self.counts if self.told is None else self.told

    @property
    def n_rows(self) -> int:
        return int(self.seen.sum())

    @property
    def width(self) -> int:
        return int(self.X.shape[1])

    @property
    def owner(self) -> Ints:
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def sizes(self) -> Array:
        """The root mean square of every column; 1 for a column of zeros."""
        told = self.told is not None
        size = np.sqrt(np.square(self.X).sum(0) / self.n_rows if told else self._mean_square())
        return np.where(size > 0, size, 1.0)

    def _mean_square(self) -> Array:
        return np.asarray(np.average(np.square(self.X), axis=0, weights=self.weight))

    def sums(self, rows: Array) -> Array:
        """Sum the rows of each client."""
        return np.add.reduceat(rows, self.starts, axis=0)

    def blocks(self) -> Iterator[tuple[Ints, Array, Array, Array]]:
        """(clients, X (c, n, d), y (c, n, …), weight (c, n)), zero-padded; clients of like size share a block."""
        for block in blocks(self.owner, len(self.counts), self.X.shape[1]):
            weight = block.mask if self.weight is None else block.take(self.weight)
            yield block.units, block.take(self.X), block.take(self.y), weight


def root_of(X: Array, y: Array, intercept: bool) -> Array:
    """The triangular root R (p + 1, p + 1) of the sums of squares and products of a client's rows V = [X, 1, y]: VᵀV = RᵀR.
    A linear model needs no more of them."""
    V = np.column_stack([X, np.ones(len(X)), y] if intercept else [X, y])
    found = np.zeros((V.shape[1], V.shape[1]))
    R = np.linalg.qr(V, mode="r")
    found[: len(R)] = R
    return found


def of_roots(roots: Array, counts: Ints, clients: NDArray[Any]) -> Grouped:
    """Rows with the sums of clients that told them."""
    m, width = roots.shape[:2]
    flat, each = roots.reshape(m * width, width), np.full(m, width)
    return Grouped(flat[:, :-1], flat[:, -1], clients, np.arange(m) * width, each, None, counts)


def group_rows(
    X: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    intercept: bool = False,
    weight: Array | None = None,
    scale: bool = True,
) -> Grouped:
    """Sort the rows by client, with a constant column added last if asked for. Rows of weight 0 are left out.

    A row of weight w has noise of variance σ²/w: `scale` multiplies it by √w. Otherwise it is as if seen w times."""
    refuse_masked(groups=groups)
    rows, target, owner = finite("X", X), finite("y", y), regular("groups", groups)
    if rows.ndim != 2 or target.ndim != 1 or owner.ndim != 1 or not len(rows) == len(target) == len(owner):
        raise DataError(
            "X (N, d), y (N,) and groups (N,) must have one row each per observation; "
            f"got shapes {rows.shape}, {target.shape} and {owner.shape}. Make the lengths equal."
        )
    if len(rows) == 0:
        raise DataError("X must have at least one row; got none. Pass the rows of every client.")
    rows = np.hstack([rows, np.ones((len(rows), 1))]) if intercept else rows
    weight = np.ones(len(rows)) if weight is None else weight
    if (weight != 1).any():
        keep = weight > 0
        rows, target, owner, weight = rows[keep], target[keep], owner[keep], weight[keep]
        if scale:
            rows, target = rows * np.sqrt(weight)[:, None], target * np.sqrt(weight)
    clients, inverse, counts = np.unique(labels(owner), return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    weight = np.ones(len(rows)) if scale else weight
    return Grouped(rows[order], target[order], clients, starts, counts.astype(np.int64), weight[order])


def two_labels(values: NDArray[Any]) -> tuple[NDArray[Any], Array]:
    """The two classes, and which rows are of the second one (1, else 0)."""
    if values.dtype.kind == "f" and (values % 1).any():
        raise DataError("Unknown label type: continuous. y must hold two labels, not numbers with fractions.")
    classes, second = np.unique(values, return_inverse=True)
    if len(classes) != 2:
        what = "Only binary classification is supported. " if len(classes) > 2 else ""
        raise DataError(
            f"{what}y must hold exactly two labels; got {len(classes)} class(es): {classes[:5].tolist()}. "
            "Keep two of them, or join labels."
        )
    return classes, second.ravel().astype(np.float64)


def find(clients: NDArray[Any], groups: ArrayLike) -> Ints:
    """The index of each row's client in `clients`, or −1 for a client never seen."""
    wanted = labels(groups)
    if (wanted.dtype.kind in "US") != (clients.dtype.kind in "US"):
        raise DataError(f"groups must be of the type used in fit, {clients.dtype}; got {wanted.dtype}. Convert them.")
    place = np.minimum(np.searchsorted(clients, wanted), len(clients) - 1)
    return np.where(clients[place] == wanted, place, -1)
