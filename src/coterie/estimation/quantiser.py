"""An unbiased k-bit quantiser (E-2q), and the radius that keeps client means inside its range.

Theorem 2 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: k `bits`, b `radius`, L = 2^k − 1 `levels`, σ_q² `variance` (a bound), r `mean_bound`.
A quantiser saves communication; it is *not* differentially private (x = ±b is sent unchanged).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import ArrayLike

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, NotNegative, Positive, Rule, finite, is_number
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError, DataError
from coterie.estimation.conventions import Array, Ints

FromOne = Annotated[float, Rule("a finite number of at least 1", lambda v: is_number(v) and v >= 1)]


class Mechanism(Protocol):
    """Any unbiased q with E q(x) = x on [−radius, radius] and E (q(x) − x)² ≤ variance per coordinate (Theorem 2)."""

    @property
    def radius(self) -> float: ...
    @property
    def variance(self) -> float: ...
    def __call__(self, x: Array, rng: np.random.Generator, /) -> Array: ...


@guarded
@dataclass(frozen=True)
class Quantiser:
    """Round stochastically to one of 2^k levels on [−b, b]: unbiased, variance at most b²/(2^k − 1)²."""

    bits: Count
    radius: Positive = 1.0

    def __post_init__(self) -> None:
        if self.bits > 52:
            raise ConfigError(f"bits must be at most 52, the precision of a float; got {self.bits}. Use fewer.")

    @property
    def levels(self) -> int:
        return int(2**self.bits) - 1

    @property
    def variance(self) -> float:
        """σ_q² = b²/L², the largest variance over all inputs."""
        return (self.radius / self.levels) ** 2

    @guarded
    def encode(self, x: ArrayLike, rng: np.random.Generator) -> Ints:
        """The whole numbers 0..L to send, `bits` bits each."""
        scaled = self._scaled(x)
        floor = np.floor(scaled)
        return (floor + (rng.random(scaled.shape) < scaled - floor)).astype(np.int64)

    def decode(self, codes: Ints) -> Array:
        return 2 * self.radius / self.levels * finite("codes", codes) - self.radius

    def __call__(self, x: ArrayLike, rng: np.random.Generator, /) -> Array:
        return self.decode(self.encode(x, rng))

    def _scaled(self, x: ArrayLike) -> Array:
        values = finite("x", x)
        if np.abs(values).max(initial=0.0) > self.radius * (1 + 1e-12):
            raise DataError(
                f"Quantiser needs |x| <= radius={self.radius}; got {np.abs(values).max()}. "
                "Clip x first (this biases it), or raise the radius with clipping_radius."
            )
        scaled: Array = np.clip(self.levels * (values + self.radius) / (2 * self.radius), 0, self.levels)
        return scaled


@renamed
@guarded
def clipping_radius(
    *,
    clients: Count,
    samples: FromOne,
    dimension: Count = 1,
    prior_variance: NotNegative,
    noise_variance: NotNegative,
    mean_bound: NotNegative = 0.0,
) -> float:
    """b such that no coordinate of any client mean leaves [−b, b] with probability at least 1 − 2/(mn).

    Theorem 2's own radius, r + (σ_θ + σ_x/√n)√log(m²n), is too small (erratum E02).
    """
    log = 2 * np.log(2 * dimension * clients**2 * samples)
    return float(mean_bound + (np.sqrt(prior_variance) + np.sqrt(noise_variance / samples)) * np.sqrt(log))


@guarded
def norm_bound(
    *,
    clients: Count,
    samples: FromOne,
    dimension: Count = 1,
    noise_variance: NotNegative,
    center_bound: NotNegative,
    printed: bool = False,
) -> float:
    """A radius that holds all clients' means with probability at least 1 − 1/(mn), if all ‖μ_l‖ ≤ center_bound (Lemma 1).

    For θ_i among the centres and Gaussian samples: r + (σ_x/√n)(√d + √(2 log m²n)). `printed=True` gives the lemma's own
    r + 4√(dσ_x²/n) + 2√(log(m²n)σ_x²/n), which is valid for sub-Gaussian samples, and wider (E-8, erratum E25)."""
    log, deviation = np.log(clients**2 * samples), np.sqrt(noise_variance / samples)
    if printed:
        return float(center_bound + deviation * (4 * np.sqrt(dimension) + 2 * np.sqrt(log)))
    return float(center_bound + deviation * (np.sqrt(dimension) + np.sqrt(2 * log)))
