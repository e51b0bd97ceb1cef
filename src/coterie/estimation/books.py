"""What every private estimator keeps: its plan, its ledger, its noise, and the values it gives out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.errors import ConfigError
from coterie.privacy import (
    Ledger,
    Line,
    Noise,
    Privacy,
    Receipt,
    Released,
    make_noise,
    make_plan,
    non_private,
    write_receipt,
)
from coterie.privacy.mechanisms.sums import Book

Value = TypeVar("Value")


def checked(privacy: Any, owner: str) -> Privacy:
    """The budget an estimator was given, which must be a ``Privacy``."""
    if not isinstance(privacy, Privacy):
        raise ConfigError(
            f"{owner} needs privacy=ct.Privacy(epsilon, delta, clip), got {type(privacy).__name__}; pass one, or None."
        )
    if privacy.beyond != "shorten":
        raise ConfigError(f"{owner} shortens what is beyond the clip, got beyond={privacy.beyond!r}; leave it out.")
    return privacy


def given(start: Any) -> Released[Any]:
    """A start that the user passed, with its history: one of unknown origin voids the receipt."""
    if isinstance(start, Released):
        return start
    return non_private(start, "the start is of unknown origin; wrap one that needs nobody's data in privacy.public(…)")


@dataclass
class Books:
    """One run's accounts. A value is noted with ``keep`` when it is shown, so that the receipt knows its history."""

    privacy: Privacy
    ledger: Ledger
    noise: Noise
    kept: list[Released[Any]] = field(default_factory=list)

    @classmethod
    def open(cls, privacy: Privacy, lines: Sequence[Line], seed: int) -> Books:
        """Reserve the shares of all lines. Exact noise takes no seed; a simulation takes ``seed``.

        Without lines the ledger checks each release by itself (one-bit reports are not Gaussian)."""
        plan = make_plan(privacy.epsilon, privacy.delta, lines, privacy.adjacency) if lines else None
        noise = make_noise(privacy.noise, [seed, 0x9E37] if privacy.simulated else None)
        return cls(privacy, Ledger(privacy, plan), noise)

    @property
    def book(self) -> Book:
        """What mechanisms call before they draw noise."""
        return self.ledger.book

    def noise_multiplier(self, name: str) -> float:
        """z = σ/Δ of the releases called so."""
        assert self.ledger.plan is not None
        return self.ledger.plan.noise_multiplier(name)

    def keep(self, released: Released[Value]) -> Value:
        """Note that a value is shown, and show it."""
        self.kept.append(released)
        return released.value

    def receipt(
        self,
        n_users: int,
        choices: Mapping[str, str],
        *,
        guarantee: str = "joint",
        public: Iterable[str] = (),
        not_covered: Iterable[str] = (),
    ) -> Receipt:
        """Close the run and write its receipt."""
        self.ledger.close()
        return write_receipt(
            self.ledger,
            self.kept,
            n_users=n_users,
            choices=choices,
            guarantee=guarantee,
            public=public,
            not_covered=not_covered,
            noise_source=self.noise.source,
        )
