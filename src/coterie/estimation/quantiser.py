"""Unbiased quantisers, of every number (E-2q) and of whole vectors, and the radii that keep client means inside.

Theorem 2, Lemma 1 and section 2.3.3 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: k `bits`, b `radius`, L = 2^k − 1 `levels`, σ_q² `variance` (a bound), r `mean_bound`.
A quantiser saves communication; it is *not* differentially private (x = ±b is sent unchanged).
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import ArrayLike

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, NotNegative, Positive, Rule, finite, is_number, shown
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError, DataError
from coterie.estimation.conventions import Array, Ints
from coterie.privacy import clip_rows

FromOne = Annotated[float, Rule("a finite number of at least 1", lambda v: is_number(v) and v >= 1)]


class Mechanism(Protocol):
    """Any unbiased q with E q(x) = x on [−radius, radius] and E ‖q(x) − x‖² ≤ d·variance (Theorem 2)."""

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


@guarded
@dataclass(frozen=True)
class VectorQuantiser:
    """Send a vector of the L2 ball of radius R as `points` corners ±R√d·e_j, drawn with mean x, and take their mean.

    ‖x‖₁ ≤ √d·‖x‖₂, so that the ball lies inside the corners (Gandikota et al., vqSGD, 2021). A message has
    points·⌈log₂ 2d⌉ bits, which may be fewer than d; the variance is (R² − ‖x‖²/d)/points per coordinate on average."""

    points: Count
    radius: Positive = 1.0

    @property
    def variance(self) -> float:
        """σ_q² = R²/points, the variance at 0 and the largest."""
        return self.radius**2 / self.points

    @guarded
    def bits(self, dimension: Count) -> int:
        """The length of a message."""
        return self.points * int(np.ceil(np.log2(2 * dimension)))

    def __call__(self, x: ArrayLike, rng: np.random.Generator, /) -> Array:
        values = finite("x", x)
        rows = np.atleast_2d(values)
        longest, d = float(np.linalg.norm(rows, axis=1).max(initial=0.0)), rows.shape[1]
        if longest > self.radius * (1 + 1e-12):
            raise DataError(
                f"VectorQuantiser needs rows with a norm of at most radius={self.radius}; got {longest}. "
                "Clip them first (this biases them), or raise the radius with norm_bound."
            )
        corner = np.sqrt(d) * self.radius
        share = np.hstack([np.maximum(rows, 0), np.maximum(-rows, 0)]) / corner
        share += np.maximum(1 - share.sum(1, keepdims=True), 0) / (2 * d)  # what is left cancels in the mean
        counts = rng.multinomial(self.points, share / share.sum(1, keepdims=True))
        return np.asarray(corner / self.points * (counts[:, :d] - counts[:, d:])).reshape(values.shape)


def sent(mechanism: Mechanism, rows: Array, seed: int) -> tuple[Array, int]:
    """What the server gets of the clients' rows, clipped to the mechanism's radius, and how many rows were clipped."""
    if not all(isinstance(getattr(mechanism, name, None), Real) for name in ("radius", "variance")):
        raise ConfigError(f"mechanism must have a radius and a variance, as Quantiser has; got {shown(mechanism)}.")
    reach = mechanism.radius
    whole = isinstance(mechanism, VectorQuantiser)
    inside = clip_rows(rows, reach).rows if whole else np.clip(rows, -reach, reach)
    clipped = int((np.abs(inside - rows) > 1e-12 * reach).any(1).sum())
    return mechanism(inside, np.random.default_rng(seed)), clipped


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
