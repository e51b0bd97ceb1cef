"""A private quantile, for the clipping bound: a binary search on noisy counts, all of them Gaussian.

Each step asks how many users lie at or below a public threshold. Zeroing out or replacing one user changes that count by at
most 1, so Δ = 1 under both. The target is a fraction of the public number of users, never of a secret count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.annotations import guarded
from coterie.arguments import numbers
from coterie.errors import ConfigError, DataError
from coterie.privacy.checks import ADJACENCIES, choice, positive, probability, whole
from coterie.privacy.events import Event
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.mechanisms.sums import Book, booked
from coterie.privacy.taint import Released, combine, public

_STEP = 2.0**-20  # counts are scaled up, so that the discrete Gaussian is as good as a continuous one


@guarded
@dataclass(frozen=True)
class Quantile:
    """The ``level`` quantile of one number per user between the public bounds ``low`` < ``high``, on a log scale.

    ``steps`` releases with noise σ = noise_multiplier each halve the range ``steps`` times."""

    name: str
    level: float
    low: float
    high: float
    noise_multiplier: float
    n_users: int
    steps: int = 8
    adjacency: str = "zero-out"

    def __post_init__(self) -> None:
        probability(self.level, "level")
        positive(self.low, "low")
        positive(self.high, "high")
        positive(self.noise_multiplier, "noise_multiplier")
        whole(self.n_users, "n_users")
        whole(self.steps, "steps")
        choice(self.adjacency, "adjacency", ADJACENCIES)
        if self.low >= self.high:
            raise ConfigError(f"low must be below high, got {self.low!r} and {self.high!r}; swap or widen them.")

    def event(self, noise: str = "exact") -> Event:
        """The event of one of the ``steps`` counts, from which its cost follows."""
        return Event(
            self.name,
            1.0,
            "1: one user moves a count by at most 1",
            self.noise_multiplier,
            self.noise_multiplier,
            1,
            adjacency=self.adjacency,
            noise=noise,
            step=_STEP,
        )

    def count(self, values: Any, threshold: float) -> int:
        """The count before noise; values that are not finite are not counted."""
        x = numbers("values", values)
        if x.ndim != 1:
            raise DataError(f"one number per user is needed, got shape {x.shape}; pass a vector.")
        return int((np.isfinite(x) & (x <= threshold)).sum())

    def noisy(self, counts: Any, noise: Noise) -> NDArray[np.float64]:
        """Noisy counts that are not booked, for one step and for audits (which ask for many at once)."""
        total = np.rint(np.asarray(counts, dtype=np.float64) / _STEP).astype(np.int64)
        return noise.gaussian(total, self.noise_multiplier / _STEP).astype(np.float64) * _STEP

    @guarded
    def __call__(self, values: Any, noise: Noise, book: Book | None = None) -> Released[float]:
        """Each count is booked before its noise is drawn."""
        low, high = math.log(self.low), math.log(self.high)
        used: Released[Any] = public(None)
        for _ in range(self.steps):
            middle = (low + high) / 2
            count = self.count(values, math.exp(middle))
            booking, taint = booked(self.event(noise.name), book, noise)
            noisy = float(self.noisy([count], noise)[0])
            used = combine(lambda *_: None, used, Released(noisy, (booking,), taint))
            low, high = (low, middle) if noisy >= self.level * self.n_users else (middle, high)
        return used.map(lambda _: math.exp((low + high) / 2))
