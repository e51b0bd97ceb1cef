"""One Gaussian on everything the clients send: a joint sum, or joint counts and sums by group.

``integers(rows)`` rounds users to the lattice, and ``partial(rows)`` adds a chunk of them up; chunks add up in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Part, Positive, numbers, refuse_masked, regular
from coterie.errors import DataError
from coterie.privacy.mechanisms.gaussian import Book, GaussianMechanism
from coterie.privacy.mechanisms.lattice import Floats, Integers, Lattice, require_room, require_square
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.taint import Released
from coterie.privacy.terms import Adjacency, Clip, Guarantee


class ClippedSum(GaussianMechanism):
    """A sum of vectors that are clipped and rounded to one lattice."""

    clip: float
    dimension: int
    bits: int

    @property
    def lattice(self) -> Lattice:
        """The lattice of one user's vector."""
        return Lattice(self.clip, self.dimension, self.bits)

    @property
    def step(self) -> float:
        return self.lattice.step

    @property
    def longest(self) -> float:
        """The largest norm of everything one user sends, in steps."""
        return self.lattice.radius

    def require_room(self, n_users: int) -> None:
        """Refuse a number of users whose sum may not fit into 64 bits."""
        require_room(n_users, self.longest)


@guarded
@dataclass(frozen=True)
class JointSum(ClippedSum):
    """Σ over users of clip_c(row), with one Gaussian of σ = noise_multiplier·Δ; Δ is c, or 2c when a user is replaced."""

    name: str
    dimension: Count
    clip: Clip
    noise_multiplier: Positive
    adjacency: Adjacency = "zero-out"
    sampling: Part = 1.0
    guarantee: Guarantee = "central"
    bits: Count = 20
    parts: Count = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dimension,)

    @property
    def lattice_sensitivity(self) -> float:
        return self.lattice.sensitivity(self.adjacency)

    @property
    def derivation(self) -> str:
        factor = "" if self.adjacency == "zero-out" else "2·"
        return (
            f"{factor}(c + g·√D/2), c = {self.clip:g} the L2 clip of the joint vector, "
            f"g = c·2^-{self.bits}, D = {self.dimension}"
        )

    def integers(self, rows: Any) -> Integers:
        """Each user's clipped vector on the lattice, (n, D) int64."""
        return self.lattice.round(rows)

    def partial(self, rows: Any) -> Integers:
        """The exact sum of a chunk of users."""
        whole_numbers = self.integers(rows)
        self.require_room(len(whole_numbers))
        return np.asarray(whole_numbers.sum(axis=0, dtype=np.int64))

    @guarded
    def __call__(self, rows: Any, noise: Noise, book: Book | None = None) -> Released[Floats]:
        """All users at once."""
        return self.give_out(self.partial(rows), noise, book)


@guarded
@dataclass(frozen=True)
class GroupSums(ClippedSum):
    """Counts and sums by group in one Gaussian: [w·counts ; sums of clip_c(row)], each user in one group.

    Δ = √(c² + w²) for zero-out. A replaced user stays in its group (2c) or moves (√2·√(c² + w²)). A user with label −1, or
    with a row that is not finite, contributes nothing at all. A release is (noisy counts, noisy sums); the noise of every
    sum has deviation σ, and a count, which is divided by its weight, σ/w."""

    name: str
    n_groups: Count
    dimension: Count
    clip: Clip
    noise_multiplier: Positive
    count_weight: Positive = 1.0
    adjacency: Adjacency = "zero-out"
    sampling: Part = 1.0
    bits: Count = 20
    parts: Count = 1

    def __post_init__(self) -> None:
        if not math.isfinite(self.count_weight / self.step):
            raise DataError(f"count_weight = {self.count_weight:g} is too large for the clip {self.clip:g}; lower it.")
        require_square(self.longest)

    @property
    def weight(self) -> int:
        """The count's weight in steps of the lattice."""
        return max(1, round(self.count_weight / self.step))

    @property
    def longest(self) -> float:
        return math.hypot(self.lattice.radius, self.weight)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_groups, 1 + self.dimension)

    @property
    def lattice_sensitivity(self) -> float:
        zero_out = self.adjacency == "zero-out"
        return self.longest if zero_out else max(2 * self.lattice.radius, math.sqrt(2) * self.longest)

    @property
    def derivation(self) -> str:
        how = "√(c²+w²)" if self.adjacency == "zero-out" else "max(2c, √2·√(c²+w²))"
        return f"{how}, c = {self.clip:g} plus g·√d/2, w = {self.count_weight:g}, g = c·2^-{self.bits}, d = {self.dimension}"

    def partial(self, rows: Any, labels: Any) -> Integers:
        """The exact integers [w·counts | sums] of a chunk of users, shape (n_groups, 1 + dimension)."""
        refuse_masked(labels=labels)
        rows = np.array(numbers("rows", rows), ndmin=2)
        labels = regular("labels", labels)
        if rows.shape[1:] != (self.dimension,):
            raise DataError(f"rows must have {self.dimension} numbers per user, got shape {rows.shape}; check them.")
        if labels.shape != (len(rows),) or labels.dtype.kind not in "iu":
            raise DataError("labels must hold one whole number per user; got another shape or type.")
        if len(labels) and (labels.min() < -1 or labels.max() >= self.n_groups):
            raise DataError(f"labels must lie in −1 … {self.n_groups - 1}; got {labels.min()} … {labels.max()}.")
        kept = (labels >= 0) & np.isfinite(rows).all(axis=1)
        whole_numbers = self.lattice.round(rows[kept]) if kept.any() else np.zeros((0, self.dimension), np.int64)
        return self.add_up(whole_numbers, labels[kept])

    def add_up(self, whole_numbers: NDArray[Any], labels: Any) -> Integers:
        """``partial`` of users that ``lattice.round`` has rounded already, for rounds in which rows stay and labels change.

        Whole numbers of 32 bits will do: a rounded user is not longer than 2^bits + √D/2."""
        n = len(whole_numbers)
        self.require_room(n)
        member = csr_array((np.ones(n, np.int64), (labels, np.arange(n))), shape=(self.n_groups, n))
        counts = np.bincount(labels, minlength=self.n_groups).astype(np.int64) * self.weight
        return np.concatenate([counts[:, None], np.asarray(member @ whole_numbers, dtype=np.int64)], axis=1)

    def noisy(self, total: Integers, noise: Noise) -> tuple[Floats, Floats]:
        noisy = self.noisy_steps(total, noise)
        return noisy[..., 0] / self.weight, noisy[..., 1:] * self.step

    @guarded
    def __call__(
        self, rows: Any, labels: Any, noise: Noise, book: Book | None = None
    ) -> Released[tuple[Floats, Floats]]:
        """All users at once."""
        return self.give_out(self.partial(rows, labels), noise, book)
