"""Clipping, and rounding to a lattice of integers, so that sensitivity is a fact about integers.

Sums of floating-point numbers depend on their order, and floating-point noise shows which sum it was added to. So each
user's clipped vector is rounded to multiples of g = clip·2^−bits; sums of integers are exact in any order and in any chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.arguments import refuse_masked
from coterie.errors import DataError
from coterie.privacy.checks import LEAST_CLIP, MOST_CLIP, choice, whole, within

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Clipped:
    """Users' rows, each of norm at most the bound. The two counts are secrets: diagnostics of a simulation only."""

    rows: Floats
    n_clipped: int
    n_nonfinite: int


def clip_rows(rows: Any, bound: float) -> Clipped:
    """L2 clipping of each row, the joint vector of everything one user sends.

    A row with NaN or infinity is replaced by zeros. Rows of any finite size are safe: norms are taken after scaling."""
    refuse_masked(rows=rows)
    x = np.array(rows, dtype=np.float64, ndmin=2)
    if x.ndim != 2:
        raise DataError(
            f"rows must be a matrix with one row per user, got shape {x.shape}; flatten each user's vector."
        )
    finite = np.isfinite(x).all(axis=1)
    x[~finite] = 0.0
    largest = np.abs(x).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    x /= scale[:, None]
    unit = np.sqrt(np.einsum("ij,ij->i", x, x))  # between 1 and √D, or 0
    with np.errstate(over="ignore"):
        over = scale * unit > bound
    shrink = np.where(over, bound / np.maximum(unit, 1.0) * (1 - 2.0**-40), scale)
    x *= shrink[:, None]
    return Clipped(x, int(over.sum()), int((~finite).sum()))


@dataclass(frozen=True)
class Lattice:
    """Multiples of ``step`` = clip·2^−bits in ``dimension`` coordinates."""

    clip: float
    dimension: int
    bits: int = 20

    def __post_init__(self) -> None:
        within(self.clip, "clip", LEAST_CLIP, MOST_CLIP)
        whole(self.dimension, "dimension")
        whole(self.bits, "bits")

    @property
    def step(self) -> float:
        """g, the spacing."""
        return self.clip * 2.0**-self.bits

    @property
    def radius(self) -> float:
        """The largest norm of one rounded user, in steps: c/g + √D/2."""
        return 2.0**self.bits + math.sqrt(self.dimension) / 2

    def sensitivity(self, adjacency: str) -> float:
        """Δ of a sum of rounded users, in steps: the radius, or twice the radius when a user may be replaced."""
        choice(adjacency, "adjacency", ("zero-out", "replace"))
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
