"""Local privacy: each user adds noise before anything leaves the device.

``LocalGaussian`` repairs Theorem 2 of Ozkara et al. (its 8a² ln(2/δ)/ε² holds for d = 1 and ε < 1 only): an L2 ball of
radius R, the analytic Gaussian (Balle and Wang 2018), Δ = 2R. ``OneBit`` is their q^priv, with the user split that makes the
heterogeneity estimable (Theorem 4 cannot: the reports' variance depends on the mean alone).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive, Rule, is_number, numbers, whole
from coterie.errors import DataError
from coterie.privacy.events import Event
from coterie.privacy.gaussian_dp import mu_of
from coterie.privacy.mechanisms.gaussian import Book, booked
from coterie.privacy.mechanisms.lattice import Floats, Lattice
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.mechanisms.sums import ClippedSum
from coterie.privacy.taint import Released
from coterie.privacy.terms import Clip

# Below this the probability of a flip could be rounded up to more than one half.
Odds = Annotated[float, Rule("a number from 1e-9 to 40", lambda v: is_number(v) and 1e-9 <= v <= 40)]


@guarded
@dataclass(frozen=True)
class LocalGaussian(ClippedSum):
    """Each user reports clip_R(x) + N(0, σ²) once; σ = noise_multiplier·2R. Two users' vectors differ by at most 2R."""

    name: str
    dimension: Count
    radius: Clip
    noise_multiplier: Positive
    bits: Count = 20

    guarantee = "local"
    adjacency = "replace"

    @classmethod
    def calibrated(cls, name: str, dimension: int, radius: float, epsilon: float, delta: float) -> LocalGaussian:
        """The mechanism with the least noise that makes one report (ε, δ)-private."""
        return cls(name, dimension, radius, 1 / mu_of(epsilon, delta) * (1 + 1e-6))

    @property
    def lattice(self) -> Lattice:
        return Lattice(self.radius, self.dimension, self.bits)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dimension,)

    @property
    def lattice_sensitivity(self) -> float:
        return self.lattice.sensitivity("replace")

    @property
    def derivation(self) -> str:
        return (
            f"2·(R + g·√d/2), R = {self.radius:g} the radius of the L2 ball, g = R·2^-{self.bits}, d = {self.dimension}"
        )

    @guarded
    def __call__(self, rows: Any, noise: Noise, book: Book | None = None) -> Released[Floats]:
        """One noisy report per user, (n, d)."""
        return self.give_out(self.lattice.round(rows), noise, book)


@guarded
@dataclass(frozen=True)
class OneBit:
    """Each user reports one bit about a number in [0, 1]; ε0-private, unbiased after decoding.

    The number is first rounded to a bit at random, then the bit is flipped with probability 1/(e^ε0 + 1), rounded *up* to a
    multiple of 2⁻⁶⁴: the odds are never above e^ε0."""

    name: str
    epsilon: Odds

    @property
    def flip(self) -> Fraction:
        """The exact probability of a flip."""
        return Fraction(math.ceil(2**64 / (math.exp(self.epsilon) + 1) * (1 + 1e-12)), 2**64)

    def event(self, noise: str = "exact") -> Event:
        """The event of one report, from which its cost follows."""
        return Event(
            self.name,
            1.0,
            f"one bit, flipped with probability {float(self.flip):.6g}",
            0.0,
            0.0,
            1,
            kind="randomised response",
            guarantee="local",
            adjacency="replace",
            noise=noise,
            pure_epsilon=self.epsilon,
        )

    @property
    def values(self) -> tuple[float, float]:
        """The values to which the bits 0 and 1 are decoded."""
        p = float(self.flip)
        return -p / (1 - 2 * p), (1 - p) / (1 - 2 * p)

    @guarded
    def __call__(self, values: Any, noise: Noise, book: Book | None = None) -> Released[NDArray[np.float64]]:
        """Decoded reports: two-valued, with the mean of ``values``. A value that is not finite is reported as 0."""
        x = numbers("values", values)
        if x.ndim != 1:
            raise DataError(f"one number per user is needed, got shape {x.shape}; pass a vector.")
        x = np.clip(np.where(np.isfinite(x), x, 0.0), 0.0, 1.0)
        booking, taint = booked(self, book, noise)
        first, second = noise.bits(len(x)), noise.bits(len(x))
        bit = (first >> np.uint64(11)).astype(np.float64) * 2.0**-53 < x
        flipped = second < np.uint64(int(self.flip * 2**64))
        return Released(np.where(bit ^ flipped, self.values[1], self.values[0]), (booking,), taint)


@dataclass(frozen=True)
class Moments:
    """Mean and variance of the users' rates, from one-bit reports; ``split`` says who reported what (public coins)."""

    mean: float
    variance: float
    variance_error: float
    split: NDArray[np.bool_]


@guarded
def rate_moments(
    successes: Any,
    trials: Annotated[int, whole(2)],
    epsilon: float,
    noise: Noise,
    book: Book | None = None,
    seed: int = 0,
) -> Released[Moments]:
    """The user split: a random half reports Z/n, the other half Z(Z−1)/(n(n−1)), each once with the full ε0.

    Z(Z−1)/(n(n−1)) has mean E p², so the binomial variance is already subtracted. The split is drawn from public coins."""
    n, z = trials, numbers("successes", successes)
    if z.ndim != 1 or len(z) < 4:
        raise DataError(f"at least 4 users with one count each are needed, got shape {z.shape}; pass a vector.")
    split = np.random.default_rng(seed).permutation(len(z)) < len(z) // 2
    report = OneBit("one-bit rates, user split", epsilon)
    sent = report(np.where(split, z / n, z * (z - 1) / (n * (n - 1))), noise, book)

    def decode(reports: NDArray[np.float64]) -> Moments:
        ones, squares = reports[split], reports[~split]
        mean = float(np.clip(ones.mean(), 0, 1))
        error = math.sqrt(squares.var() / len(squares) + 4 * mean**2 * ones.var() / len(ones))
        return Moments(mean, float(np.clip(squares.mean() - mean**2, 0, mean * (1 - mean))), error, split)

    return sent.map(decode)
