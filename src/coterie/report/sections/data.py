"""The clients' data, and what became of the table's columns."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from coterie.comparison.result import Comparison
from coterie.data.columns import ColumnReport, Role
from coterie.report import figures
from coterie.report.parts import Chart, Table, how_many, row, section

_MOST = 500


def data(c: Comparison) -> Markup:
    if not len(c.overview.columns):
        return Markup()
    made = figures.target_bars(c)
    rows = [
        row(client, *(_number(v) for v in values))
        for client, values in zip(c.overview.index, c.overview.to_numpy(object), strict=True)
    ]
    note = (
        "Rows of each client in the first split; clients that differ much here are the ones a shared model may not fit."
    )
    table = Table(["client", *(str(x) for x in c.overview.columns)], rows[:_MOST], caption="The clients' data")
    alt = "Shares of the classes, or the mean of the target, by client; the table below has the numbers."
    charts = [] if made is None else [Chart(made[0], alt, made[1], "targets", "The target by client")]
    return section("The data", note, charts=charts, table=table, folded=how_many(table.rows, rows))


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.2f}" if isinstance(value, float) and value % 1 else f"{value:.0f}"


def columns(c: Comparison) -> Markup:
    """Used, ignored and suspicious columns, each with the reason, and what was done to the rows."""
    if not c.about.get("notes"):
        return Markup()
    report = ColumnReport.from_json(c.about["notes"])
    roles: tuple[Role, ...] = ("used", "suspicious", "ignored")
    rows = [
        row(role, ", ".join(str(x) for x in group["column"]), why)
        for role in roles
        for why, group in report.table[report.table["role"] == role].groupby("why", sort=False)
    ]
    note = ", ".join(f"{len(report.having(role))} {role}" for role in roles if report.having(role)) + "."
    table = Table(["role", "columns", "why"], rows, "text", "Columns")
    return section("Columns", note.capitalize(), table=table, items=[note.sentence() for note in report.notes])
