"""The report of a comparison: one HTML file that needs no network (plotly.js is inside, once)."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

import coterie
from coterie.comparison.compare import Comparison
from coterie.comparison.verdict import metric_name, number, sentence_case
from coterie.report import figures
from coterie.training.bootstrap import GAINS, LOSES, NO_SCORE

_WIDE = 8  # clients side by side; more go below one another
_MOST = 500  # rows of a table on the page; the CSV files have all


def write_report(comparison: Comparison, path: str | Path) -> Path:
    """Write the page and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(comparison), "utf-8")
    return path


def page(comparison: Comparison) -> str:
    """The whole page. A section is a function of the comparison; one that has nothing to say returns ""."""
    css = (files("coterie.report") / "page.css").read_text("utf-8")
    body = "\n".join(section(comparison) for section in SECTIONS)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Who should learn together?</title>\n<style>{css}</style>\n<script>{get_plotlyjs()}</script>\n"
        f"</head><body><main>\n{body}\n"
        f"<footer>Made by coterie {coterie.__version__}. Tables as CSV and Parquet lie beside this page.</footer>\n"
        "</main></body></html>\n"
    )


# ---- sections --------------------------------------------------------------------------------------------------------


def _head(c: Comparison) -> str:
    seeds = len(c.about["seeds"])
    unit = "train/test split" if c.about["new_split_each_seed"] else "seed"
    facts = f"{c.about['kind'].capitalize()} with {c.about['features']} inputs, measured by {metric_name(c.metric)}"
    return (
        "<header><h1>Who should learn together?</h1>"
        f'<p class="sub">{escape(facts)}; mean of {seeds} {unit}{"s" * (seeds > 1)}.</p></header>'
    )


def _verdict(c: Comparison) -> str:
    *facts, advice = c.verdict().partition(" Recommendation: ")
    last = f"<p>Recommendation: {escape(advice)}</p>" if advice else ""
    return f'<section class="verdict"><p>{escape(facts[0])}</p>{last}</section>'


def _cards(c: Comparison) -> str:
    cards = [(f"{c.about['clients']:,}", "clients"), (f"{c.about['rows']:,}", "rows")]
    best = c.best
    if best is not None:
        cards += [(best, f"best on average together ({number(float(c.gains.T[best].mean()), '+')})")]
        cards += [(str(len(c.who(best, GAINS))), f"clearly gain with {best}")]
        cards += [(str(len(c.who(best, LOSES))), f"clearly lose with {best}")]
    items = "".join(f'<div class="card"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in cards)
    return f'<div class="cards">{items}</div>'


def _scores(c: Comparison) -> str:
    clients = [str(x) for x in c.table.columns]
    better = "lower" if c.about["lower_is_better"] else "higher"
    note = (
        f"{sentence_case(metric_name(c.metric))} of each client's own model on its own test rows ({better} is better), and "
        "below it the gain over training alone. Green: clearly gains, red: clearly loses; uncoloured differences are "
        "within two standard errors, so chance could make them."
    )
    if len(clients) <= _WIDE:
        head = ["method", *clients, "mean"]
        rows = [[_label(m), *(_cell(c, m, x) for x in clients), _mean(c, m)] for m in c.methods]
    else:
        head = ["client", *(_label(m) for m in c.methods)]
        rows = [["mean", *(_mean(c, m) for m in c.methods)]]
        rows += [[x, *(_cell(c, m, x) for m in c.methods)] for x in clients[:_MOST]]
    return _section("Who gains, who loses", note, _table(head, rows))


def _gains(c: Comparison) -> str:
    if len(c.methods) < 2:
        return ""
    note = "To the right of zero: better than training alone. Pale bars are within chance."
    if len(c.table.columns) > figures.FEW:
        note = "Above zero: better than training alone."
    return _section("Gain of every client", note, _figure(figures.gain_bars(c)))


def _curves(c: Comparison) -> str:
    note = "Thick: mean over seeds, as far as every seed ran. Thin: each seed. Test scores are shown, never used to choose."
    test = f"test_{c.metric}"
    parts = [("Training loss", "loss")] + [(f"Test {metric_name(c.metric)}", test)] * (test in c.curves)
    inner = "".join(f"<div><b>{escape(t)}</b>{_figure(figures.curves(c, column))}</div>" for t, column in parts)
    return _section("Training", note, f'<div class="two">{inner}</div>')


def _staying(c: Comparison) -> str:
    if c.coalition is None:
        return ""
    first = c.coalition.steps[0]
    note = (
        f"A client would leave when the whole {first.settings.level:.0%} interval of its gain is below zero; the rest is "
        "then trained again without it, until nobody would leave."
    )
    rows = [
        [
            str(x),
            number(r.gain, "+"),
            f"{number(r.low, '+')} … {number(r.high, '+')}",
            f"{r.p_worse:.0%}",
            _yes(r.leaves),
        ]
        for x, r in first.table.head(_MOST).iterrows()
    ]
    table = _table(["client", "gain", "interval", "chance of a loss", "leaves"], rows)
    return _section(f"Would they stay with {c.best}?", note, f"<p>{escape(c.coalition.summary())}</p>" + table)


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _data(c: Comparison) -> str:
    figure = figures.target_bars(c)
    head = ["client", *(str(x) for x in c.overview.columns)]
    rows = [
        [str(client), *(f"{v:.2f}" if isinstance(v, float) and v % 1 else f"{v:.0f}" for v in row)]
        for client, row in zip(c.overview.index, c.overview.to_numpy(object), strict=True)
    ]
    note = (
        "Rows of each client in the first split; clients that differ much here are the ones a shared model may not fit."
    )
    return _section("The data", note, ("" if figure is None else _figure(figure)) + _table(head, rows[:_MOST]))


def _groups(c: Comparison) -> str:
    found = c.clusters.loc[[m for m in c.methods if m != "local" and c.clusters.loc[m].nunique() > 1]]
    if not len(found):
        return ""
    rows = []
    for method, labels in found.iterrows():
        for group, members in labels.groupby(labels):
            names = [str(x) for x in members.index]
            rows.append([str(method), str(group), str(len(names)), _some(names)])
    return _section(
        "Groups", "Who learns with whom (first seed).", _table(["method", "group", "clients", "who"], rows, "text")
    )


def _settings(c: Comparison) -> str:
    rows = [[str(r.method), str(r.seed), str(r.rounds), _Code(str(r.algorithm))] for r in c.settings.itertuples()]
    note = (
        f"Model: {c.about['model']}. Named methods got settings chosen on validation rows, part of the training rows."
    )
    return _section("Settings", note, _table(["method", "seed", "rounds", "algorithm"], rows, "text"))


def _caveats(c: Comparison) -> str:
    few = [str(x) for x, n in c.overview["test"].items() if n < 30]
    items = [
        "A gain is called clear when it exceeds two standard errors, from resampled test rows and the variation over seeds. "
        "With many clients and methods, about one in twenty differences without any cause will still look clear.",
        "The best method is named after looking at the test scores; on new data its lead will be a little smaller.",
        "Gains compare with training alone with the same model, each method with its own tuned settings.",
        "This is a simulation on one machine: it says who would gain, not what leaves a client or how private that is.",
    ]
    if few:
        items.insert(1, f"Fewer than 30 test rows: {_some(few)}. Their scores are rough.")
    if (c.marks == NO_SCORE).to_numpy().any():
        unknown = [str(x) for x in c.marks.columns[(c.marks == NO_SCORE).any(axis=0)]]
        items.insert(1, f"No score for {_some(unknown)}: no test row, or only one class among them.")
    return _section("How far to trust this", "", "<ul>" + "".join(f"<li>{escape(i)}</li>" for i in items) + "</ul>")


SECTIONS: tuple[Callable[[Comparison], str], ...] = (
    _head,
    _verdict,
    _cards,
    _scores,
    _gains,
    _staying,
    _data,
    _groups,
    _curves,
    _settings,
    _caveats,
)


# ---- pieces ----------------------------------------------------------------------------------------------------------


class _Code(str):
    """Text to be set as code."""


class _Cell(str):
    """HTML that is already safe, a whole <td>."""


def _section(title: str, note: str, inner: str) -> str:
    text = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{text}{inner}</section>"


def _table(head: list[str], rows: list[list[Any]], kind: str = "") -> str:
    def cell(value: str) -> str:
        if isinstance(value, _Cell):
            return value
        return f"<td><code>{escape(value)}</code></td>" if isinstance(value, _Code) else f"<td>{escape(value)}</td>"

    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join(f"<tr>{''.join(cell(v) for v in row)}</tr>" for row in rows)
    tall = " tall" if len(rows) > 15 else ""
    inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll{tall}"><table class="{kind}">{inner}</table></div>'


def _cell(c: Comparison, method: str, client: str) -> _Cell:
    score, gain, mark = c.cell(method, client)
    if pd.isna(score):
        return _Cell('<td title="no score">–</td>')
    if method == "local":
        return _Cell(f"<td>{number(score)}</td>")
    where: Any = (method, client)
    title = escape(f"{mark}; standard error {number(float(c.errors.loc[where]))}")
    return _Cell(
        f'<td class="{mark.split()[0]}" title="{title}">{number(score)}<span class="g">{number(gain, "+")}</span></td>'
    )


def _mean(c: Comparison, method: str) -> _Cell:
    gain = "" if method == "local" else f'<span class="g">{number(float(c.gains.T[method].mean()), "+")}</span>'
    return _Cell(f"<td>{number(float(c.table.T[method].mean()))}{gain}</td>")


def _figure(figure: go.Figure) -> str:
    html: str = to_html(
        figure, include_plotlyjs=False, full_html=False, config={"responsive": True, "displayModeBar": False}
    )
    return html


def _label(method: str) -> str:
    return "local (alone)" if method == "local" else method


def _some(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
