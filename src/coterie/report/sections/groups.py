"""The groups: a map, how alike the clients are, what tells groups apart, and whether the same ones are found again."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from coterie.base.text import cut, listed
from coterie.comparison.likeness import embedding, model_points, ordered_distances, stability, tell_apart
from coterie.comparison.result import Comparison
from coterie.report import figures
from coterie.report.parts import Chart, Table, row, section

_NAMES = 8  # names in a cell
_LONG = 40  # characters of a name there
_TOLD = 3  # properties in a cell
_WHAT = {
    "column": "means of columns, in standard deviations between clients",
    "effect": "effects of columns (coefficients), in standard deviations",
    "target": "the target, in standard deviations between clients",
}


def groups(c: Comparison) -> Markup:
    several = c.grouped
    if not several:
        none = "One model for all predicted inner folds of the training rows at least as well as several groups did."
        looked = c.decision is not None and c.sure != "nothing"
        return section("Groups", "No groups were found.", text=none) if looked else Markup()
    method, found = next(iter(several.items()))
    steady = stability(found, c.regrouped[method]) if method in c.regrouped else None
    told = tell_apart(c, found, method)
    charts = [x for x in (*_maps(c, found, steady), *(_apart(told, what) for what in _WHAT)) if x is not None]
    note = f"Who learns with whom with {method}."
    if c.judged and c.recommendation != "groups":
        note += " Groups are not recommended; they are shown as information."
    rest = [_others(c, name, some) for name, some in several.items() if name != method]
    text, table = _stable_words(c, method, steady), _table(found, steady, told)
    return section("Groups", note, text=text, charts=charts, table=table, items=rest)


def _others(c: Comparison, method: str, found: pd.Series[Any]) -> str:
    """Another method's groups, in a sentence."""
    sizes = listed(found.value_counts(), 12)
    again = (
        f"; found again over seeds: {stability(found, c.regrouped[method]).mean():.0%}" if method in c.regrouped else ""
    )
    return f"{method} has {found.nunique()} groups, with {sizes} clients{again}."


def _stable_words(c: Comparison, method: str, steady: pd.Series[Any] | None) -> str:
    if steady is None:
        return "How stable the groups are is not known: they were found once."
    fits = len(c.regrouped[method])
    how = f"{fits} fits that each leave some rows out" if method == "groups" else f"{fits} seeds"
    shaky = int((steady < 0.5).sum())
    told = f"Stability: over {how}, a client is in its group again in {steady.mean():.0%} of the cases on average."
    if shaky:
        told += f" {shaky} of {len(steady)} clients are elsewhere in more than half of them."
    return told + _against_continuum(c, method)


def _against_continuum(c: Comparison, method: str) -> str:
    """What stability alone cannot say: whether clients without groups would be cut into pieces as steadily."""
    if method != "groups" or c.decision is None or c.decision.continuum is None:
        return " Clients that differ gradually would also be put into steady groups, so this is no evidence of groups."
    found = c.decision.continuum
    share = f"the groups explain {found.explained:.0%} of the differences between clients"
    without = f"clients that differ gradually, without groups, would show up to {found.reference:.0%}"
    if found.exceeded:
        return f" They are more than a gradient cut into pieces: {share}; {without}."
    return f" They are no evidence of groups: {share}, but {without}. This is a gradient rather than groups."


def _maps(c: Comparison, found: pd.Series[Any], steady: pd.Series[Any] | None) -> list[Chart | None]:
    points = model_points(c)
    where = _placed(c.positions, found)
    sizes = ", ".join(f"group {g}: {n}" for g, n in found.value_counts().sort_index().items())
    charts: list[Chart | None] = []
    if where is not None:
        figure, data = figures.client_map(where, found, steady, geographic=True)
        charts.append(
            Chart(
                figure, f"Map of the clients by position, coloured by group ({sizes}).", data, "map", "Where they are"
            )
        )
    elif points is not None:
        at = embedding(points)
        figure, data = figures.client_map(at, found, steady, geographic=False)
        title = f"Clients by their models ({at.attrs['share']:.0%} of the differences)"
        alt = f"Clients drawn by how their own models differ, coloured by group ({sizes})."
        charts.append(Chart(figure, alt, data, "map", title))
    if points is not None:
        apart = ordered_distances(points.loc[found.index], found)
        figure, data = figures.matrix(apart, "difference")
        alt = "How much the predictions of two clients' own models differ, clients ordered by group; dark is different."
        charts.append(Chart(figure, alt, data, "likeness", "How alike, ordered by group (dark: different predictions)"))
    return charts


def _placed(positions: pd.DataFrame | None, found: pd.Series[Any]) -> pd.DataFrame | None:
    if positions is None:
        return None
    at = positions.set_axis([str(i) for i in positions.index], axis=0).reindex([str(i) for i in found.index])
    return None if at.isna().to_numpy().any() else at


def _apart(told: pd.DataFrame, what: str) -> Chart | None:
    made = figures.apart_dots(told, what, "group minus the others")
    if made is None:
        return None
    top = told[told["what"] == what].iloc[0]
    most = f"{top['name']} in group {top['group']}, {top['size']:+.1f}"
    alt = f"Differences between groups in {_WHAT[what]}; the largest is {most}."
    return Chart(made[0], alt, made[1], f"apart-{what}", f"What tells them apart: {_WHAT[what]}")


def _table(found: pd.Series[Any], steady: pd.Series[Any] | None, told: pd.DataFrame) -> Table:
    rows = []
    for group, members in found.groupby(found):
        mine = told[told["group"] == group].head(_TOLD)
        parts = zip(mine["name"], mine["what"], mine["size"], strict=True)
        words = "; ".join(f"{name} ({what}) {size:+.1f}" for name, what, size in parts)
        again = "–" if steady is None else f"{steady[members.index].mean():.0%}"
        who = listed((cut(c, _LONG) for c in members.index), _NAMES)
        rows.append(row(group, len(members), again, words or "nothing measured", who))
    return Table(["group", "clients", "found again", "largest differences", "who"], rows, "text", "The groups")
