"""Is the noise of a run larger than its signal? The answer is known before the run starts.

The mean of n clients' updates has a norm of at most the clip. The noise on it has norm z·√D/(q·n) clips (twice that when a
client may be replaced), where D counts all numbers one client sends. Above 1, a round is mostly noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Part, Positive
from coterie.privacy.terms import Adjacency


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
        """Whether the noise is larger than the mean update even of clients that all send the same update at full norm."""
        return self.ratio > 1

    @property
    def warning(self) -> str:
        """A warning in one sentence; empty where none is needed."""
        if not self.drowned:
            return ""
        return (
            f"the noise will be larger than the signal: with {self.clients:,} clients and {self.dimension:,} numbers per "
            f"client, the noise of a round is {self.ratio:.2g} times the clip; about {self.enough:,} clients would be "
            "enough, or fewer parameters, fewer rounds, or a larger budget."
        )


@guarded
def signal(
    noise_multiplier: Positive,
    dimension: Count,
    clients: Count,
    sampling: Part = 1.0,
    *,
    adjacency: Adjacency = "zero-out",
) -> Signal:
    """The size of the noise relative to the signal, and the number of clients that would bring the ratio to 1."""
    factor = 1 if adjacency == "zero-out" else 2
    needed = factor * noise_multiplier * math.sqrt(dimension) / sampling
    return Signal(needed / clients, clients, math.ceil(needed), dimension, noise_multiplier)
