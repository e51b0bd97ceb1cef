"""Clipping, and rounding to a lattice of integers, so that the sensitivity of a sum can be computed exactly.

Sums of floating-point numbers depend on their order, and floating-point noise shows which sum it was added to. So each
user's clipped vector is rounded to multiples of g = clip·2^−bits; sums of integers are exact in any order and in any chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, numbers
from coterie.errors import ConfigError, DataError
from coterie.privacy.terms import Adjacency, Clip

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
ROOM = 2.0**62  # of the int64 range, so that no sum wraps around


def require_room(n_users: int, longest: float) -> None:
    """Refuse, before anything is added up, users whose sum may not fit into 64 bits. ``longest``: one user, in steps."""
    if not n_users * longest < ROOM:
        raise ConfigError(
            f"a sum of {n_users:,} users of up to {longest:.3g} steps may not fit into 64 bits; use fewer bits, a smaller "
            "weight or fewer users."
        )


def require_square(longest: float) -> None:
    """Refuse a user whose squared length, in steps, may not fit into 64 bits."""
    if not longest**2 < ROOM:
        raise ConfigError(
            f"one user must be shorter than 2^31 lattice steps, got {longest:.3g}; use fewer bits, or a smaller weight."
        )


def products(rows: Floats, matrix: Floats) -> Floats:
    """rows @ matrix, in which no row's numbers depend on the other rows, not even in the last bit."""
    total = np.zeros((len(rows), matrix.shape[1]))
    for column, weights in zip(rows.T, matrix, strict=True):
        total += column[:, None] * weights
    return total


@dataclass(frozen=True)
class Clipped:
    """Users' rows, each of norm at most the bound. The two counts are secrets: diagnostics of a simulation only."""

    rows: Floats
    n_clipped: int
    n_nonfinite: int


@guarded
def clip_rows(rows: Any, bound: float) -> Clipped:
    """L2 clipping of each row, the joint vector of everything one user sends.

    A row with NaN or infinity is replaced by zeros. Rows of any finite size are safe: norms are taken after scaling.
    To the last bit, a clipped row does not depend on the other rows nor on their number (norms by `np.einsum` do)."""
    x = np.array(numbers("rows", rows), ndmin=2, order="C")
    if x.ndim != 2:
        raise DataError(
            f"rows must be a matrix with one row per user, got shape {x.shape}; flatten each user's vector."
        )
    finite = np.isfinite(x).all(axis=1)
    x[~finite] = 0.0
    largest = np.abs(x).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    x /= scale[:, None]
    unit = np.sqrt(np.square(x).sum(axis=1))  # between 1 and √D, or 0
    with np.errstate(over="ignore"):
        over = scale * unit > bound
    shrink = np.where(over, bound / np.maximum(unit, 1.0) * (1 - 2.0**-40), scale)
    x *= shrink[:, None]
    return Clipped(x, int(over.sum()), int((~finite).sum()))


@guarded
@dataclass(frozen=True)
class Lattice:
    """Multiples of ``step`` = clip·2^−bits in ``dimension`` coordinates."""

    clip: Clip
    dimension: Count
    bits: Count = 20

    def __post_init__(self) -> None:
        if self.bits > 30:
            raise ConfigError(f"bits must be at most 30, got {self.bits}; squares of longer integers do not fit.")
        require_square(self.radius)

    @property
    def step(self) -> float:
        """g, the spacing."""
        return self.clip * 2.0**-self.bits

    @property
    def radius(self) -> float:
        """The largest norm of one rounded user, in steps: c/g + √D/2."""
        return 2.0**self.bits + math.sqrt(self.dimension) / 2

    @guarded
    def sensitivity(self, adjacency: Adjacency) -> float:
        """Δ of a sum of rounded users, in steps: the radius, or twice the radius when a user may be replaced."""
        return self.radius if adjacency == "zero-out" else 2 * self.radius

    def round(self, rows: Any) -> Integers:
        """Clip and round each user: int64, one row each, with a norm of at most ``radius`` (checked on the integers)."""
        clipped = clip_rows(rows, self.clip).rows
        if clipped.shape[1] != self.dimension:
            raise DataError(f"each user sends {self.dimension} numbers, got {clipped.shape[1]}; check the rows.")
        scaled = clipped / self.step
        whole_numbers = np.rint(scaled).astype(np.int64)
        norms = np.einsum("ij,ij->i", whole_numbers, whole_numbers)
        bad = norms > math.floor(self.radius**2 * (1 - 1e-15))
        if bad.any():  # towards zero, a rounded vector is never longer than the clipped one
            whole_numbers[bad] = np.trunc(scaled[bad]).astype(np.int64)
        return whole_numbers
