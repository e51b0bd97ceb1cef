"""Which rows and clients of a table take part; rows and clients that are left out are counted and named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.checks import shown
from coterie.errors import ConfigError, DataError

_NAMED = 5
_MERGE = ("Merge them with same_clients=True.", "Merge them with --same-clients.")


@dataclass(frozen=True)
class Note:
    """A remark on the data, with advice in the words of Python and of the command line."""

    text: str
    python: str = ""
    cli: str = ""

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, *, cli: bool = False) -> str:
        return f"{self.text} {self.cli if cli else self.python}".strip()


def choose_rows(
    frame: pd.DataFrame,
    client: str,
    target: str,
    *,
    drop_missing: bool = False,
    min_rows: int = 1,
    same_clients: bool = False,
    alone: bool = False,
) -> tuple[pd.DataFrame, list[Note]]:
    """The rows that take part, and a sentence for everything that was changed or looks odd.

    `drop_missing` drops rows without a client or a target, `min_rows` leaves out clients with fewer rows (counted
    after that), `same_clients` takes ids that differ only by case or blank space for one client.
    `alone` allows a table with a single client: a site's own.
    """
    if isinstance(min_rows, bool) or not isinstance(min_rows, int) or min_rows < 1:
        raise ConfigError(f"min_rows must be a whole number from 1; got {min_rows!r}.")
    notes: list[Note] = []
    if drop_missing:
        frame = _without_missing(frame, client, target, notes)
    frame = _with_same_clients(frame, client, same_clients, notes)
    if min_rows > 1:
        frame = _with_enough_rows(frame, client, min_rows, notes)
    if not alone:
        _refuse_too_few(frame[client], may_lower=min_rows > 1)
    notes += _odd_clients(frame[client])
    return frame, notes


def _without_missing(frame: pd.DataFrame, client: str, target: str, notes: list[Note]) -> pd.DataFrame:
    no_client, no_target = (pd.isna(frame[c]).to_numpy() for c in (client, target))
    dropped = no_client | no_target
    if not dropped.any():
        return frame
    if dropped.all():
        raise DataError(
            f"Every row lacks the client {client!r} or the target {target!r}; nothing is left. Name other columns."
        )
    why = [f"{n.sum()} without {c!r}" for n, c in ((no_client, client), (no_target, target)) if n.any()]
    notes.append(Note(f"Dropped {dropped.sum()} of {len(frame)} rows: {', '.join(why)}."))
    return frame[~dropped]


def _with_same_clients(frame: pd.DataFrame, client: str, merge: bool, notes: list[Note]) -> pd.DataFrame:
    alike = _spelt_alike(frame[client])
    if not alike:
        return frame
    some = "; ".join(", ".join(map(shown, names)) for names in alike[:_NAMED]) + ("; …" if len(alike) > _NAMED else "")
    if not merge:
        notes.append(Note(f"Separate clients that differ only by case or blank space: {some}.", *_MERGE))
        return frame
    first = {name: names[0].strip() for names in alike for name in names}
    notes.append(Note(f"Taken for one client each: {some}."))
    return frame.assign(**{client: frame[client].astype("object").map(lambda v: first.get(v, v))})


def _spelt_alike(ids: pd.Series[Any]) -> list[list[str]]:
    """Groups of distinct text ids that are the same after stripping and case folding."""
    groups: dict[str, list[str]] = {}
    for name in pd.unique(ids.dropna()):
        if isinstance(name, str):
            groups.setdefault(" ".join(name.split()).casefold(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _with_enough_rows(frame: pd.DataFrame, client: str, least: int, notes: list[Note]) -> pd.DataFrame:
    counts = frame[client].value_counts(sort=False)
    few = counts.index[counts < least]
    if not len(few):
        return frame
    if len(few) == len(counts):
        raise DataError(
            f"No client has {least} rows; the largest has {counts.max()}.",
            python="Lower min_rows.",
            cli="Lower --min-rows.",
        )
    some = ", ".join(shown(c) for c in few[:_NAMED]) + (", …" if len(few) > _NAMED else "")
    clients = "client" if len(few) == 1 else "clients"
    notes.append(Note(f"Left out {len(few)} {clients} with fewer than {least} rows: {some}."))
    return frame[~frame[client].isin(few)]


def _refuse_too_few(ids: pd.Series[Any], *, may_lower: bool) -> None:
    """One client has nobody to learn with; one row per client leaves nothing to learn from or to test on."""
    counts = ids.value_counts(sort=False)
    if len(counts) == 1:
        raise DataError(
            f"Learning together needs at least two clients; column {ids.name!r} holds only {shown(counts.index[0])}.",
            python="Name another client column" + (", or lower min_rows." if may_lower else "."),
            cli="Name another column with --client" + (", or lower --min-rows." if may_lower else "."),
        )
    if len(counts) and int(np.max(counts.to_numpy())) == 1:
        raise DataError(
            f"Every client has a single row: column {ids.name!r} is different in all {len(counts)} rows, so it names "
            "rows, not clients.",
            python="Name a client column whose values repeat.",
            cli="Name a column whose values repeat with --client.",
        )


def _odd_clients(ids: pd.Series[Any]) -> list[Note]:
    """Numbers that differ only by leading zeros, and clients with a single row."""
    counts = ids.value_counts(sort=False)
    notes: list[Note] = []
    digits = [c for c in counts.index if isinstance(c, str) and c.isdecimal()]
    short = pd.Series({c: c.lstrip("0") or "0" for c in digits}, dtype="str")
    twice = short[short.duplicated(keep=False)].index.tolist()
    if twice:
        some = ", ".join(map(shown, twice[:_NAMED])) + (", …" if len(twice) > _NAMED else "")
        notes.append(Note(f"Separate clients that differ only by leading zeros: {some}."))
    single = int((counts == 1).sum())
    if single:
        clients = "1 client has" if single == 1 else f"{single} clients have"
        notes.append(
            Note(
                f"{clients} a single row and cannot be tested.",
                "Leave them out with min_rows=2.",
                "Leave them out with --min-rows 2.",
            )
        )
    return notes
