"""Two sources of noise.

``ExactNoise`` draws OpenDP's discrete Gaussian on integers (Canonne, Kamath and Steinke 2020) from the operating system's
entropy and takes no seed; only this noise can get a valid receipt. ``SimulationNoise`` is NumPy's, fast and seeded; floating
point and a known seed make it unfit for a release.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.base.annotations import guarded
from coterie.errors import ConfigError, DataError
from coterie.privacy.mechanisms.lattice import ROOM, Integers
from coterie.privacy.terms import Mode

_CHUNK = 100_000


class Noise(Protocol):
    """Adds Gaussian noise to integers, and draws uniform 64-bit integers."""

    @property
    def name(self) -> str:
        """ "exact" or "simulation"."""
        ...

    @property
    def source(self) -> str:
        """Backend, random source and versions, for the receipt."""
        ...

    def gaussian(self, total: Integers, sigma: float) -> Integers:
        """``total`` plus independent noise of standard deviation ``sigma`` on the integers."""
        ...

    def bits(self, size: int) -> NDArray[np.uint64]:
        """Independent uniform integers below 2⁶⁴."""
        ...


def _checked(total: Any, sigma: float) -> Integers:
    if not isinstance(total, np.ndarray) or total.dtype != np.int64:
        got = getattr(total, "dtype", type(total).__name__)
        raise DataError(f"noise is added to int64 sums on the lattice, got {got}; round each user first.")
    if not 1.0 <= sigma < ROOM / 64:
        raise ConfigError(f"σ on the lattice must lie in [1, 2^56), got {sigma!r}; choose other bits for the lattice.")
    if total.size and float(np.abs(total.astype(np.float64)).max()) + 64 * sigma > ROOM:
        raise DataError("the sum does not fit into 64 bits on this lattice; use fewer bits or fewer users at once.")
    checked: Integers = total
    return checked


def closeness(sigma: float, parts: int) -> float:
    """τ: by what factor, e^±τ at most, the sum of ``parts`` discrete Gaussians of σ²/parts differs from one of σ² at any
    integer (Kairouz, Liu and Steinke 2021, "The Distributed Discrete Gaussian Mechanism"; σ²/parts ≥ ½)."""
    one = sigma**2 / parts
    if parts > 1 and one < 0.5:
        raise ConfigError(
            f"each of {parts} parts of a noise needs σ² ≥ 1/2 on the lattice, got {one:.3g}; choose more bits."
        )
    return 10 * sum(math.exp(-2 * math.pi**2 * one * k / (k + 1)) for k in range(1, parts))


@lru_cache(maxsize=16)
def _discrete_gaussian(sigma: float) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64"), scale=sigma)


@dataclass(frozen=True)
class ExactNoise:
    """OpenDP's discrete Gaussian; it draws about 70,000 coordinates per second."""

    name: str = field(default="exact", init=False)

    @property
    def source(self) -> str:
        return f"OpenDP {version('opendp')} discrete Gaussian; entropy of the operating system; no seed"

    def gaussian(self, total: Integers, sigma: float) -> Integers:
        total, add = _checked(total, sigma), _discrete_gaussian(float(sigma))
        flat = total.reshape(-1)
        out = np.empty_like(flat)
        for start in range(0, flat.size, _CHUNK):
            out[start : start + _CHUNK] = add(flat[start : start + _CHUNK].tolist())
        return out.reshape(total.shape)

    def bits(self, size: int) -> NDArray[np.uint64]:
        return np.frombuffer(os.urandom(8 * size), dtype=np.uint64)


@guarded
@dataclass(frozen=True)
class SimulationNoise:
    """NumPy's Gaussian, rounded to the lattice; ``seed`` is a whole number or a Generator."""

    seed: int | Sequence[int] | np.random.Generator
    name: str = field(default="simulation", init=False)
    _rng: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rng", np.random.default_rng(self.seed))

    @property
    def source(self) -> str:
        return f"NumPy {np.__version__} generator with a seed: NOT A DP RELEASE"

    def gaussian(self, total: Integers, sigma: float) -> Integers:
        total = _checked(total, sigma)
        return total + np.rint(self._rng.normal(scale=sigma, size=total.shape)).astype(np.int64)

    def bits(self, size: int) -> NDArray[np.uint64]:
        return self._rng.integers(0, 2**64, size=size, dtype=np.uint64, endpoint=False)


@guarded
def make_noise(name: Mode, seed: int | Sequence[int] | np.random.Generator | None = None) -> Noise:
    """The source of noise that a ``Privacy`` names. Exact noise refuses a seed; simulation needs one."""
    if name == "exact":
        if seed is not None:
            raise ConfigError("exact noise takes no seed, got one; leave it out, or use noise='simulation'.")
        return ExactNoise()
    if seed is None:
        raise ConfigError("simulation noise needs a seed, got None; give a whole number.")
    return SimulationNoise(seed)
