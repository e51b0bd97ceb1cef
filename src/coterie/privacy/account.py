"""The account of one private run: its plan, its ledger, its noise, the values it gave out, and its receipt.

Estimators and training open one account per run. Mechanisms call `book` before they draw noise. `keep` notes every value
that is given out, so that the receipt knows its history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from coterie.errors import ConfigError
from coterie.privacy.events import Event
from coterie.privacy.ledger import Ledger
from coterie.privacy.mechanisms.noise import Noise, make_noise
from coterie.privacy.plan import Line, Plan, make_plan
from coterie.privacy.receipt import Receipt, write_receipt
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Booking, Released, non_private

MOMENTS, GRADIENTS = "moments", "gradients of rows"  # releases that protect single rows
LEDGER = "ledger.sqlite"  # the ledger in a run's own folder
Value = TypeVar("Value")


def with_history(start: Any) -> Released[Any]:
    """A start that the user passed, with its history; a start of unknown origin voids the receipt."""
    if isinstance(start, Released):
        return start
    return non_private(start, "the start is of unknown origin; wrap one that needs nobody's data in privacy.public(…)")


def plan_of(privacy: Privacy, lines: Sequence[Line]) -> Plan | None:
    """The budget shared among the lines; None without lines."""
    return make_plan(privacy.epsilon, privacy.delta, lines, privacy.adjacency) if lines else None


def account_of_rows(privacy: Privacy, client: str, lines: Sequence[Line], seed: int, known: Collection[str]) -> Account:
    """The account of one client's rows (or units of rows): all that is ever released of them is added up under one name.
    `known` are the names of releases that protect the same unit; others would not add up."""
    account = Account.open(replace(privacy, users=f"rows of {privacy.users}{': ' * bool(client)}{client}"), lines, seed)
    other = next((e.name for e in account.ledger.earlier() if e.name not in known), None)
    if other is not None:
        account.ledger.close()
        raise ConfigError(
            f"This ledger holds the release {other!r}, which protects another unit of these rows than "
            f"{privacy.unit!r}; costs per unit do not add up. Name another ledger, or protect the same unit."
        )
    return account


@dataclass
class Account:
    """`plan` is None where the ledger checks each release by itself; `seed` is that of simulated noise."""

    privacy: Privacy
    ledger: Ledger
    plan: Plan | None
    seed: int = 0
    kept: list[Released[Any]] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        privacy: Privacy,
        lines: Sequence[Line],
        seed: int = 0,
        *,
        folder: Path | None = None,
        state: dict[str, Any] | None = None,
    ) -> Account:
        """Reserve the shares of all lines. Without lines the ledger checks each release by itself (one-bit reports are not
        Gaussian). folder: the run's own folder, for the ledger if the user named no file. state: the ledger's state in a
        checkpoint, to go on from there."""
        plan = plan_of(privacy, lines)
        named = privacy.ledger is not None
        own = folder is not None and not named and not privacy.simulated
        if folder is not None and own:
            folder.mkdir(parents=True, exist_ok=True)
            privacy = replace(privacy, ledger=folder / LEDGER)
        # the process that opens a folder's ledger holds the folder: a run that is still open in it was killed
        ledger = (
            Ledger(privacy, plan, named=named, adopt=own) if state is None else Ledger.restore(privacy, state, named)
        )
        return cls(privacy, ledger, plan, seed)

    @cached_property
    def noise(self) -> Noise:
        """The source of noise; exact noise takes no seed."""
        return make_noise(self.privacy.noise, [self.seed, 0x9E37] if self.privacy.simulated else None)

    def book(self, event: Event) -> Booking:
        """Write a release down before its noise is drawn."""
        return self.ledger.book(event)

    def noise_multiplier(self, name: str) -> float:
        """z = σ/Δ of the releases called so; 1 for a run that plans none."""
        return 1.0 if self.plan is None else self.plan.noise_multiplier(name)

    def keep(self, released: Released[Value]) -> Value:
        """Note that a value is given out, and return it."""
        self.kept.append(released)
        return released.value

    def receipt(self, n_users: int, choices: Mapping[str, str], *, guarantee: str = "joint", **more: Any) -> Receipt:
        """The receipt of everything released so far; `more` goes to `write_receipt`."""
        return write_receipt(self.ledger, self.kept, n_users=n_users, choices=choices, guarantee=guarantee, **more)

    def closed(self, n_users: int, choices: Mapping[str, str], **more: Any) -> Receipt:
        """End the run and return its receipt. The budget of planned releases that were not made is free again."""
        self.ledger.close()
        return self.receipt(n_users, choices, **more)
