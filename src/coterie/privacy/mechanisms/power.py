"""The noisy power method: the leading directions of Σ x xᵀ, privately.

Hardt and Price, "The Noisy Power Method: A Meta Algorithm with Applications" (NeurIPS 2014). In each iteration a user sends
x·yᵀ with y = clip(Qᵀx); its Frobenius norm is at most c·c_y, so Δ = c·c_y (twice that when a user is replaced).
x and y are rounded to lattices of their own: their product is a matrix of integers, and its sum is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.annotations import guarded
from coterie.arguments import numbers
from coterie.errors import ConfigError
from coterie.privacy.checks import ADJACENCIES, choice, positive, whole
from coterie.privacy.events import Event
from coterie.privacy.mechanisms.lattice import Integers, Lattice, require_room
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.mechanisms.sums import Book, booked
from coterie.privacy.taint import Released, combine, public

_CHUNK = 100_000  # 10⁵ users · 2³² per product stays below 2⁵³: matrix products of floats are exact


@guarded
@dataclass(frozen=True)
class NoisyPower:
    """``iterations`` releases of a (dimension, n_components) matrix; σ = noise_multiplier·Δ in each."""

    name: str
    dimension: int
    n_components: int
    clip: float
    noise_multiplier: float
    iterations: int = 4
    projected_clip: float | None = None  # c_y; the clip itself if None, which never binds
    adjacency: str = "zero-out"
    bits: int = 16

    def __post_init__(self) -> None:
        positive(self.noise_multiplier, "noise_multiplier")
        whole(self.iterations, "iterations")
        choice(self.adjacency, "adjacency", ADJACENCIES)
        if whole(self.n_components, "n_components") > self.dimension:
            raise ConfigError(f"n_components must not exceed {self.dimension}, got {self.n_components}; lower it.")
        if whole(self.bits, "bits") > 16:
            raise ConfigError(f"bits must be at most 16, got {self.bits}; products of larger integers are not exact.")
        _ = self.lattices

    @property
    def lattices(self) -> tuple[Lattice, Lattice]:
        """The lattices of x and of y."""
        c_y = self.clip if self.projected_clip is None else self.projected_clip
        return Lattice(self.clip, self.dimension, self.bits), Lattice(c_y, self.n_components, self.bits)

    @property
    def step(self) -> float:
        """The spacing of the product lattice."""
        x, y = self.lattices
        return x.step * y.step

    @property
    def lattice_sensitivity(self) -> float:
        """Δ of the integers."""
        x, y = self.lattices
        return x.radius * y.radius * (1 if self.adjacency == "zero-out" else 2)

    @property
    def sigma(self) -> float:
        """The noise of each entry in the units of the data."""
        return self.noise_multiplier * self.lattice_sensitivity * self.step

    def event(self, noise: str = "exact") -> Event:
        """The event of one iteration, from which its cost follows."""
        x, y = self.lattices
        factor = "" if self.adjacency == "zero-out" else "2·"
        return Event(
            self.name,
            self.lattice_sensitivity * self.step,
            f"{factor}c·c_y, c = {x.clip:g} plus rounding in {x.dimension}, c_y = {y.clip:g} plus rounding in {y.dimension}",
            self.sigma,
            self.noise_multiplier,
            self.dimension * self.n_components,
            adjacency=self.adjacency,
            noise=noise,
            step=self.step,
        )

    def partial(self, rows: Any, basis: NDArray[np.float64]) -> Integers:
        """Σ x yᵀ of a chunk of users, exact integers."""
        on_x, on_y = self.lattices
        total = np.zeros((self.dimension, self.n_components), np.int64)
        rows = np.array(numbers("rows", rows), ndmin=2)
        require_room(len(rows), on_x.radius * on_y.radius)
        for start in range(0, len(rows), _CHUNK):
            x = on_x.round(rows[start : start + _CHUNK]).astype(np.float64)
            y = on_y.round((x * on_x.step) @ basis).astype(np.float64)
            total += (x.T @ y).astype(np.int64)
        return total

    def first_basis(self, seed: int = 0) -> NDArray[np.float64]:
        """The start, drawn from public coins."""
        start = np.random.default_rng(seed).normal(size=(self.dimension, self.n_components))
        return np.asarray(np.linalg.qr(start)[0])

    def noisy(self, total: Integers, noise: Noise) -> NDArray[np.float64]:
        """One iteration's noisy sum (or many at once, for audits); it is not booked."""
        return noise.gaussian(total, self.sigma / self.step).astype(np.float64) * self.step

    @guarded
    def __call__(
        self, rows: Any, noise: Noise, book: Book | None = None, seed: int = 0
    ) -> Released[NDArray[np.float64]]:
        """An orthonormal basis (dimension, n_components). The start is drawn from public coins."""
        basis: Released[NDArray[np.float64]] = public(self.first_basis(seed))
        for _ in range(self.iterations):
            total = self.partial(rows, basis.value)
            booking, taint = booked(self.event(noise.name), book, noise)
            noisy = self.noisy(total, noise)
            basis = combine(lambda _, y: np.linalg.qr(y)[0], basis, Released(noisy, (booking,), taint))
        return basis
