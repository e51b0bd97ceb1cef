"""One Gaussian on everything the clients send: a joint sum, or joint counts and sums by group.

Each mechanism knows its ``event`` before it sees data. ``integers(rows)`` rounds users to the lattice, ``partial(rows)``
adds a chunk of them up, ``release(total, noise, book)`` books the event and only then draws the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from coterie.annotations import guarded
from coterie.arguments import numbers, refuse_masked, regular
from coterie.errors import DataError
from coterie.privacy.checks import ADJACENCIES, choice, positive, probability, whole
from coterie.privacy.events import Event
from coterie.privacy.mechanisms.lattice import Integers, Lattice, require_room, require_square
from coterie.privacy.mechanisms.noise import ExactNoise, Noise
from coterie.privacy.taint import Booking, Released

Book = Callable[[Event], Booking]
_UNBOOKED = "unaccounted: the release {!r} was not booked in a ledger"
_SAMPLED = (
    "unaccounted: {!r} claims a secret sample of its users, and nothing shows that one was drawn; leave sampling at 1, or "
    "train with fit(cohort=…), which draws it"
)
_SIMULATED = "NOT A DP RELEASE: the noise of {!r} was a simulation"
_FOREIGN = "unaccounted: the noise of {!r} came from {}, which is not this package's; use ExactNoise()"
_OTHER = "unaccounted: the release {!r} was booked as another one"
DRAWN_BY_THE_RUN = object()
"""The value that `fit` passes as `drawn`, since it draws cohorts itself and keeps them secret."""


def booked(event: Event, book: Book | None, noise: Noise, *, drawn: object = None) -> tuple[Booking, tuple[str, ...]]:
    """Book the event. If too little of the budget is left, the ledger raises here, before any noise is drawn. `drawn` is
    `DRAWN_BY_THE_RUN` where a run has drawn the sample that the event claims."""
    reasons = [] if event.noise == "exact" else [_SIMULATED.format(event.name)]
    if event.noise == "exact" and type(noise) is not ExactNoise:
        reasons.append(_FOREIGN.format(event.name, type(noise).__name__))
    if event.sampling < 1.0 and drawn is not DRAWN_BY_THE_RUN:
        reasons.append(_SAMPLED.format(event.name))
    booking = Booking(event) if book is None else book(event)
    if book is None:
        reasons.append(_UNBOOKED.format(event.name))
    elif booking.event != event:
        reasons.append(_OTHER.format(event.name))
    return booking, tuple(reasons)


@guarded
@dataclass(frozen=True)
class JointSum:
    """Σ over users of clip_c(row), with one Gaussian of σ = noise_multiplier·Δ; Δ is c, or 2c when a user is replaced."""

    name: str
    dimension: int
    clip: float
    noise_multiplier: float
    adjacency: str = "zero-out"
    sampling: float = 1.0
    guarantee: str = "central"
    bits: int = 20

    def __post_init__(self) -> None:
        positive(self.noise_multiplier, "noise_multiplier")
        choice(self.adjacency, "adjacency", ADJACENCIES)
        probability(self.sampling, "sampling", one=True)
        _ = self.lattice  # checks clip, dimension and bits

    @property
    def lattice(self) -> Lattice:
        """The lattice of the users' vectors."""
        return Lattice(self.clip, self.dimension, self.bits)

    @property
    def sensitivity(self) -> float:
        """Δ in the units of the data, with the rounding to the lattice."""
        return self.lattice.sensitivity(self.adjacency) * self.lattice.step

    @property
    def sigma(self) -> float:
        """The noise's standard deviation in the units of the data."""
        return self.noise_multiplier * self.sensitivity

    def event(self, noise: str = "exact") -> Event:
        """What the release will cost."""
        factor = "" if self.adjacency == "zero-out" else "2·"
        how = (
            f"{factor}(c + g·√D/2), c = {self.clip:g} the L2 clip of the joint vector, "
            f"g = c·2^-{self.bits}, D = {self.dimension}"
        )
        return Event(
            self.name,
            self.sensitivity,
            how,
            self.sigma,
            self.noise_multiplier,
            self.dimension,
            sampling=self.sampling,
            guarantee=self.guarantee,
            adjacency=self.adjacency,
            noise=noise,
            step=self.lattice.step,
        )

    def integers(self, rows: Any) -> Integers:
        """Each user's clipped vector on the lattice, (n, D) int64."""
        return self.lattice.round(rows)

    def partial(self, rows: Any) -> Integers:
        """The exact sum of a chunk of users; chunks add up in any order."""
        whole_numbers = self.integers(rows)
        self.require_room(len(whole_numbers))
        return np.asarray(whole_numbers.sum(axis=0, dtype=np.int64))

    def require_room(self, n_users: int) -> None:
        """Refuse a number of users whose sum may not fit into 64 bits."""
        require_room(n_users, self.lattice.radius)

    @guarded
    def release(
        self, total: Integers, noise: Noise, book: Book | None = None, *, drawn: object = None
    ) -> Released[NDArray[np.float64]]:
        """Book, draw noise, and give out the noisy sum in the units of the data."""
        total = regular("total", total)
        if total.shape != (self.dimension,):
            raise DataError(f"the sum must have shape ({self.dimension},), got {total.shape}; add up partial sums.")
        booking, taint = booked(self.event(noise.name), book, noise, drawn=drawn)
        return Released(self.noisy(total, noise), (booking,), taint)

    def noisy(self, total: Integers, noise: Noise) -> NDArray[np.float64]:
        """The noisy sum, which is not booked here: for ``release`` and for audits (which ask for many at once)."""
        return noise.gaussian(total, self.sigma / self.lattice.step).astype(np.float64) * self.lattice.step

    @guarded
    def __call__(self, rows: Any, noise: Noise, book: Book | None = None) -> Released[NDArray[np.float64]]:
        """All users at once."""
        return self.release(self.partial(rows), noise, book)


@guarded
@dataclass(frozen=True)
class GroupSums:
    """Counts and sums by group in one Gaussian: [w·counts ; sums of clip_c(row)], each user in one group.

    Δ = √(c² + w²) for zero-out. A replaced user stays in its group (2c) or moves (√2·√(c² + w²)). A user with label −1, or
    with a row that is not finite, contributes nothing at all."""

    name: str
    n_groups: int
    dimension: int
    clip: float
    noise_multiplier: float
    count_weight: float = 1.0
    adjacency: str = "zero-out"
    sampling: float = 1.0
    bits: int = 20

    def __post_init__(self) -> None:
        whole(self.n_groups, "n_groups")
        positive(self.count_weight, "count_weight")
        positive(self.noise_multiplier, "noise_multiplier")
        choice(self.adjacency, "adjacency", ADJACENCIES)
        probability(self.sampling, "sampling", one=True)
        if not math.isfinite(self.count_weight / self.lattice.step):
            raise DataError(f"count_weight = {self.count_weight:g} is too large for the clip {self.clip:g}; lower it.")
        require_square(math.hypot(self.lattice.radius, self.weight))

    def require_room(self, n_users: int) -> None:
        """Refuse a number of users whose counts and sums may not fit into 64 bits."""
        require_room(n_users, math.hypot(self.lattice.radius, self.weight))

    @property
    def lattice(self) -> Lattice:
        """The lattice of one user's row; the weight of a count is a whole number of its steps."""
        return Lattice(self.clip, self.dimension, self.bits)

    @property
    def weight(self) -> int:
        """The count's weight in steps of the lattice."""
        return max(1, round(self.count_weight / self.lattice.step))

    @property
    def lattice_sensitivity(self) -> float:
        """Δ of the integers."""
        one = math.hypot(self.lattice.radius, self.weight)
        return one if self.adjacency == "zero-out" else max(2 * self.lattice.radius, math.sqrt(2) * one)

    @property
    def sensitivity(self) -> float:
        """Δ in the units of the data."""
        return self.lattice_sensitivity * self.lattice.step

    @property
    def sigma(self) -> float:
        """The noise of every sum; a count, which is divided by its weight, has σ/w."""
        return self.noise_multiplier * self.sensitivity

    def event(self, noise: str = "exact") -> Event:
        """What the release will cost."""
        how = "√(c²+w²)" if self.adjacency == "zero-out" else "max(2c, √2·√(c²+w²))"
        return Event(
            self.name,
            self.sensitivity,
            f"{how}, c = {self.clip:g} plus g·√d/2, w = {self.count_weight:g}, g = c·2^-{self.bits}, d = {self.dimension}",
            self.sigma,
            self.noise_multiplier,
            self.n_groups * (self.dimension + 1),
            sampling=self.sampling,
            adjacency=self.adjacency,
            noise=noise,
            step=self.lattice.step,
        )

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

    @guarded
    def release(
        self, total: Integers, noise: Noise, book: Book | None = None, *, drawn: object = None
    ) -> Released[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Book, draw noise, and give out (noisy counts, noisy sums)."""
        total = regular("total", total)
        if total.shape != (self.n_groups, 1 + self.dimension):
            raise DataError(f"the total must have shape {(self.n_groups, 1 + self.dimension)}, got {total.shape}.")
        booking, taint = booked(self.event(noise.name), book, noise, drawn=drawn)
        return Released(self.noisy(total, noise), (booking,), taint)

    def noisy(self, total: Integers, noise: Noise) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The noisy (counts, sums), not booked here: for ``release`` and for audits (which ask for many at once)."""
        noisy = noise.gaussian(total, self.sigma / self.lattice.step).astype(np.float64)
        return noisy[..., 0] / self.weight, noisy[..., 1:] * self.lattice.step

    @guarded
    def __call__(
        self, rows: Any, labels: Any, noise: Noise, book: Book | None = None
    ) -> Released[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """All users at once."""
        return self.release(self.partial(rows, labels), noise, book)
