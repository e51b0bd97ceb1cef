"""Who gains and who loses: a dot and an interval per client, searchable, and the table of every score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from coterie.base.text import method_label, metric_name, number, one_line, sentence_case
from coterie.comparison.result import Comparison
from coterie.evidence.gains import GAINS, LOSES, MARKS, NO_SCORE
from coterie.report import figures
from coterie.report.parts import Cell, Table, as_json, render, section

_DOTS = 2_000  # clients in the figure; of more every so many along the gains
_ROWS = 200  # rows of the table at a time; the search finds the others
_HOW = (
    "drawn with its interval, corrected for looking at many clients. ▲ measurably gains, ▼ measurably loses: the "
    "interval leaves zero out. Hollow dots are within chance."
)
_SIGN = {GAINS: "▲ ", LOSES: "▼ "}


def clients(c: Comparison, how: str = _HOW) -> Markup:
    """how: what the interval of a dot is, and what the marks mean."""
    better = "lower" if c.about["lower_is_better"] else "higher"
    note = (
        f"{sentence_case(metric_name(c.metric))} of each client's own model on unseen rows ({better} is better). A gain is "
        f"the improvement over being alone, {how}"
    )
    names = _shown(c)
    if len(names) < len(c.table.columns):
        note += f" {len(names):,} of {len(c.table.columns):,} clients are shown, evenly along their gains."
    chart = _dots(c, names) if figures.others(c) else None
    folded = f"Table of every client's scores ({len(names):,} clients)"
    if len(names) > _ROWS:
        folded = f"Table of every client's scores ({_ROWS} at a time; find a client above)"
    return section("Who gains, who loses", note, body=chart, table=_scores(c, names), folded=folded)


def _shown(c: Comparison) -> list[str]:
    everybody = [str(x) for x in c.table.columns]
    if len(everybody) <= _DOTS:
        return everybody
    gain = c.gains.T[c.method if c.judged and c.method in c.gains.index else c.methods[-1]]
    order = gain.fillna(gain.mean()).argsort().to_numpy()
    return [everybody[i] for i in order[np.linspace(0, len(order) - 1, _DOTS).astype(int)]]


def _dots(c: Comparison, names: list[str]) -> Markup:
    shown = figures.others(c)
    chosen = (
        c.method if c.judged and c.method in shown else str(c.gains.loc[shown].mean(axis=1).fillna(-np.inf).idxmax())
    )
    marks, gains = c.marks.T[chosen], c.gains.T[chosen].astype(float)
    alt = (
        f"Gain of each of {len(c.table.columns)} clients with {chosen}: from {number(float(gains.min()), '+')} to "
        f"{number(float(gains.max()), '+')}, median {number(float(gains.median()), '+')}; "
        f"{int((marks == GAINS).sum())} measurably gain, {int((marks == LOSES).sum())} measurably lose. "
        "The table below has every number."
    )
    grouped = next(iter(c.grouped.values()), None)
    found = None if grouped is None else grouped.reindex(names).tolist()
    data = {
        "clients": [one_line(name) for name in names],
        "groups": found,
        "unit": metric_name(c.metric),
        "rows": _ROWS,
        "marks": list(MARKS),
    }
    data["methods"] = [_method(c, m, names) for m in c.methods]
    options = [(i, m) for i, m in enumerate(c.methods) if m in shown]
    return render("clients", options=options, chosen=chosen, alt=alt, gains=as_json(data))


def _method(c: Comparison, method: str, names: list[str]) -> dict[str, Any]:
    """One method's numbers for the page's script; `base` is what others are compared with."""
    return {
        "name": method,
        "base": method == c.baseline(method),
        "score": c.table.T[method].loc[names].tolist(),
        "gain": c.gains.T[method].loc[names].tolist(),
        "error": c.errors.T[method].loc[names].astype(float).tolist(),
        "bound": c.half_widths.T[method].loc[names].astype(float).tolist(),
        "mark": [MARKS.index(str(x)) for x in c.marks.T[method].loc[names]],
    }


def _scores(c: Comparison, names: list[str]) -> Table:
    head = ["client", *(method_label(m) for m in c.methods)]
    rows = [[Cell("mean of all"), *(_mean(c, m) for m in c.methods)]]
    rows += [[Cell(one_line(x)), *(_score(c, m, x) for m in c.methods)] for x in names[:_ROWS]]
    return Table(head, rows, caption="Every client's scores and gains", find="who-find")


def _score(c: Comparison, method: str, client: str) -> Cell:
    score, gain, mark = c.cell(method, client)
    if pd.isna(score):
        return Cell("–", title=NO_SCORE)
    if method == c.baseline(method):
        return Cell(number(score))
    where: Any = (method, client)
    title = f"{mark}; standard error {number(float(c.errors.loc[where]))}"
    return Cell(number(score), _SIGN.get(mark, "") + number(gain, "+"), mark if mark in _SIGN else "", title)


def _mean(c: Comparison, method: str) -> Cell:
    gain = "" if method == c.baseline(method) else number(float(c.gains.T[method].mean()), "+")
    return Cell(number(float(c.table.T[method].mean())), gain)
