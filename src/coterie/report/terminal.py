"""Tables for the terminal (Rich)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coterie.comparison.compare import Comparison
from coterie.comparison.verdict import method_label, metric_name, number, sentence_case, stay_words
from coterie.training.gains import GAINS, LOSES, NO_SCORE, UNCLEAR, WITHIN
from coterie.training.participation import Coalition
from coterie.training.result import Result

_FEW = 6  # clients side by side; more go below one another
_MANY = 30
_SIGN = {GAINS: ("▲", "green"), LOSES: ("▼", "red"), UNCLEAR: ("·", "dim"), NO_SCORE: (" ", "dim")}


def comparison_tables(comparison: Comparison, coalition: Coalition | None = None) -> Iterator[RenderableType]:
    """Methods × clients with gains marked, a summary for many clients, the legend, the verdict and who would stay.

    Nothing is trained here: what happens when leavers leave is told when a `Comparison.coalition()` is passed."""
    clients = len(comparison.table.columns)
    if clients <= _FEW:
        yield _wide(comparison)
    else:
        yield _summary(comparison)
        yield _tall(comparison, min(clients, _MANY))
    yield Padding(_legend(comparison), (0, 0, 1, 0))
    yield Text(comparison.verdict())
    told = stay_words(comparison, coalition)
    if told:
        yield Padding(Text(f"Would they stay? {told}"), (1, 0, 0, 0))


def _cell(comparison: Comparison, method: str, client: str) -> Text:
    score, gain, mark = comparison.cell(method, client)
    if math.isnan(score):
        return Text("–", style="dim")
    cell = Text(number(score))
    if method != "local":
        sign, colour = _SIGN[mark]
        cell.append(f"  {number(gain, '+')} {sign}", style=colour)
    return cell


def _wide(comparison: Comparison) -> Table:
    table = Table(title=_title(comparison), title_justify="left", header_style="bold")
    table.add_column("method", no_wrap=True)
    for client in comparison.table.columns:
        table.add_column(str(client), justify="right")
    table.add_column("mean", justify="right")
    for method in comparison.methods:
        cells = [_cell(comparison, method, c) for c in comparison.table.columns]
        table.add_row(method_label(method), *cells, number(float(comparison.table.T[method].mean())))
    return table


def _tall(comparison: Comparison, most: int) -> Table:
    """Clients below one another, the largest differences first when there are too many to show."""
    clients = list(comparison.table.columns)
    title = _title(comparison)
    if len(clients) > most:
        size = comparison.gains.abs().max().sort_values(ascending=False)
        clients = list(size.index[:most])
        title += f", the {most} of {len(size)} clients with the largest differences"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("client", no_wrap=True)
    for method in comparison.methods:
        table.add_column(method_label(method), justify="right")
    for client in clients:
        table.add_row(str(client), *(_cell(comparison, m, client) for m in comparison.methods))
    return table


def _summary(comparison: Comparison) -> Table:
    table = Table(title="Summary", title_justify="left", header_style="bold")
    summary = comparison.summary()
    table.add_column("method", no_wrap=True)
    names = [c.removeprefix("clients: ") for c in summary.columns]
    for name in names:
        table.add_column(name, justify="right")
    for method, row in summary.iterrows():
        cells = [number(v) if "gain" in c or "mean" in c else f"{int(v)}" for c, v in _pairs(row)]
        table.add_row(method_label(str(method)), *cells)
    return table


def _pairs(row: pd.Series[Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        yield ("count" if str(name).startswith("clients: ") else str(name)), float(value)


def _title(comparison: Comparison) -> str:
    better = "lower" if comparison.about["lower_is_better"] else "higher"
    return f"{sentence_case(metric_name(comparison.metric))} on each client's own test rows ({better} is better)"


def _legend(comparison: Comparison) -> Text:
    n = len(comparison.about["seeds"])
    text = Text("Beside each score: the gain over training alone; ")
    for mark, words in ((GAINS, GAINS), (LOSES, LOSES), (UNCLEAR, f"{UNCLEAR} ({WITHIN})")):
        sign, colour = _SIGN[mark]
        text.append(f"{sign} {words}", style=colour)
        text.append(", " if mark != UNCLEAR else ". ")
    return text.append(f"Mean of {n} {'split' if comparison.about['new_split_each_seed'] else 'seed'}{'s' * (n > 1)}.")


def result_tables(result: Result) -> Iterator[RenderableType]:
    """One row a client for a few clients, else the distribution; then where the run stands."""
    scores = result.evaluate()
    shown = scores if len(scores) <= _MANY else scores.drop(columns="cluster").describe().drop(index="count")
    table = Table(title="Every client's own model on its own test rows", title_justify="left", header_style="bold")
    table.add_column("client" if shown is scores else "over clients")
    for column in shown.columns:
        table.add_column(str(column).replace("_", " "), justify="right")
    for client, row in shown.iterrows():
        whole = ("cluster", "n_train", "n_test")
        table.add_row(str(client), *(f"{v:.0f}" if name in whole else number(float(v)) for name, v in row.items()))
    yield table
    rounds = result.about["rounds"]
    done = "finished" if result.about["finished"] else "interrupted; continue it with `coterie resume`"
    yield Text(f"{rounds} rounds, seed {result.about['seed']}, {done}.")
    for told in result.about.get("warnings", ()):
        yield Text(told, style="yellow")


def catalogue_table(catalogue: pd.DataFrame) -> Table:
    table = Table(header_style="bold")
    for name in ("name", "what", "licence", "file"):
        table.add_column(name, overflow="fold", no_wrap=name == "name")
    for entry, row in catalogue.iterrows():
        here = row["file"] if row["file"] == "built in" or row["available"] else f"{row['file']} (not here)"
        table.add_row(str(entry), row["description"], row["licence"], here)
    return table
