"""Before a run starts: will the noise drown the signal?

The mean of n clients' updates has a norm of at most the clip. The noise on it has norm z·√D/(q·n) clips (twice that when a
client may be replaced), where D counts all numbers one client sends. Above 1, a round is mostly noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.annotations import guarded
from coterie.privacy.checks import ADJACENCIES, choice, positive, probability, whole


@dataclass(frozen=True)
class Signal:
    """``ratio``: norm of a round's noise over the largest possible norm of its mean update, the clip."""

    ratio: float
    clients: int
    enough: int
    dimension: int
    noise_multiplier: float

    @property
    def drowned(self) -> bool:
        """Whether even clients that all agree, at full norm, send less than the noise."""
        return self.ratio > 1

    @property
    def warning(self) -> str:
        """One sentence, empty if there is nothing to warn of."""
        if not self.drowned:
            return ""
        return (
            f"the noise will drown the signal: with {self.clients:,} clients and {self.dimension:,} numbers per client, the "
            f"noise of a round is {self.ratio:.2g} times the clip; about {self.enough:,} clients would be enough, or fewer "
            "parameters, fewer rounds, or a larger budget."
        )


@guarded
def signal(
    noise_multiplier: float, dimension: int, clients: int, sampling: float = 1.0, *, adjacency: str = "zero-out"
) -> Signal:
    """How loud the noise is, and how many clients would be enough for a ratio of 1."""
    z, d = positive(noise_multiplier, "noise_multiplier"), whole(dimension, "dimension")
    n, q = whole(clients, "clients"), probability(sampling, "sampling", one=True)
    factor = 1 if choice(adjacency, "adjacency", ADJACENCIES) == "zero-out" else 2
    needed = factor * z * math.sqrt(d) / q
    return Signal(needed / n, n, math.ceil(needed), d, z)
