"""A private quantile, for the clipping bound: a binary search on noisy counts, all of them Gaussian.

Each step asks how many users lie at or below a public threshold. Zeroing out or replacing one user changes that count by at
most 1, so Δ = 1 under both. The target is a fraction of the public number of users, never of a secret count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Level, Positive, numbers
from coterie.errors import ConfigError, DataError
from coterie.privacy.mechanisms.gaussian import Book, Drawn, GaussianMechanism
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.taint import Released, combine, public
from coterie.privacy.terms import Adjacency


@guarded
@dataclass(frozen=True)
class Quantile(GaussianMechanism):
    """The ``level`` quantile of one number per user between the public bounds ``low`` < ``high``, on a log scale.

    ``steps`` releases with noise σ = noise_multiplier each halve the range ``steps`` times."""

    name: str
    level: Level
    low: Positive
    high: Positive
    noise_multiplier: Positive
    n_users: Count
    steps: Count = 8
    adjacency: Adjacency = "zero-out"
    parts: Count = 1

    shape = ()
    step = 2.0**-20  # counts are scaled up, so that the discrete Gaussian is as good as a continuous one
    lattice_sensitivity = 2.0**20
    derivation = "1: one user moves a count by at most 1"

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ConfigError(f"low must be below high, got {self.low!r} and {self.high!r}; swap or widen them.")

    def count(self, values: Any, threshold: float) -> int:
        """The count before noise; values that are not finite are not counted."""
        x = numbers("values", values)
        if x.ndim != 1:
            raise DataError(f"one number per user is needed, got shape {x.shape}; pass a vector.")
        return int((np.isfinite(x) & (x <= threshold)).sum())

    def _steps(self, total: Any) -> Any:
        return np.rint(np.asarray(total, dtype=np.float64) / self.step).astype(np.int64)

    def noisy(self, total: Any, noise: Noise) -> Any:
        return super().noisy(self._steps(total), noise)

    def part(self, total: Any, noise: Noise) -> Any:
        return super().part(self._steps(total), noise)

    def drawn(self, total: Any) -> Any:
        return super().noisy(total, Drawn())

    @guarded
    def __call__(self, values: Any, noise: Noise, book: Book | None = None) -> Released[float]:
        """Each count is booked before its noise is drawn."""
        return self.search(lambda threshold: self.give_out([self.count(values, threshold)], noise, book))

    def search(self, below: Callable[[float], Released[Any]]) -> Released[float]:
        """The same from noisy counts of users at or below thresholds."""
        low, high = math.log(self.low), math.log(self.high)
        used: Released[Any] = public(None)
        for _ in range(self.steps):
            middle = (low + high) / 2
            released = below(math.exp(middle))
            used = combine(lambda *_: None, used, released)
            low, high = (low, middle) if released.value[0] >= self.level * self.n_users else (middle, high)
        return used.map(lambda _: math.exp((low + high) / 2))
