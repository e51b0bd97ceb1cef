"""Before training: which columns are used, which are ignored, and which are suspicious, each with the reason.

| found | role |
|---|---|
| row numbers, identifiers, dates and times, free text, constant columns, copies of another column | ignored |
| a copy of the target, or a column from which the target follows | suspicious, and left out |
| the same value in all rows of each client | used, with a note |
| all others | used |

A column named by the user (`features`) is always used; the reason then becomes a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from coterie.data.lookalikes import Columns, duplicates, has_leading_zeros, leak, useless
from coterie.data.rows import Note

__all__ = ["ColumnReport", "inspect_columns"]

Role = Literal["used", "ignored", "suspicious"]
_CONSTANT_IN_CLIENTS = "the same in all rows of each client: it can tell clients apart, not rows"


@dataclass(frozen=True, eq=False)
class ColumnReport:
    """One row per column in `table` (column, role, why), and remarks on rows and clients in `notes`. ``suspects`` names the
    columns that look like a unit or a time and about which nobody has said anything (`repeated`)."""

    table: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())
    suspects: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def chosen(cls, columns: Sequence[Any], used: Sequence[Any]) -> ColumnReport:
        """The report on columns that the user chose, without reading their values."""
        rows = [(c, *(("used", "") if c in used else ("ignored", "not among the features you named"))) for c in columns]
        return cls(pd.DataFrame(rows, columns=["column", "role", "why"]))

    def having(self, role: Role) -> list[Any]:
        """The columns with a role, in the order of the table."""
        return self.table.loc[self.table["role"] == role, "column"].tolist()

    @property
    def used(self) -> list[Any]:
        return self.having("used")

    @property
    def ignored(self) -> list[Any]:
        return self.having("ignored")

    @property
    def suspicious(self) -> list[Any]:
        return self.having("suspicious")

    def reasons(self, roles: Sequence[Role]) -> dict[Any, str]:
        """{column: why} of the columns with one of the roles."""
        some = self.table[self.table["role"].isin(list(roles))]
        return dict(zip(some["column"], some["why"], strict=True))

    def lines(self, *, cli: bool = False) -> list[str]:
        """The lines to print before training: one per role, one per reason, one per note."""
        shown = [f"used: {_list(self.used) or 'nothing'}"]
        for role in ("used", "ignored", "suspicious"):
            start = "  " if role == "used" else f"{role}: "
            for why, group in self._explained(role).groupby("why", sort=False):
                shown.append(f"{start}{_list(group['column'].tolist())} ({why})")
        if any("you" not in why for why in self.reasons(["ignored", "suspicious"]).values()):
            shown.append("To use one anyway, name every feature " + ("with --features." if cli else "in features."))
        return shown + [f"Note: {note.sentence(cli=cli)}" for note in self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def without(self, reasons: dict[str, str]) -> ColumnReport:
        """The same report with more columns ignored, by name."""
        table = self.table.copy()
        late = table["column"].map(str).isin(list(reasons)) & (table["role"] == "used")
        table.loc[late, "why"] = table.loc[late, "column"].map(str).map(reasons)
        table.loc[late, "role"] = "ignored"
        return replace(self, table=table)

    def to_json(self) -> dict[str, Any]:
        table = self.table.assign(column=self.table["column"].map(str))
        return {"columns": table.to_dict("records"), "notes": [[n.text, n.python, n.cli] for n in self.notes]} | (
            {"suspects": dict(self.suspects)} if self.suspects else {}
        )

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> ColumnReport:
        table = pd.DataFrame(saved["columns"], columns=["column", "role", "why"])
        return cls(table, tuple(Note(*note) for note in saved["notes"]), saved.get("suspects", {}))

    def _explained(self, role: str) -> pd.DataFrame:
        return self.table[(self.table["role"] == role) & (self.table["why"] != "")]


def inspect_columns(
    frame: pd.DataFrame,
    client: str,
    target: str,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    *,
    cluster: str | None = None,
) -> ColumnReport:
    """Judge every column except client, target and cluster by the table at the top."""
    wanted = [c for c in frame.columns if c not in (client, target, cluster)]
    free = [c for c in wanted if c not in set(exclude) and (features is None or c in set(features))]
    look = Columns(frame, client, target)
    found: dict[Any, tuple[Role, str]] = {}
    for column in free:
        values = frame[column]
        if why := useless(values, look):
            found[column] = ("ignored", why)
        elif why := leak(values, look):
            found[column] = ("suspicious", why)
        else:
            found[column] = ("used", _remark(values, look))
    for column, other in duplicates(frame[[c for c in free if found[c][0] == "used"]]).items():
        found[column] = ("ignored", f"a copy of {other!r}")
    if features is not None:
        found = {
            c: ("used", f"named by you, though {why}" if role != "used" else why) for c, (role, why) in found.items()
        }
    left = {c: "excluded by name" if c in set(exclude) else "not among the features you named" for c in wanted}
    rows = [(c, *found.get(c, ("ignored", left[c]))) for c in wanted]
    return ColumnReport(pd.DataFrame(rows, columns=["column", "role", "why"]))


def _remark(values: pd.Series[Any], look: Columns) -> str:
    codes = ["codes with leading zeros, used as categories"] if has_leading_zeros(values) else []
    return "; ".join([*codes, *([_CONSTANT_IN_CLIENTS] if look.constant_in_clients(values) else [])])


def _list(columns: Sequence[Any]) -> str:
    return ", ".join(map(str, columns[:20])) + (f", … ({len(columns)} in all)" if len(columns) > 20 else "")
