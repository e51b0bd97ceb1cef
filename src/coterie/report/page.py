"""The report of a comparison: one HTML file that needs no network (plotly.js is inside, once).

A section is a function of the comparison and, when it was looked for, the coalition. It gathers plain values; the templates
beside this file turn them into HTML and escape every one of them. Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from plotly.io import to_html
from plotly.offline import get_plotlyjs

import coterie
from coterie.comparison.private import COVERED, NOT_COVERED
from coterie.comparison.result import Comparison
from coterie.comparison.verdict import (
    WAYS,
    facts,
    headline,
    method_label,
    metric_name,
    number,
    sentence_case,
    stay_words,
)
from coterie.disk import write_text
from coterie.privacy.receipt_page import verdict as verdict_line
from coterie.report import figures
from coterie.report.terminal import group_words
from coterie.text import listed
from coterie.training.gains import GAINS, LOSES, NO_SCORE

if TYPE_CHECKING:
    from coterie.training.participation import Coalition

_WIDE = 8  # clients side by side; more go below one another
_MOST = 500  # rows of a table on the page; the CSV files have all
_NAMES = 12  # names in a sentence
_TEMPLATES = Environment(loader=PackageLoader("coterie.report"), autoescape=True, trim_blocks=True)


def write_report(comparison: Comparison, path: str | Path, coalition: Coalition | None = None) -> Path:
    """Write the page and return its path; pass `comparison.coalition()` to also tell what is left when leavers leave."""
    path = Path(path)
    write_text(path, page(comparison, coalition))
    return path


def page(comparison: Comparison, coalition: Coalition | None = None) -> str:
    """The whole page."""
    return _render(
        "page",
        css=Markup((files("coterie.report") / "page.css").read_text("utf-8")),
        plotly=Markup(get_plotlyjs()),
        sections=[section(comparison, coalition) for section in SECTIONS],
        version=coterie.__version__,
    )


# ---- sections: one that has nothing to say returns "" ----------------------------------------------------------------


def head(c: Comparison, coalition: Coalition | None = None) -> Markup:
    told = f"{c.about['kind'].capitalize()} with {c.about['features']} inputs, measured by {metric_name(c.metric)}"
    parts = []
    if c.decision is not None:
        parts.append(f"exact models on {c.about['repeats']} × {c.about['folds']} folds inside every client")
    if c.results:
        seeds = len(c.about["seeds"])
        unit = "train/test split" if c.about["new_split_each_seed"] else "seed"
        parts.append(f"trained methods on {seeds} {unit}{'s' * (seeds > 1)}")
    return _render("head", facts=f"{told}; {' and '.join(parts)}.")


def verdict(c: Comparison, coalition: Coalition | None = None) -> Markup:
    return _render("verdict", facts=facts(c), advice=headline(c))


def cards(c: Comparison, coalition: Coalition | None = None) -> Markup:
    shown = [(f"{c.about['clients']:,}", "clients"), (f"{c.about['rows']:,}", "rows")]
    shown += [(c.recommendation, WAYS[c.recommendation])]
    if c.method in c.gains.index and c.method != c.baseline(c.method):
        gain = number(float(c.gains.T[c.method].mean()), "+")
        shown += [(gain, f"mean gain with {c.method}")]
        shown += [(str(len(c.who(c.method, GAINS))), f"measurably gain with {c.method}")]
        shown += [(str(len(c.who(c.method, LOSES))), f"measurably lose with {c.method}")]
    return _render("cards", cards=shown)


def scores(c: Comparison, coalition: Coalition | None = None) -> Markup:
    clients = [str(x) for x in c.table.columns]
    better = "lower" if c.about["lower_is_better"] else "higher"
    note = (
        f"{sentence_case(metric_name(c.metric))} of each client's own model on unseen rows ({better} is better), and below "
        "it the gain over being alone. Green: measurably gains, red: measurably loses, corrected for looking at many."
    )
    if len(clients) <= _WIDE:
        names = ["method", *clients, "mean"]
        rows = [[Cell(method_label(m)), *(_score(c, m, x) for x in clients), _mean(c, m)] for m in c.methods]
    else:
        names = ["client", *(method_label(m) for m in c.methods)]
        rows = [[Cell("mean"), *(_mean(c, m) for m in c.methods)]]
        rows += [[Cell(x), *(_score(c, m, x) for m in c.methods)] for x in clients[:_MOST]]
    return _section("Who gains, who loses", note, table=Table(names, rows))


def gains(c: Comparison, coalition: Coalition | None = None) -> Markup:
    if not figures.others(c):
        return Markup()
    note = "To the right of zero: better than training alone. Pale bars are within chance."
    if len(c.table.columns) > figures.FEW:
        note = "Above zero: better than training alone."
    return _section("Gain of every client", note, figure=_figure(figures.gain_bars(c)))


def staying(c: Comparison, coalition: Coalition | None = None) -> Markup:
    first = c.participation() if coalition is None else coalition.steps[0]
    if first is None:
        return Markup()
    note = f"A client would leave when the whole {first.settings.level:.0%} interval of its gain is below zero"
    if coalition is not None:
        note += "; the rest is then trained again without it, until nobody would leave"
    rows = [
        _plain(
            x,
            number(r.gain, "+"),
            f"{number(r.low, '+')} … {number(r.high, '+')}",
            f"{r.p_worse:.0%}",
            "yes" if r.leaves else "",
        )
        for x, r in first.table.head(_MOST).iterrows()
    ]
    table = Table(["client", "gain", "interval", "chance of a loss", "leaves"], rows)
    return _section(f"Would they stay with {c.best}?", f"{note}.", text=stay_words(c, coalition), table=table)


def data(c: Comparison, coalition: Coalition | None = None) -> Markup:
    figure = figures.target_bars(c)
    rows = [
        _plain(client, *(f"{v:.2f}" if isinstance(v, float) and v % 1 else f"{v:.0f}" for v in row))
        for client, row in zip(c.overview.index, c.overview.to_numpy(object), strict=True)
    ]
    note = (
        "Rows of each client in the first split; clients that differ much here are the ones a shared model may not fit."
    )
    table = Table(["client", *(str(x) for x in c.overview.columns)], rows[:_MOST])
    return _section("The data", note, figure=None if figure is None else _figure(figure), table=table)


def groups(c: Comparison, coalition: Coalition | None = None) -> Markup:
    several = [m for m in c.methods if 1 < c.clusters.loc[m].nunique() < max(len(c.clusters.columns), 3)]
    found = c.clusters.loc[[m for m in several if m not in ("alone", "shrunk", "local")]]
    if not len(found):
        return Markup()
    apart = group_words(c, 3) if c.groups is not None else {}
    rows = [
        _plain(
            method,
            group,
            len(members),
            listed(members.index, _NAMES),
            apart.get(group, "") if method == "groups" else "",
        )
        for method, labels in found.iterrows()
        for group, members in labels.groupby(labels)
    ]
    table = Table(["method", "group", "clients", "who", "what tells it apart"], rows, "text")
    note = (
        "Who learns with whom (first seed). Means are differences from the other groups in standard deviations between "
        "clients; effects are differences of coefficients per standard deviation of the column."
    )
    return _section("Groups", note, table=table)


def curves(c: Comparison, coalition: Coalition | None = None) -> Markup:
    if not len(c.curves):
        return Markup()
    note = "Thick: mean over seeds, as far as every seed ran. Thin: each seed. Test scores are shown, never used to choose."
    test = f"test_{c.metric}"
    parts = [("Training loss", "loss")] + [(f"Test {metric_name(c.metric)}", test)] * (test in c.curves)
    return _section("Training", note, pair=[(name, _figure(figures.curves(c, column))) for name, column in parts])


def settings(c: Comparison, coalition: Coalition | None = None) -> Markup:
    rows = [[*_plain(r.method, r.seed, r.rounds), Cell(str(r.algorithm), code=True)] for r in c.settings.itertuples()]
    note = "Exact models are solved to convergence."
    if c.results:
        note = f"Model: {c.about['model']}. Named methods got settings chosen on validation rows, part of the training rows."
    return _section("Settings", note, table=Table(["method", "seed", "rounds", "algorithm"], rows, "text"))


def receipt(c: Comparison, coalition: Coalition | None = None) -> Markup:
    found = c.receipt
    if found is None:
        return Markup()
    items = [
        f"Covered: {COVERED}.",
        f"Not covered: {NOT_COVERED}.",
        "The score of `private` is that of simulated runs.",
    ]
    return _section("Privacy receipt", verdict_line(found) + ".", items=items, pre=found.to_text())


def caveats(c: Comparison, coalition: Coalition | None = None) -> Markup:
    items = [
        "The mean over clients decides, with an error that pays for choosing among the methods. Single clients are marked "
        "only after a correction for looking at many, so few are.",
        "Rows of a client are taken as exchangeable: time series and neighbours in space make errors look too small.",
        "This is a simulation on one machine: it says who would gain, not what leaves a client or how private that is.",
        *(f"{name} failed: {why}" for name, why in c.failed.items()),
        *(sentence_case(warning) for warning in c.warnings),
    ]
    if c.results:
        items.insert(
            1, "Trained methods are compared with training alone with the same model, each with its own settings."
        )
        few = [str(x) for x, n in c.overview["test"].items() if n < 30]
        if few:
            items.insert(1, f"Fewer than 30 test rows: {listed(few, _NAMES)}. Their scores are rough.")
    if (c.marks == NO_SCORE).to_numpy().any():
        unknown = c.marks.columns[(c.marks == NO_SCORE).any(axis=0)]
        items.insert(1, f"No score for {listed(unknown, _NAMES)}: too few rows, or only one class among them.")
    return _section("How far to trust this", "", items=items)


SECTIONS: tuple[Callable[..., Markup], ...] = (
    head,
    verdict,
    cards,
    scores,
    gains,
    staying,
    data,
    groups,
    curves,
    settings,
    receipt,
    caveats,
)


# ---- pieces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, perhaps a gain below it, a kind (for its colour) and a title (shown on hovering)."""

    text: str
    gain: str = ""
    kind: str = ""
    title: str = ""
    code: bool = False


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[Cell]]
    kind: str = ""


def _render(template: str, **values: Any) -> Markup:
    return Markup(_TEMPLATES.get_template(f"{template}.html").render(values))


def _section(title: str, note: str, **parts: Any) -> Markup:
    return _render("section", title=title, note=note, **parts)


def _plain(*values: object) -> list[Cell]:
    return [Cell(str(value)) for value in values]


def _score(c: Comparison, method: str, client: str) -> Cell:
    score, gain, mark = c.cell(method, client)
    if pd.isna(score):
        return Cell("–", title=NO_SCORE)
    if method == c.baseline(method):
        return Cell(number(score))
    where: Any = (method, client)
    title = f"{mark}; standard error {number(float(c.errors.loc[where]))}"
    return Cell(number(score), number(gain, "+"), mark.split()[0], title)


def _mean(c: Comparison, method: str) -> Cell:
    gain = "" if method == c.baseline(method) else number(float(c.gains.T[method].mean()), "+")
    return Cell(number(float(c.table.T[method].mean())), gain)


def _figure(figure: go.Figure) -> Markup:
    """Plotly writes names as JSON with <, > and & escaped, so its HTML is safe as it is."""
    options = {"responsive": True, "displayModeBar": False}
    return Markup(to_html(figure, include_plotlyjs=False, full_html=False, config=options))
