"""Rows of many clients, packed so that every client is solved in the same NumPy call.

Clients are sorted by size into blocks of similar size; within a block the rows are padded with zeros to a common
length. No block holds more than ``_LIMIT`` numbers, so memory stays bounded however uneven the clients are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coterie.estimation.conventions import Array, Ints

_LIMIT = 2_000_000  # numbers in one block: few enough for a cache


@dataclass(frozen=True)
class Block:
    """Units of similar size: ``rows[b, j]`` is the position of the j-th row of ``units[b]``, ``mask`` is 1 where real."""

    units: Ints
    rows: Ints
    mask: Array

    def take(self, values: Array) -> Array:
        """Values of the rows as (units, rows, …); padding becomes zero."""
        return np.asarray(values[self.rows] * self.mask.reshape(self.mask.shape + (1,) * (values.ndim - 1)))


def blocks(unit: Ints, n_units: int, width: int) -> Iterator[Block]:
    """Blocks of the units that have rows; lengths within a block differ by less than a factor of 1.5."""
    order = np.argsort(unit, kind="stable")
    count = np.bincount(unit, minlength=n_units)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    by_size = np.argsort(count, kind="stable")
    by_size = by_size[count[by_size] > 0]
    while len(by_size):
        small = count[by_size[0]]
        last = int(np.searchsorted(count[by_size], max(1.5 * small, small + 8), side="right"))
        length = int(count[by_size[last - 1]])
        last = max(1, min(last, _LIMIT // max(1, length * width)))
        units, by_size = by_size[:last], by_size[last:]
        length = int(count[units].max())
        offset = np.arange(length)
        mask = offset < count[units][:, None]
        yield Block(
            units, order[np.where(mask, start[units][:, None] + offset, start[units][:, None])], mask.astype(np.float64)
        )


def grams(Z: Array, y: Array, weight: Array | None, owner: Ints, n_clients: int) -> tuple[Array, Array]:
    """A_i = Zᵢᵀ w Zᵢ as (clients, p, p) and c_i = Zᵢᵀ y as (clients, p); y is given already weighted."""
    p = Z.shape[1]
    A, c = np.zeros((n_clients, p, p)), np.zeros((n_clients, p))
    for block in blocks(owner, n_clients, p):
        z = block.take(Z)
        turned = z.transpose(0, 2, 1)
        A[block.units] = turned @ (z if weight is None else z * block.take(weight)[..., None])
        c[block.units] = (turned @ block.take(y)[..., None])[..., 0]
    return A, c
