"""What all Gaussian mechanisms share: whole numbers on a lattice, one sensitivity Δ, one σ, and a booking before the noise.

Each mechanism knows its ``event`` before it sees data. ``give_out`` books it and only then draws noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import regular
from coterie.errors import DataError
from coterie.privacy.events import Event
from coterie.privacy.mechanisms.lattice import Floats, Integers
from coterie.privacy.mechanisms.noise import ExactNoise, Noise
from coterie.privacy.taint import Booking, Released, foreign

Book = Callable[[Event], Booking]
_UNBOOKED = "unaccounted: the release {!r} was not booked in a ledger"
_SAMPLED = (
    "unaccounted: {!r} claims a secret sample of its users, and nothing shows that one was drawn; leave sampling at 1, or "
    "train with fit(cohort=…), which draws it"
)
_SIMULATED = "NOT A DP RELEASE: the noise of {!r} was a simulation"
_FOREIGN = "unaccounted: the noise of {!r} came from {}, which is not this package's; use ExactNoise()"
_OTHER = "unaccounted: the release {!r} was booked as another one"
_MECHANISM = "unaccounted: the mechanism of {!r}, {}, is not this package's, or a method was put into it"
_BOOK = "unaccounted: the release {!r} was not booked by a ledger's own method; pass book=ledger.book itself"
_ADDED = (
    "unaccounted: the sum of {!r} was added up by the caller, and nothing shows that every user was clipped; call the "
    "mechanism with all rows"
)
DRAWN_BY_THE_RUN = object()
"""The value that `fit` passes as `drawn`, since it draws cohorts itself and keeps them secret."""


def booked(mechanism: Any, book: Book | None, noise: Noise, *, drawn: object = None) -> tuple[Booking, tuple[str, ...]]:
    """Book the mechanism's event. If too little of the budget is left, the ledger raises here, before any noise is drawn.
    `drawn` is `DRAWN_BY_THE_RUN` where a run has drawn the sample that the event claims."""
    event: Event = mechanism.event(noise.name)
    reasons = [] if event.noise == "exact" else [_SIMULATED.format(event.name)]
    if foreign(mechanism):
        reasons.append(_MECHANISM.format(event.name, type(mechanism).__name__))
    if event.noise == "exact" and type(noise) is not ExactNoise:
        reasons.append(_FOREIGN.format(event.name, type(noise).__name__))
    if event.sampling < 1.0 and drawn is not DRAWN_BY_THE_RUN:
        reasons.append(_SAMPLED.format(event.name))
    booking = Booking(event) if book is None else book(event)
    if book is None:
        reasons.append(_UNBOOKED.format(event.name))
    elif not _of_a_ledger(book):
        reasons.append(_BOOK.format(event.name))  # one booking may be handed out many times
    elif booking.event != event:
        reasons.append(_OTHER.format(event.name))
    return booking, tuple(reasons)


def _of_a_ledger(book: Book) -> bool:
    """Whether this is the method `book` of a ledger or an account of this package."""
    owner: Any = getattr(book, "__self__", None)
    return not foreign(owner) and getattr(book, "__func__", None) is getattr(type(owner), "book", owner)


class Drawn(ExactNoise):
    """Noise that is in the sum already."""

    def gaussian(self, total: Any, sigma: float) -> Any:
        return total


class GaussianMechanism(ABC):
    """A mechanism gives the ``shape`` of its whole numbers, their ``step`` and their sensitivity with its derivation."""

    name: str
    noise_multiplier: float
    adjacency: str
    sampling: float = 1.0
    guarantee: str = "central"
    parts: int = 1  # so many add their share of the noise themselves, before the sum is known

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one release."""

    @property
    @abstractmethod
    def step(self) -> float:
        """The spacing of the lattice, in the units of the data."""

    @property
    @abstractmethod
    def lattice_sensitivity(self) -> float:
        """Δ of the integers."""

    @property
    @abstractmethod
    def derivation(self) -> str:
        """Where Δ comes from, for the receipt."""

    def __post_init__(self) -> None:
        _ = self.lattice_sensitivity  # a lattice checks its clip, dimension and bits

    @property
    def sensitivity(self) -> float:
        """Δ in the units of the data, with the rounding to the lattice."""
        return self.lattice_sensitivity * self.step

    @property
    def sigma(self) -> float:
        """The noise's standard deviation in the units of the data."""
        return self.noise_multiplier * self.sensitivity

    def event(self, noise: str = "exact") -> Event:
        """One release as the accountant sees it."""
        return Event(
            self.name,
            self.sensitivity,
            self.derivation,
            self.sigma,
            self.noise_multiplier,
            math.prod(self.shape),
            sampling=self.sampling,
            guarantee=self.guarantee,
            adjacency=self.adjacency,
            noise=noise,
            step=self.step,
            parts=self.parts,
        )

    def part(self, total: Integers, noise: Noise) -> Integers:
        """Whole numbers with one of the ``parts`` of the noise; σ² of all of them is at least that of the mechanism."""
        return noise.gaussian(total, self.sigma / self.step / math.sqrt(self.parts) * (1 + 2.0**-40))

    def drawn(self, total: Any) -> Any:
        """The noisy numbers from a sum whose parts hold the noise."""
        return self.noisy(total, Drawn())

    @guarded
    def release(self, total: Integers, noise: Noise, book: Book | None = None) -> Released[Any]:
        """Book, draw noise, and give out the noisy sum in the units of the data. The caller added it up, so no receipt
        covers it."""
        total = regular("total", total)
        if total.shape != self.shape:
            raise DataError(f"the sum must have shape {self.shape}, got {total.shape}; add up partial sums.")
        found = self.give_out(total, noise, book)
        return replace(found, taint=(*found.taint, _ADDED.format(self.name)))

    def give_out(self, total: Any, noise: Noise, book: Book | None, *, drawn: object = None) -> Released[Any]:
        """``release`` for sums that this package added up."""
        booking, taint = booked(self, book, noise, drawn=drawn)
        return Released(self.noisy(total, noise), (booking,), taint)

    def noisy(self, total: Any, noise: Noise) -> Any:
        """The noisy numbers, which are not booked here: for ``release`` and for audits (which ask for many at once)."""
        return self.noisy_steps(total, noise) * self.step

    def noisy_steps(self, total: Integers, noise: Noise) -> Floats:
        """The noisy numbers in steps of the lattice."""
        return noise.gaussian(total, self.sigma / self.step).astype(np.float64)
