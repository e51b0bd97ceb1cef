"""The noisy power method: the leading directions of Σ x xᵀ, privately.

Hardt and Price, "The Noisy Power Method: A Meta Algorithm with Applications" (NeurIPS 2014). In each iteration a user sends
x·yᵀ with y = clip(Qᵀx); its Frobenius norm is at most c·c_y, so Δ = c·c_y (twice that when a user is replaced).
x and y are rounded to lattices of their own: their product is a matrix of integers, and its sum is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive, numbers
from coterie.errors import ConfigError
from coterie.privacy.mechanisms.gaussian import Book, GaussianMechanism
from coterie.privacy.mechanisms.lattice import Floats, Integers, Lattice, products, require_room
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.taint import Released, combine, public
from coterie.privacy.terms import Adjacency, Clip

_CHUNK = 100_000  # 10⁵ users · 2³² per product stays below 2⁵³: matrix products of floats are exact


@guarded
@dataclass(frozen=True)
class NoisyPower(GaussianMechanism):
    """``iterations`` releases of a (dimension, n_components) matrix; σ = noise_multiplier·Δ in each."""

    name: str
    dimension: Count
    n_components: Count
    clip: Clip
    noise_multiplier: Positive
    iterations: Count = 4
    projected_clip: Clip | None = None  # c_y; the clip itself if None, which never binds
    adjacency: Adjacency = "zero-out"
    bits: Count = 16
    parts: Count = 1

    def __post_init__(self) -> None:
        if self.n_components > self.dimension:
            raise ConfigError(f"n_components must not exceed {self.dimension}, got {self.n_components}; lower it.")
        if self.bits > 16:
            raise ConfigError(f"bits must be at most 16, got {self.bits}; products of larger integers are not exact.")
        super().__post_init__()

    @property
    def lattices(self) -> tuple[Lattice, Lattice]:
        """The lattices of x and of y."""
        c_y = self.clip if self.projected_clip is None else self.projected_clip
        return Lattice(self.clip, self.dimension, self.bits), Lattice(c_y, self.n_components, self.bits)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dimension, self.n_components)

    @property
    def step(self) -> float:
        """The spacing of the product lattice."""
        x, y = self.lattices
        return x.step * y.step

    @property
    def lattice_sensitivity(self) -> float:
        x, y = self.lattices
        return x.radius * y.radius * (1 if self.adjacency == "zero-out" else 2)

    @property
    def derivation(self) -> str:
        (x, y), factor = self.lattices, "" if self.adjacency == "zero-out" else "2·"
        rounded = f"c = {x.clip:g} plus rounding in {x.dimension}, c_y = {y.clip:g} plus rounding in {y.dimension}"
        return f"{factor}c·c_y, {rounded}"

    def partial(self, rows: Any, basis: Floats) -> Integers:
        """Σ x yᵀ of a chunk of users, exact integers."""
        on_x, on_y = self.lattices
        total = np.zeros((self.dimension, self.n_components), np.int64)
        rows = np.array(numbers("rows", rows), ndmin=2)
        require_room(len(rows), on_x.radius * on_y.radius)
        for start in range(0, len(rows), _CHUNK):
            x = on_x.round(rows[start : start + _CHUNK]).astype(np.float64)
            y = on_y.round(products(x * on_x.step, basis)).astype(np.float64)
            total += (x.T @ y).astype(np.int64)
        return total

    def first_basis(self, seed: int = 0) -> Floats:
        """The start, drawn from public coins."""
        start = np.random.default_rng(seed).normal(size=(self.dimension, self.n_components))
        return np.asarray(np.linalg.qr(start)[0])

    @guarded
    def __call__(self, rows: Any, noise: Noise, book: Book | None = None, seed: int = 0) -> Released[Floats]:
        """An orthonormal basis (dimension, n_components). The start is drawn from public coins."""
        basis: Released[Floats] = public(self.first_basis(seed))
        for _ in range(self.iterations):
            released = self.give_out(self.partial(rows, basis.value), noise, book)
            basis = combine(lambda _, y: np.linalg.qr(y)[0], basis, released)
        return basis
