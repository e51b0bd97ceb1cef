"""``Privacy``: the guarantee and the budget that a user of the package asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.privacy.checks import ADJACENCIES, LEAST_CLIP, MOST_CLIP, NOISES, choice, positive, probability, within


@guarded
@dataclass(frozen=True)
class Privacy:
    """A budget for one run, at the level of whole users (clients).

    ``clip`` bounds the L2 norm of everything one client sends in a round. ``noise="exact"`` is the only mode that can get a
    valid receipt; ``"simulation"`` is fast and seeded and is NOT A DP RELEASE. ``adjacency="zero-out"`` hides whether a
    client's data were used at all, and the number of clients is public; ``"replace"`` hides which data a client had, and
    needs twice the noise.

    ``beyond="drop"`` leaves out an update that is longer than the clip, instead of shortening it. An attacker then gains
    nothing from a long update, and the long update of an honest client is lost. The noise stays the same.

    ``ledger`` is the path of an SQLite file that adds up all runs on the same ``users`` (a name for the population).
    All runs together may spend ``total_epsilon`` (at this δ); if it is not given, they may spend ``epsilon``."""

    epsilon: float
    delta: float
    clip: float
    noise: str = "exact"
    adjacency: str = "zero-out"
    ledger: str | Path | None = None
    users: str = "users"
    total_epsilon: float | None = None
    beyond: str = "shorten"

    def __post_init__(self) -> None:
        positive(self.epsilon, "epsilon")
        probability(self.delta, "delta")
        within(self.clip, "clip", LEAST_CLIP, MOST_CLIP)
        choice(self.beyond, "beyond", ("shorten", "drop"))
        choice(self.noise, "noise", NOISES)
        choice(self.adjacency, "adjacency", ADJACENCIES)
        if self.ledger is not None and not str(self.ledger).strip():
            raise ConfigError("ledger must name a file, got an empty text; give a path, or leave it out.")
        if not isinstance(self.users, str) or not self.users or not self.users.isprintable():
            raise ConfigError(
                f"users must be a name for the population, got {self.users!a}; give a short printable text."
            )
        if self.total_epsilon is not None and positive(self.total_epsilon, "total_epsilon") < self.epsilon:
            raise ConfigError(
                f"total_epsilon must be at least epsilon = {self.epsilon:g}, got {self.total_epsilon:g}; raise it or "
                "lower epsilon."
            )

    @property
    def total(self) -> float:
        """The ε that all runs on these users may spend together."""
        return self.epsilon if self.total_epsilon is None else self.total_epsilon

    @property
    def simulated(self) -> bool:
        """Whether the noise is simulated, so that the run is not a DP release."""
        return self.noise == "simulation"
