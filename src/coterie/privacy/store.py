"""The ledger's file: SQLite, one transaction per booking, safe under concurrent writers and sudden death.

Every writer takes the write lock first (BEGIN IMMEDIATE), reads what was spent, decides, writes, and commits with a full
flush to the disk. A committed booking survives kill -9; an uncommitted one never existed.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import CoterieError
from coterie.privacy.events import Event

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, users TEXT NOT NULL, adjacency TEXT NOT NULL, plan TEXT,
       opened TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, closed TEXT)""",
    """CREATE TABLE IF NOT EXISTS releases (number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL,
       users TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, slack REAL NOT NULL, event TEXT NOT NULL,
       at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
    "CREATE INDEX IF NOT EXISTS by_users ON releases (users, run, name)",
)


class LedgerError(CoterieError, RuntimeError):
    """The ledger's file cannot be read or written; nothing was released."""


class Store:
    """A file, or memory if the path is None."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory = self._open() if path is None else None
        with self.transaction() as db:
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute("INSERT OR IGNORE INTO meta VALUES ('ledger', ?)", (uuid.uuid4().hex,))
            self.ledger = str(db.execute("SELECT value FROM meta WHERE name = 'ledger'").fetchone()[0])

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(":memory:" if self.path is None else self.path, timeout=60, isolation_level=None)
        db.execute("PRAGMA synchronous = FULL")
        return db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The write lock, from before the first read until the commit. An exception undoes everything."""
        try:
            db = self._memory if self._memory is not None else self._open()
            try:
                db.execute("BEGIN IMMEDIATE")
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


def spent(db: sqlite3.Connection, users: str, run: str | None = None, *, other: bool = False) -> list[Event]:
    """Everything booked for the users, equal releases joined; of one run only, or (``other``) of all but that run."""
    where = "" if run is None else (" AND run != ?" if other else " AND run = ?")
    rows = db.execute(
        f"SELECT event, SUM(count), MIN(number) FROM releases WHERE users = ?{where} GROUP BY event ORDER BY 3",
        (users,) if run is None else (users, run),
    )
    return [_with_count(Event.from_json(text), int(count)) for text, count, _ in rows.fetchall()]


def _with_count(event: Event, count: int) -> Event:
    from dataclasses import replace

    return replace(event, count=count)


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
