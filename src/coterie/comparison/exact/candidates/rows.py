"""Rows of many clients, packed so that every client is solved in the same NumPy call.

Clients are sorted by size into blocks of similar size; within a block the rows are padded with zeros to a common
length. No block holds more than ``_LIMIT`` numbers, so memory stays bounded however uneven the clients are."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LIMIT = 4_000_000


@dataclass(frozen=True)
class Block:
    """Units of similar size: ``rows[b, j]`` is the position of the j-th row of ``units[b]``, ``mask`` is 1 where real."""

    units: Ints
    rows: Ints
    mask: Floats

    def take(self, values: Floats) -> Floats:
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


@dataclass(frozen=True)
class Rows:
    """Standardised training rows of all clients. ``y`` is (rows, outputs): a scaled target, or 0/1 per class.

    One output serves regression and two classes (the probability of the second); with more classes there is one
    output per class (softmax)."""

    X: Floats
    y: Floats
    owner: Ints
    n_clients: int
    classification: bool

    @property
    def n_outputs(self) -> int:
        return int(self.y.shape[1])

    @cached_property
    def Z(self) -> Floats:
        """The features with a leading column of ones."""
        return np.hstack([np.ones((len(self.X), 1)), self.X])

    @cached_property
    def pooled(self) -> tuple[Floats, bool]:
        """One ridge model for all rows (1, 1 + features, outputs), and whether it converged."""
        from coterie.comparison.exact.candidates.path import POOLED_PATH, fit_units

        everybody = np.zeros(len(self.owner), np.int64)
        return fit_units(self.X, self.y, everybody, 1, POOLED_PATH, self.classification)

    def part(self, keep: npt.NDArray[np.bool_]) -> "Rows":
        return Rows(self.X[keep], self.y[keep], self.owner[keep], self.n_clients, self.classification)


def grams(Z: Floats, y: Floats, weight: Floats | None, owner: Ints, n_clients: int) -> tuple[Floats, Floats]:
    """A_i = Zᵢᵀ w Zᵢ as (clients, p, p) and c_i = Zᵢᵀ y as (clients, p); y is given already weighted."""
    p = Z.shape[1]
    A, c = np.zeros((n_clients, p, p)), np.zeros((n_clients, p))
    for block in blocks(owner, n_clients, p):
        z = block.take(Z)
        turned = z.transpose(0, 2, 1)
        A[block.units] = turned @ (z if weight is None else z * block.take(weight)[..., None])
        c[block.units] = (turned @ block.take(y)[..., None])[..., 0]
    return A, c


def chances(eta: Floats) -> Floats:
    """Probabilities of outputs on the last axis: the second of two classes, or every class."""
    return np.asarray(expit(eta) if eta.shape[-1] == 1 else softmax(eta, axis=-1))


def losses(eta: Floats, y: Floats | float) -> Floats:
    """Log loss of scores for 0/1 outputs, both (…, outputs)."""
    if eta.shape[-1] == 1:
        return np.asarray((np.logaddexp(0, eta) - y * eta)[..., 0])
    top = eta.max(-1)
    return np.asarray(top + np.log(np.exp(eta - top[..., None]).sum(-1)) - (y * eta).sum(-1))
