"""An ``Event`` describes a release of a mechanism; it is known before any data are touched."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from coterie.errors import ConfigError
from coterie.privacy.checks import ADJACENCIES, NOISES, choice, probability, whole

KINDS = ("gaussian", "randomised response")
GUARANTEES = ("central", "joint", "local")
_TAIL = 120.0  # e^−120: the probability left out of the bound on the lattice's cost


@dataclass(frozen=True)
class Event:
    """One release, or ``count`` equal ones, in the words of the receipt.

    ``sensitivity`` is Δ in the units of the data and ``derivation`` says where it comes from; ``noise_multiplier`` is σ/Δ
    with the rounding to the lattice inside Δ. ``adjacency`` says for which change of one user Δ was derived."""

    name: str
    sensitivity: float
    derivation: str
    sigma: float
    noise_multiplier: float
    dimension: int
    kind: str = "gaussian"
    sampling: float = 1.0
    count: int = 1
    guarantee: str = "central"
    adjacency: str = "zero-out"
    noise: str = "exact"
    step: float = 0.0  # the lattice's spacing in the units of the data; 0 where there is none
    pure_epsilon: float = 0.0  # of one randomised response

    def __post_init__(self) -> None:
        choice(self.kind, "the kind of an event", KINDS)
        choice(self.guarantee, "the guarantee of an event", GUARANTEES)
        choice(self.adjacency, "adjacency", ADJACENCIES)
        choice(self.noise, "noise", NOISES)
        probability(self.sampling, "sampling", one=True)
        whole(self.count, "the count of an event", least=0)
        size = self.pure_epsilon if self.kind == "randomised response" else self.noise_multiplier
        if not (math.isfinite(size) and size > 0):
            raise ConfigError(f"the release {self.name!r} needs finite noise above 0, got {size!r}; add noise to it.")

    @property
    def slack(self) -> float:
        """How much ε grows per release because the noise is a discrete Gaussian instead of a continuous one.

        A continuous Gaussian rounded to the lattice is private by post-processing. A discrete Gaussian differs from it, in
        D coordinates with s = σ/step, by a factor of at most exp(D/(24 s²)) in one direction and, except with probability
        e^−120, exp((√(D + 2√(120 D) + 240) + √D/(2s))²/(24 s²)) in the other. (Jensen's inequality; sinh(a)/a ≤ e^(a²/6);
        Poisson summation for the constant; the χ² tail for sub-Gaussian coordinates.)"""
        if self.kind != "gaussian" or self.step <= 0:
            return 0.0
        s, d = self.sigma / self.step, self.dimension
        spread = math.sqrt(d + 2 * math.sqrt(_TAIL * d) + 2 * _TAIL) + math.sqrt(d) / (2 * s)
        return (d + spread**2) / (24 * s * s)

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields that the accountant reads."""
        return (self.name, self.kind, self.noise_multiplier, self.sampling, self.adjacency, self.pure_epsilon)

    def to_json(self) -> str:
        """One line, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Event:
        """The event that ``to_json`` wrote."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ConfigError("this is not an event, so the ledger or checkpoint is damaged; restore it from a copy.")
        unknown = set(found) - {f.name for f in fields(cls)}
        if unknown:
            raise ConfigError(f"an event has no field {sorted(unknown)}; the ledger was written by another version.")
        try:
            return cls(**found)
        except TypeError:
            raise ConfigError("an event lacks a field, or one is of another type; restore the ledger.") from None
