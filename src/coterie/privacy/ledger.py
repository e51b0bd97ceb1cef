"""The ledger adds up the releases about the same users, and refuses a release that would overspend the budget.

A release is booked *before* its noise is drawn. If the process dies in between, the release stays booked. The budget may
thus be charged for a release that nobody saw, but no release goes uncharged.

    ledger = Ledger(Privacy(3, 1e-6, clip=1.0, ledger="budget.sqlite"), make_plan(3, 1e-6, [Line("rounds", 1, 50)]))
    mechanism = JointSum("rounds", 10, 1.0, ledger.plan.noise_multiplier("rounds"))
    released = mechanism(rows, ExactNoise(), ledger.book)
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.base.annotations import guarded
from coterie.errors import ConfigError, CoterieError
from coterie.privacy.accounting import Composition, compose
from coterie.privacy.events import Event
from coterie.privacy.plan import Plan
from coterie.privacy.settings import Privacy
from coterie.privacy.signing import seal
from coterie.privacy.store import LedgerError, Store, add, realised, spent, unbooked
from coterie.privacy.taint import Booking

__all__ = ["BudgetSpent", "Ledger", "LedgerError", "adopt"]


class BudgetSpent(CoterieError, RuntimeError):
    """The next release would cost more than the budget. It was not made; earlier releases stay valid."""


@guarded
class Ledger:
    """One run's page in the book of its users.

    With a ``plan`` the whole plan is reserved when the ledger opens, so that two runs at the same time cannot both count on
    the same budget; releases of the plan are then booked without new accounting. ``close`` gives back what was not used.
    ``named=False`` says that the user did not choose the file: it holds this run, and may not hold all others."""

    def __init__(
        self,
        privacy: Privacy,
        plan: Plan | None = None,
        run: str | None = None,
        named: bool = True,
        *,
        adopt: bool = False,
    ) -> None:
        """adopt: take over the page of a run that died after it had reserved its plan and before it booked anything.
        Otherwise its reservation would hold the budget forever. If that run is still alive, both share one reservation."""
        self.privacy, self.plan = privacy, plan
        self._named = named
        self.run = run or uuid.uuid4().hex
        path = None if privacy.ledger is None or privacy.simulated else Path(privacy.ledger)
        if plan is not None and (plan.adjacency != privacy.adjacency or plan.delta > privacy.delta):
            raise ConfigError(
                "the plan must have the adjacency of the budget and no larger delta; make it from the budget."
            )
        self._store = Store(path)
        self._taint: list[str] = []
        self._ticket, self._before = "0", "0"
        if self._store.moved:
            self.void(
                f"unaccounted: this ledger was copied or moved to {path}, so another copy may have booked other releases; "
                f"if this is the only copy in use, call `coterie privacy adopt {path}`"
            )
        with self._store.transaction() as db:
            self.run = (unbooked(db, privacy.users) if adopt else None) or self.run
            self._enter(db)

    @property
    def id(self) -> str:
        """The identity of the book (of the file, if there is one)."""
        return self._store.ledger

    @property
    def durable(self) -> bool:
        """Whether bookings survive this process."""
        return self._store.path is not None

    @property
    def scope(self) -> str:
        """The runs that the ledger covers, as a part of a sentence."""
        if not self.durable:
            return "this run alone: no ledger file was named, so other runs on the same users are not known"
        if not self._named:
            return "this run alone: no ledger was named that counts all runs on the same users"
        since = f"all runs on {self.privacy.users!r} since {self._store.created} UTC in the ledger {self._store.path}"
        return f"{since}, which was {self._store.adopted}" if self._store.adopted else since

    @property
    def named(self) -> bool:
        """Whether the user named the file, so that it covers all runs that used it."""
        return self.durable and self._named

    def signed(self, text: bytes) -> dict[str, Any]:
        """A signature over a text and over all bookings until now."""
        head = {"ledger": self.id, "file": None, "bookings": 0, "head": "", "mac": ""}
        if self._store.path is not None:
            with self._store.transaction() as db:
                bookings, last = self._store.verify(db)
            head |= {"file": str(self._store.path.resolve()), "bookings": bookings, "head": last}
        return seal(text, head, self._store.key())

    @property
    def taint(self) -> tuple[str, ...]:
        """The reasons why this run cannot get a valid receipt."""
        return tuple(self._taint)

    def void(self, reason: str) -> None:
        """Note a step that touched data without being accounted; the run's receipt will not be valid."""
        if reason not in self._taint:
            self._taint.append(reason)

    def _enter(self, db: sqlite3.Connection) -> None:
        """Open the run's page, or find it again, and reserve the plan."""
        users, adjacency = self.privacy.users, self.privacy.adjacency
        for (other,) in db.execute("SELECT DISTINCT adjacency FROM runs WHERE users = ?", (users,)).fetchall():
            if other != adjacency:
                raise ConfigError(
                    f"the users {users!r} have a ledger for {other!r} adjacency, got {adjacency!r}; use the same one."
                )
        found = db.execute("SELECT users, plan FROM runs WHERE run = ?", (self.run,)).fetchone()
        if found is not None:
            if found[0] != users:
                raise ConfigError(
                    f"the run {self.run!r} belongs to the users {found[0]!r}, got {users!r}; use that name."
                )
            if found[1] is not None and (self.plan is None or self.plan.to_json() == found[1]):
                self.plan = Plan.from_json(found[1])
                db.execute("UPDATE runs SET closed = NULL WHERE run = ?", (self.run,))
                self._check(db, (), what="the rest of the plan")
                return
        if self.plan is not None:
            self._check(db, (), what="the plan")
        plan = None if self.plan is None else self.plan.to_json()
        db.execute(
            "INSERT INTO runs (run, users, adjacency, plan) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (run) DO UPDATE SET plan = excluded.plan, closed = NULL",
            (self.run, users, adjacency, plan),
        )

    def _reserved(self, db: sqlite3.Connection, run: str | None) -> list[Event]:
        """The releases that open runs (all other runs, or no runs if ``run`` is None) have planned and not made."""
        rows = db.execute(
            "SELECT run, plan FROM runs WHERE users = ? AND run != ? AND closed IS NULL AND plan IS NOT NULL",
            (self.privacy.users, run or ""),
        ).fetchall()
        return [event for name, text in rows for event in Plan.from_json(text).left(realised(db, name))]

    def _own(self, db: sqlite3.Connection) -> list[Event]:
        """This run's bookings and the rest of its plan."""
        done = spent(db, self.privacy.users, self.run)
        return done + ([] if self.plan is None or self._closed(db) else self.plan.left(realised(db, self.run)))

    def _closed(self, db: sqlite3.Connection) -> bool:
        """Whether the run has ended, and others may have the budget that it had reserved."""
        found = db.execute("SELECT closed FROM runs WHERE run = ?", (self.run,)).fetchone()
        return found is not None and found[0] is not None

    def _check(self, db: sqlite3.Connection, more: Sequence[Event], what: str) -> None:
        """Raise ``BudgetSpent`` if this run, or all runs on these users together, would cost too much with ``more``."""
        own = [*self._own(db), *more]
        others = spent(db, self.privacy.users, self.run, other=True) + self._reserved(db, self.run)
        slack = self._unused_reserve(db)
        for events, limit, whose in (
            (own, self.privacy.epsilon, "this run"),
            (own + others, self.privacy.total, "all runs"),
        ):
            costs = compose(events)
            cost = replace(costs, slack=costs.slack + slack).epsilon(self.privacy.delta)
            if cost > limit:
                raise BudgetSpent(
                    f"{what} was refused: with it, {whose} on {self.privacy.users!r} would cost ε = {cost:.6g} at "
                    f"δ = {self.privacy.delta:g}, and the budget is {limit:g}; stop here, add noise, or raise the budget."
                )

    def _unused_reserve(self, db: sqlite3.Connection) -> float:
        """The part of the plan's reserve for the lattice that no booking has used."""
        (used,) = db.execute("SELECT TOTAL(slack) FROM releases WHERE run = ?", (self.run,)).fetchone()
        return 0.0 if self.plan is None else max(0.0, self.plan.reserve - float(used))

    @guarded
    def book(self, event: Event) -> Booking:
        """Write the release down, durably, or raise ``BudgetSpent``. Call it before noise is drawn: mechanisms do."""
        if event.noise != self.privacy.noise:
            raise ConfigError(
                f"the budget is for {self.privacy.noise} noise, the release used {event.noise}; use the same."
            )
        if self.privacy.adjacency == "replace" and event.adjacency != "replace":
            raise ConfigError(
                f"the release {event.name!r} has the Δ of zero-out, the budget is for replace; use replace."
            )
        users = self.privacy.users
        with self._store.transaction() as db:
            if not self._planned(db, event):
                self._check(db, [event], what=f"the release {event.name!r}")
            number = add(db, self.run, users, event)
        return Booking(event, self.id, number)

    def _planned(self, db: sqlite3.Connection, event: Event) -> bool:
        """Whether the reservation already covers the event, including the cost of the lattice."""
        if self.plan is None or self._closed(db):
            return False
        done = realised(db, self.run).get(event.name, 0)
        return self.plan.covers(event, done) and event.slack * event.count <= self._unused_reserve(db)

    def events(self) -> list[Event]:
        """The releases of this run; equal releases are joined."""
        with self._store.transaction() as db:
            return spent(db, self.privacy.users, self.run)

    def earlier(self) -> list[Event]:
        """The releases of all other runs on the same users."""
        with self._store.transaction() as db:
            return spent(db, self.privacy.users, self.run, other=True)

    def numbers(self, *, everyone: bool = False) -> set[int]:
        """The numbers of this run's bookings; with ``everyone`` those of all runs on these users."""
        column, value = ("users", self.privacy.users) if everyone else ("run", self.run)
        with self._store.transaction() as db:
            return {int(n) for (n,) in db.execute(f"SELECT number FROM releases WHERE {column} = ?", (value,))}

    def unpaid(self, bookings: Iterable[Booking]) -> list[str]:
        """Why a run that is made of released values gets no receipt: this ledger does not count what they cost."""
        known = self.numbers(everyone=True)
        return [
            f"unaccounted: a part of this run comes from the release {booking.event.name!r}, which its ledger does not "
            "hold; name one ledger file for both"
            for booking in bookings
            if booking.ledger != self.id or booking.number not in known
        ]

    def costs(self) -> Composition:
        """The cost of this run so far."""
        return compose(self.events())

    def close(self) -> None:
        """End the run; the budget of planned releases that were not made is free again."""
        with self._store.transaction() as db:
            db.execute("UPDATE runs SET closed = CURRENT_TIMESTAMP WHERE run = ?", (self.run,))

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs, as plain JSON values."""
        return {
            "ledger": self.id,
            "run": self.run,
            "durable": self.durable,
            "plan": None if self.plan is None else self.plan.to_json(),
            "events": [event.to_json() for event in self.events()],
            "taint": list(self._taint),
            "ticket": self._ticket,
            "before": self._before,
        }

    def settle(self) -> None:
        """Note, after a checkpoint was written, that only this checkpoint and later ones may continue the run."""
        with self._store.transaction() as db:
            db.execute("UPDATE runs SET ticket = ? WHERE run = ?", (self._ticket, self.run))
        self._before = self._ticket

    def _resume(self, state: dict[str, Any]) -> None:
        """Take the next ticket, or refuse a checkpoint whose run was already continued from another copy of its folder.

        A ticket is the number of resumes and a random text. A checkpoint is written with the new ticket and the old one
        before the new one is written to the ledger. After a crash the ledger holds one of the two, so the run can go on."""
        with self._store.transaction() as db:
            now = str(db.execute("SELECT ticket FROM runs WHERE run = ?", (self.run,)).fetchone()[0])
        if now not in (state["ticket"], state["before"]):
            raise LedgerError(
                f"this checkpoint is behind its ledger {self._store.path}: the run was resumed from another copy of its "
                f"folder (resume {now.partition('-')[0]}); go on with that copy, or start a new run with its own budget."
            )
        self._before, self._ticket = now, f"{int(now.partition('-')[0]) + 1}-{uuid.uuid4().hex}"

    @classmethod
    def restore(cls, privacy: Privacy, state: dict[str, Any], named: bool = True) -> Ledger:
        """The ledger of a run that was interrupted.

        The file counts: it may hold releases that the checkpoint does not know. Without a file, releases between the
        checkpoint and the interruption are unknown, so an exact run can no longer get a valid receipt."""
        plan = None if state["plan"] is None else Plan.from_json(state["plan"])
        if "ticket" not in state:
            raise LedgerError("the checkpoint is of an older version, without a ticket of its ledger; start a new run.")
        if privacy.ledger is not None and state["durable"] and not Path(privacy.ledger).exists():
            raise LedgerError(
                f"{privacy.ledger} is not there, and this checkpoint's releases are in it; bring it back."
            )
        ledger = cls(privacy, plan, state["run"], named)
        for reason in state["taint"]:
            ledger.void(reason)
        saved = [Event.from_json(text) for text in state["events"]]
        if ledger.durable:
            if ledger.id != state["ledger"] or _total(ledger.events()) < _total(saved):
                raise LedgerError(
                    f"{privacy.ledger} does not hold the releases of this checkpoint; use the run's own file."
                )
            ledger._resume(state)
            return ledger
        for event in saved:
            ledger.book(event)
        if not privacy.simulated:
            ledger.void("unaccounted: resumed without a ledger file; releases after the checkpoint are not known")
        return ledger


@guarded
def adopt(file: str | Path) -> str:
    """Declare that a ledger that was copied or moved is the only copy in use. Returns a sentence that says what was done."""
    file = Path(file)
    if not file.is_file():
        raise LedgerError(f"there is no ledger {file}; name the file that was copied or moved.")
    store = Store(file)
    if not store.moved:
        return f"The ledger {file} is where it was made; there is nothing to adopt."
    store.adopt()
    return f"The ledger {file} was {store.adopted}."


def _total(events: Iterable[Event]) -> int:
    return sum(event.count for event in events)
