"""The ledger's file: SQLite, one transaction per booking, safe under concurrent writers and sudden death.

Every writer takes the write lock first (BEGIN IMMEDIATE), reads what was spent, decides, writes, and commits with a full
flush to the disk. A committed booking survives kill -9; an uncommitted one never existed.

Bookings are a chain: each row holds the hash of the row before it and of its own content, and the end of the chain is kept
too, so that a row that was changed, removed or moved is found when the file is opened. The file also holds its own place
(it knows when it was copied or moved) and the key that receipts are signed with; it is open to its owner alone.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.base.disk import private_file, unlinked
from coterie.errors import CoterieError
from coterie.privacy.events import Event

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, users TEXT NOT NULL, adjacency TEXT NOT NULL, plan TEXT,
       opened TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, closed TEXT, ticket TEXT NOT NULL DEFAULT '0')""",
    """CREATE TABLE IF NOT EXISTS releases (number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL,
       users TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, slack REAL NOT NULL, event TEXT NOT NULL,
       at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, chain TEXT NOT NULL DEFAULT '')""",
    "CREATE INDEX IF NOT EXISTS by_users ON releases (users, run, name)",
)
_TABLES = (
    "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name IN ('meta', 'runs', 'releases') "
    "AND sql LIKE 'CREATE TABLE%'"
)
_ROW = "number, run, users, name, count, slack, event, at"


class LedgerError(CoterieError, RuntimeError):
    """The ledger's file cannot be read or written; nothing was released."""


class Store:
    """A file, or memory if the path is None. look: the file is only read and never changed, even if it is not a ledger; for
    a file that somebody else named."""

    def __init__(self, path: Path | None, *, look: bool = False) -> None:
        self.path = path if path is None or look else private_file(path)
        self.look = look
        self._memory = self._open() if path is None else None
        with self.transaction() as db:
            for statement in () if look else _SCHEMA:
                db.execute(statement)
            odd = look and db.execute(_TABLES).fetchone()[0] != 3  # a view may go on for ever
            if odd or get(db, "ledger") is None:
                if look:
                    raise LedgerError(f"{self.path} is not a ledger; name the file that the receipt's run used.")
                if db.execute("SELECT COUNT(*) FROM releases").fetchone()[0]:
                    raise LedgerError(f"the ledger {self.path} has bookings and no name of its own; it was changed.")
                created = db.execute("SELECT CURRENT_TIMESTAMP").fetchone()[0]
                new = {"ledger": uuid.uuid4().hex, "key": secrets.token_hex(32), "created": created, "end": "0:"}
                for name, value in (new | {"place": self.place()}).items():
                    put(db, name, value)
            self.ledger = str(get(db, "ledger"))
            self.bookings, self.head = self.verify(db)
            self.created, self.adopted = str(get(db, "created")), get(db, "adopted") or ""
            self.moved = get(db, "place") != self.place()

    def place(self) -> str:
        """Where the file is: its real path and its number on the disk. A copy has another number, a moved file another path.
        (The number of the disk itself changes when a machine starts again, so it is left out.)"""
        return "memory" if self.path is None else json.dumps([str(self.path.resolve()), self.path.stat().st_ino])

    def adopt(self) -> None:
        """Declare the file the only copy in use, after it was copied or moved; receipts will say so."""
        with self.transaction() as db:
            was = json.loads(get(db, "place") or "[null]")[0]
            today = db.execute("SELECT CURRENT_DATE").fetchone()[0]
            self.adopted = f"adopted on {today} after it was copied or moved from {was}"
            put(db, "adopted", self.adopted)
            put(db, "place", self.place())
            self.moved = False

    def verify(self, db: sqlite3.Connection) -> tuple[int, str]:
        """(the number of bookings, the hash of the last); a broken chain is refused."""
        try:
            rows = db.execute(f"SELECT {_ROW}, chain FROM releases ORDER BY number").fetchall()
            db.execute("SELECT ticket FROM runs LIMIT 1")
        except sqlite3.OperationalError as error:
            raise LedgerError(
                f"the ledger {self.path} is of an older version, without a chain of hashes; name a new file, and count "
                "what the old one holds by hand."
            ) from error
        head = self.ledger
        for *row, chain in rows:
            head = link(head, row)
            if head != chain:
                raise LedgerError(
                    f"the ledger {self.path} was changed after it was written: booking {row[0]} does not fit the one before "
                    "it; use an unchanged copy."
                )
        if get(db, "end") != f"{len(rows)}:{head if rows else ''}":
            raise LedgerError(
                f"the ledger {self.path} was changed after it was written: its last bookings are missing; use an unchanged "
                "copy."
            )
        return len(rows), head

    def at(self, bookings: int) -> str:
        """The hash of the chain after a number of bookings; empty if there are fewer."""
        with self.transaction() as db:
            count, head = self.verify(db)
            if bookings in (0, count):
                return self.ledger if bookings == 0 else head
            found = db.execute(
                "SELECT chain FROM releases ORDER BY number LIMIT 1 OFFSET ?", (bookings - 1,)
            ).fetchone()
            return "" if found is None else str(found[0])

    def key(self) -> bytes:
        """The key that receipts are signed with."""
        with self.transaction() as db:
            return bytes.fromhex(get(db, "key") or "")

    def _open(self) -> sqlite3.Connection:
        where = ":memory:" if self.path is None else str(self.path)
        if self.look and self.path is not None:
            where = f"{unlinked(self.path).resolve().as_uri()}?mode=ro"
        db = sqlite3.connect(where, timeout=60, isolation_level=None, uri=self.look)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA trusted_schema = OFF")
        return db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The write lock, from before the first read until the commit. An exception undoes everything."""
        try:
            db = self._memory if self._memory is not None else self._open()
            try:
                db.execute("BEGIN" if self.look else "BEGIN IMMEDIATE")
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            finally:
                if self._memory is None:
                    db.close()
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self.path} cannot be used ({error}); nothing was released.") from error


def get(db: sqlite3.Connection, name: str) -> str | None:
    """A fact about the ledger itself."""
    found = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def put(db: sqlite3.Connection, name: str, value: str) -> None:
    """Write a fact about the ledger down."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def link(before: str, row: Sequence[Any]) -> str:
    """The hash of a booking and of everything before it."""
    return hashlib.sha256(f"{before}\n{json.dumps(list(row))}".encode()).hexdigest()


def add(db: sqlite3.Connection, run: str, users: str, event: Event) -> int:
    """Append a booking to the chain; its number."""
    count, _, head = str(get(db, "end")).partition(":")
    cursor = db.execute(
        "INSERT INTO releases (run, users, name, count, slack, event) VALUES (?, ?, ?, ?, ?, ?)",
        (run, users, event.name, event.count, event.slack * event.count, replace(event, count=1).to_json()),
    )
    number = int(cursor.lastrowid or 0)
    row = db.execute(f"SELECT {_ROW} FROM releases WHERE number = ?", (number,)).fetchone()
    chain = link(head or str(get(db, "ledger")), row)
    db.execute("UPDATE releases SET chain = ? WHERE number = ?", (chain, number))
    put(db, "end", f"{int(count) + 1}:{chain}")
    return number


def spent(db: sqlite3.Connection, users: str, run: str | None = None, *, other: bool = False) -> list[Event]:
    """Everything booked for the users, equal releases joined; of one run only, or (``other``) of all but that run."""
    where = "" if run is None else (" AND run != ?" if other else " AND run = ?")
    rows = db.execute(
        f"SELECT event, SUM(count), MIN(number) FROM releases WHERE users = ?{where} GROUP BY event ORDER BY 3",
        (users,) if run is None else (users, run),
    )
    return [replace(Event.from_json(text), count=int(count)) for text, count, _ in rows.fetchall()]


def realised(db: sqlite3.Connection, run: str) -> dict[str, int]:
    """How many releases of each name a run has booked."""
    rows = db.execute("SELECT name, SUM(count) FROM releases WHERE run = ? GROUP BY name", (run,))
    return {str(name): int(count) for name, count in rows.fetchall()}


def unbooked(db: sqlite3.Connection, users: str) -> str | None:
    """An open run on the users that has reserved a plan and booked nothing."""
    row = db.execute(
        "SELECT run FROM runs WHERE users = ? AND closed IS NULL AND plan IS NOT NULL "
        "AND run NOT IN (SELECT run FROM releases) ORDER BY opened",
        (users,),
    ).fetchone()
    return None if row is None else str(row[0])
