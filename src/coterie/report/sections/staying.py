"""Would they stay? Gains with intervals, who leaves, which groups would secede, what clients bring."""

from __future__ import annotations

from markupsafe import Markup

from coterie.base.text import listed, number
from coterie.comparison.result import Comparison
from coterie.comparison.verdict import stay_words
from coterie.evidence.participation import Coalition
from coterie.report import figures
from coterie.report.parts import Chart, Table, how_many, row, section

_MOST = 500


def staying(c: Comparison, coalition: Coalition | None = None) -> Markup:
    first = c.participation() if coalition is None else coalition.steps[0]
    if first is None:
        return Markup()
    note = f"A client would leave when the whole {first.settings.level:.0%} interval of its gain is below zero"
    if coalition is not None:
        note += (
            "; the rest is then trained again without it, and groups that would be better off by themselves are tried"
        )
    rows, ends = [], {}
    if coalition is not None:
        found = coalition.found.table
        ends = {c: f"{v} ({sure})" for c, v, sure in zip(found.index, found["verdict"], found["sure"], strict=True)}
    for client, r in first.table.head(_MOST).iterrows():
        cells = row(client, number(r.gain, "+"), f"{number(r.low, '+')} … {number(r.high, '+')}", f"{r.p_worse:.0%}")
        rows.append(cells + row("yes" if r.leaves else "", ends.get(client, "")))
    table = Table(["client", "gain", "interval", "chance of a loss", "leaves", "ends"], rows, caption="Who would stay")
    return section(
        f"Would they stay with {c.best}?", f"{note}.", text=stay_words(c, coalition), charts=_charts(coalition),
        items=_secession(coalition), table=table, folded=how_many(rows, first.table),
    )  # fmt: skip


def _charts(coalition: Coalition | None) -> list[Chart]:
    made = None if coalition is None else figures.gets_and_brings(coalition.found.table)
    if made is None:
        return []
    alt = "What each client brings to the others (across) and gets (up), by group."
    return [Chart(made[0], alt, made[1], "contribution", "What clients get and bring")]


def _secession(coalition: Coalition | None) -> list[str]:
    if coalition is None:
        return []
    seceding = coalition.found.seceding
    told = [f"Would rather found their own group: {listed(group, 12)}." for group in seceding]
    return told or [f"Secession: none of the {coalition.found.tried} groups that were trained would leave together."]
