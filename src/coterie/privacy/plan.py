"""How one budget is shared among different releases: a mean, a quantile, the rounds, the tuning.

A share is a part of μ² (Gaussian differential privacy), which adds up exactly over releases without sampling. A line with
Poisson sampling starts from its central limit; then all noise is scaled by one factor until the whole plan costs ε.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Part, Positive
from coterie.errors import ConfigError
from coterie.privacy.accounting import Composition, compose, composed_epsilon, least_noise
from coterie.privacy.events import Event, Failure
from coterie.privacy.gaussian_dp import mu_of
from coterie.privacy.terms import Adjacency, Delta

_RESERVE = 1e-5  # of ε, kept for what the lattice costs (Event.slack)


@guarded
@dataclass(frozen=True)
class Line:
    """A request for ``count`` releases called ``name`` that may cost ``share`` of the budget together, and each of them
    ``failure`` of δ."""

    name: str
    share: Positive
    count: Count = 1
    sampling: Part = 1.0
    failure: Failure = 0.0


@dataclass(frozen=True)
class Planned(Line):
    """A line with its noise, and its share of the whole plan."""

    noise_multiplier: float = field(kw_only=True)


@dataclass(frozen=True)
class Plan:
    """All releases a run may make. ``noise_multiplier(name)`` is the least noise that each of them must use."""

    epsilon: float
    delta: float
    adjacency: str
    lines: tuple[Planned, ...]
    reserve: float

    def line(self, name: str) -> Planned | None:
        """The line of this name, or None."""
        return next((line for line in self.lines if line.name == name), None)

    def noise_multiplier(self, name: str) -> float:
        """z = σ/Δ of the releases called ``name``."""
        line = self.line(name)
        if line is None:
            known = ", ".join(repr(line.name) for line in self.lines)
            raise ConfigError(f"the plan has no release {name!r}; it has {known}.")
        return line.noise_multiplier

    def costs(self) -> Composition:
        """The cost of the whole plan."""
        return replace(compose(self.left({})), slack=self.reserve)

    def left(self, realised: dict[str, int]) -> list[Event]:
        """The releases that are planned but not made yet, as events (for a ledger's sum)."""
        events = []
        for ln in self.lines:
            z, count = ln.noise_multiplier, max(0, ln.count - realised.get(ln.name, 0))
            options: dict[str, Any] = {"sampling": ln.sampling, "count": count, "adjacency": self.adjacency}
            options["failure"] = ln.failure
            events.append(Event(ln.name, 1.0, "planned", z, z, 1, **options))
        return events

    def covers(self, event: Event, realised: int) -> bool:
        """Whether the event is the next release of one of the lines, with at least the planned noise."""
        line = self.line(event.name)
        return (
            line is not None
            and event.kind == "gaussian"
            and realised + event.count <= line.count
            and event.noise_multiplier >= line.noise_multiplier
            and event.sampling <= line.sampling
            and event.failure <= line.failure
            and event.adjacency in (self.adjacency, "replace")
            and (event.adjacency == self.adjacency or event.sampling == 1.0)
        )

    def to_json(self) -> str:
        """One line of text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that ``to_json`` wrote."""
        try:
            found = json.loads(text)
            return cls(**(found | {"lines": tuple(Planned(**line) for line in found["lines"])}))
        except (ValueError, TypeError, LookupError, RecursionError):
            raise ConfigError("this is not a plan of this version; restore its ledger or checkpoint.") from None


@guarded
def make_plan(epsilon: Positive, delta: Delta, lines: Sequence[Line], adjacency: Adjacency = "zero-out") -> Plan:
    """The least noise for every line with which all of them together cost at most ε at δ. Shares are normalised to 1."""
    if not lines or len({line.name for line in lines}) < len(lines):
        raise ConfigError("a plan needs at least one release, and a different name for each; rename or add lines.")
    for line in lines:
        if line.sampling < 1.0 and line.count * line.sampling <= delta:
            raise ConfigError(
                f"count × sampling must be above δ = {delta:g}, since no noise would be needed below it; got {line.count} "
                f"draws at {line.sampling:g} for {line.name!r}; lower δ or draw more."
            )
    whole_share = sum(line.share for line in lines)
    slack = epsilon * _RESERVE
    free = delta - sum(line.failure * line.count for line in lines)
    if free <= 0:
        raise ConfigError(f"failures must take less than all of δ = {delta:g}; got {delta - free:g}. Lower them.")
    mu = mu_of(epsilon - 2 * slack, free * math.exp(-slack))
    base = [_alone(line, mu * math.sqrt(line.share / whole_share)) for line in lines]

    def scaled(log_scale: float) -> Plan:
        noise = [z * math.exp(log_scale) for z in base]
        planned = tuple(
            Planned(ln.name, ln.share / whole_share, ln.count, ln.sampling, ln.failure, noise_multiplier=z)
            for ln, z in zip(lines, noise, strict=True)
        )
        return Plan(float(epsilon), float(delta), adjacency, planned, slack)

    def cost(log_scale: float, fine: float) -> float:
        return composed_epsilon(scaled(log_scale).costs(), delta, fine)

    return scaled(0.0 if all(line.sampling == 1.0 for line in lines) else least_noise(cost, epsilon, 0.0))


def _alone(line: Line, mu: float) -> float:
    """z of a line that may spend μ by itself; with sampling, by the central limit of Bu et al. (2020)."""
    if line.sampling == 1.0:
        return math.sqrt(line.count) / mu
    return 1 / math.sqrt(math.log1p(mu * mu / (line.count * line.sampling**2)))
