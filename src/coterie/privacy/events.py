"""An ``Event`` describes a release of a mechanism; it is known before any data are touched."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from coterie.base.annotations import guarded
from coterie.base.arguments import Part, Rule, is_number, one_of, whole
from coterie.errors import ConfigError
from coterie.privacy.mechanisms.noise import closeness
from coterie.privacy.terms import Adjacency, Guarantee, Mode

_TAIL = 120.0  # e^−120: the probability left out of the bound on the lattice's cost
Failure = Annotated[float, Rule("a probability below 1", lambda v: is_number(v) and 0 <= v < 1)]


@guarded
@dataclass(frozen=True)
class Event:
    """One release, or ``count`` equal ones, in the words of the receipt.

    ``sensitivity`` is Δ in the units of the data and ``derivation`` says where it comes from; ``noise_multiplier`` is σ/Δ
    with the rounding to the lattice inside Δ. ``adjacency`` says for which change of one user Δ was derived. ``failure``
    is the probability that a release shows what its noise does not cover: a token of one user that passes a threshold."""

    name: str
    sensitivity: float
    derivation: str
    sigma: float
    noise_multiplier: float
    dimension: int
    kind: Annotated[str, one_of("gaussian", "randomised response")] = "gaussian"
    sampling: Part = 1.0
    count: Annotated[int, whole(0)] = 1
    guarantee: Guarantee = "central"
    adjacency: Adjacency = "zero-out"
    noise: Mode = "exact"
    step: float = 0.0  # the lattice's spacing in the units of the data; 0 without one
    pure_epsilon: float = 0.0  # of one randomised response
    parts: Annotated[int, whole(1)] = 1  # of how many independent discrete Gaussians the noise is the sum
    failure: Failure = 0.0  # added to δ

    def __post_init__(self) -> None:
        size = self.pure_epsilon if self.kind == "randomised response" else self.noise_multiplier
        if not (math.isfinite(size) and size > 0):
            raise ConfigError(f"the release {self.name!r} needs finite noise above 0, got {size!r}; add noise to it.")

    @property
    def slack(self) -> float:
        """How much ε grows per release because the noise is a discrete Gaussian instead of a continuous one.

        A continuous Gaussian rounded to the lattice is private by post-processing. A discrete Gaussian differs from it, in
        D coordinates with s = σ/step, by a factor of at most exp(D/(24 s²)) in one direction and, except with probability
        e^−120, exp((√(D + 2√(120 D) + 240) + √D/(2s))²/(24 s²)) in the other. (Jensen's inequality; sinh(a)/a ≤ e^(a²/6);
        Poisson summation for the constant; the χ² tail for sub-Gaussian coordinates.)

        A sum of several discrete Gaussians is not a discrete Gaussian: in D coordinates it differs by a factor of at most
        e^(Dτ) either way."""
        if self.kind != "gaussian" or self.step <= 0:
            return 0.0
        s, d = self.sigma / self.step, self.dimension
        spread = math.sqrt(d + 2 * math.sqrt(_TAIL * d) + 2 * _TAIL) + math.sqrt(d) / (2 * s)
        return (d + spread**2) / (24 * s * s) + 2 * d * closeness(s, self.parts)

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields that the accountant reads."""
        return (
            self.name,
            self.kind,
            self.noise_multiplier,
            self.sampling,
            self.adjacency,
            self.pure_epsilon,
            self.failure,
        )

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
