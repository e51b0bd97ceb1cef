"""Tables for the terminal (Rich). A comparison fits 80 columns, with four clients or with thousands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coterie.base.text import cut, listed, method_label, metric_name, number, one_line, sentence_case
from coterie.comparison.result import Comparison
from coterie.comparison.verdict import facts, headline, stay_words
from coterie.evidence.gains import GAINS, LOSES, NO_SCORE, UNCLEAR
from coterie.evidence.participation import Coalition
from coterie.report.sections.deploying import new_clients

if TYPE_CHECKING:
    from coterie.training.result import Result

_MANY = 30  # clients shown; of more the largest gains and losses
_ENDS = 10
_BLOCK = 4  # methods side by side
_NAME = 18  # characters of a client's name
_WIDTH = 80
_SIGN = {GAINS: ("▲", "green"), LOSES: ("▼", "red"), UNCLEAR: ("·", "dim"), NO_SCORE: (" ", "dim")}


def comparison_tables(comparison: Comparison, coalition: Coalition | None = None) -> Iterator[RenderableType]:
    """The recommendation, a row per method, a row per client, the groups found, and the verdict in words.

    Nothing is trained here. Pass a `Comparison.coalition()` to also show what happens when leavers leave."""
    yield Text.assemble(("Recommendation: ", "bold"), (headline(comparison), "bold green"))
    yield Padding(_summary(comparison), (1, 0, 0, 0))
    for block in _blocks(comparison):
        yield _clients(comparison, block)
    yield Padding(_legend(comparison), (0, 0, 1, 0))
    if comparison.groups is not None:
        yield groups_table(comparison)
    yield Text(facts(comparison))
    if comparison.deploy is not None:
        yield Padding(Text(" ".join([comparison.deploy.words(), *new_clients(comparison)])), (1, 0, 0, 0))
    told = stay_words(comparison, coalition)
    if told:
        yield Padding(Text(f"Would they stay? {told}"), (1, 0, 0, 0))
    yield from _receipt(comparison)


def _receipt(comparison: Comparison) -> Iterator[RenderableType]:
    """The receipt of a private release, and what it does not cover."""
    receipt = comparison.receipt
    if receipt is None:
        return
    yield Padding(Text("Privacy receipt", style="bold"), (1, 0, 0, 0))
    yield Text(f"Covered: {comparison.covered[0]}.", style="green" if receipt.valid else "red")
    yield Text(f"Not covered: {comparison.covered[1]}.", style="yellow")
    yield Padding(Text(receipt.to_text()), (1, 0, 0, 0))


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def _summary(comparison: Comparison) -> Table:
    better = "lower" if comparison.about["lower_is_better"] else "higher"
    table = _table(f"{sentence_case(metric_name(comparison.metric))} ({better} is better), mean over clients")
    for name in ("method", "mean", "gain", "interval", "clients ▲", "▼"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    if not math.isnan(comparison.constant):
        table.add_row("overall average", number(comparison.constant), "", "", "", "", style="dim")
    for method, row in comparison.summary().iterrows():
        score = number(float(row[f"mean {comparison.metric}"]))
        if method == comparison.baseline(str(method)):
            table.add_row(method_label(str(method)), score, "", "", "", "")
            continue
        bounds = f"{number(float(row['low']), '+')} … {number(float(row['high']), '+')}"
        counts = (f"{int(row[f'clients: {mark}'])}" for mark in (GAINS, LOSES))
        table.add_row(method_label(str(method)), score, number(float(row["mean gain"]), "+"), bounds, *counts)
    return table


def _blocks(comparison: Comparison) -> Iterator[list[str]]:
    """Methods side by side: exact ones first, then the trained ones."""
    exact = [m for m in comparison.methods if m not in comparison.results]
    for part in (exact, comparison.learned):
        for start in range(0, len(part), _BLOCK):
            yield part[start : start + _BLOCK]


def _clients(comparison: Comparison, methods: list[str]) -> Table:
    """A row per client: scores, and the gain with the method the recommendation speaks of (or the block's best)."""
    others = [m for m in methods if m != comparison.baseline(m)]
    shown = comparison.method if comparison.method in others else None
    if shown is None and others:
        shown = str(comparison.gains.loc[others].mean(axis=1).fillna(-math.inf).idxmax())
    clients, title = _chosen(comparison, shown)
    table = _table(title)
    heads = ["rows", *(method_label(m).replace(" (", "\n(")[:13] for m in methods)]
    heads += [] if shown is None else [f"gain, {shown}" if len(shown) < 7 else f"gain,\n{shown[:13]}"]
    rows: list[list[str | Text]] = []
    for client in clients:
        cells = [f"{int(_rows(comparison, client))}", *(number(comparison.cell(m, client)[0]) for m in methods)]
        rows.append([*cells, *([] if shown is None else [_gain(comparison, shown, client)])])
    table.add_column("client", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    widths = (
        max(map(len, [*head.split("\n"), *column])) for head, column in zip(heads, zip(*rows, strict=True), strict=True)
    )
    left = _WIDTH - 2 - sum(width + 3 for width in widths)  # names give way, numbers are never cut
    for client, row in zip(clients, rows, strict=True):
        table.add_row(cut(client, max(min(left, _NAME), 6)), *row)
    return table


def _chosen(comparison: Comparison, method: str | None) -> tuple[list[str], str]:
    """The clients to show, and the title that says which they are."""
    clients = [str(c) for c in comparison.table.columns]
    if len(clients) <= _MANY or method is None:
        return clients[:_MANY], "Every client" if len(clients) <= _MANY else f"The first {_MANY} clients"
    order = comparison.gains.T[method].dropna().sort_values(ascending=False)
    ends = [str(c) for c in (*order.index[:_ENDS], *order.index[-_ENDS:])]
    return ends, f"The {_ENDS} largest gains and losses with {method}, of {len(clients)} clients"


def _rows(comparison: Comparison, client: str) -> float:
    where: Any = (client, "samples")
    return float(comparison.overview.loc[where])


def _gain(comparison: Comparison, method: str, client: str) -> Text:
    _, gain, mark = comparison.cell(method, client)
    sign, colour = _SIGN[mark]
    return Text(f"{number(gain, '+')} {sign}", style=colour)


def groups_table(comparison: Comparison) -> Table:
    """The groups found, their sizes, who is in them, and what tells them apart."""
    found = comparison.groups
    assert found is not None
    table = _table("Groups found" + ("" if comparison.recommendation == "groups" else " (not recommended)"))
    for name, width in (("group", 5), ("clients", 7), ("what tells it apart", 29), ("who", 24)):
        table.add_column(name, justify="right" if width < 10 else "left", width=width, overflow="fold")
    apart = group_words(comparison)
    for group, members in found.groupby(found):
        who = listed([cut(c, _NAME) for c in members.index], 2)
        table.add_row(str(group), str(len(members)), apart.get(int(str(group)), ""), who)
    return table


def group_words(comparison: Comparison, most: int = 2) -> dict[int, str]:
    """For every exact group its most distinguishing columns, in words."""
    if comparison.decision is None:
        return {}
    told = {}
    for group, rows in comparison.distinguish().groupby("group"):
        parts = []
        first = rows.head(most)
        for column, mean, effect in zip(first["column"], first["mean_difference"], first["effect"], strict=True):
            parts.append(apart_words(one_line(column), float(mean), 0.0 if math.isnan(effect) else float(effect)))
        told[int(str(group))] = "; ".join(parts)
    return told


def apart_words(column: str, mean: float, effect: float) -> str:
    """The larger difference of a group from the other clients, in standard deviations (sd): of the column's mean, or of how
    the target moves with the column."""
    if abs(mean) >= abs(effect):
        words = ("more frequent", "rarer") if "=" in column else ("higher", "lower")
        return f"{column} is {words[mean < 0]} by {abs(mean):.1f} sd"
    words = ("is higher", "is lower") if "=" in column else ("rises more", "rises less")
    return f"target {words[effect < 0]} with {column} by {abs(effect):.1f} sd"


def _legend(comparison: Comparison) -> Text:
    about, text = comparison.about, Text("Next to the scores: the gain over being alone; ")
    for mark in (GAINS, LOSES, UNCLEAR):
        sign, colour = _SIGN[mark]
        text.append(f"{sign} {mark}", style=colour)
        text.append(", " if mark != UNCLEAR else " (corrected for looking at many). ")
    if comparison.decision is not None:
        text.append(f"Exact models: {about['repeats']} × {about['folds']} folds inside every client. ")
    if comparison.results:
        n = len(about["seeds"])
        text.append(
            f"Trained methods: {n} {'split' if about['new_split_each_seed'] else 'seed'}{'s' * (n > 1)}, "
            "against their own tuned local."
        )
    return text


def result_tables(result: Result) -> Iterator[RenderableType]:
    """One row per client for few clients, otherwise the distribution; then the state of the run."""
    scores = result.evaluate()
    shown = scores if len(scores) <= _MANY else scores.drop(columns="cluster").describe().drop(index="count")
    table = Table(title="Every client's own model on its own test rows", title_justify="left", header_style="bold")
    table.add_column("client" if shown is scores else "over clients")
    for column in shown.columns:
        table.add_column(str(column).replace("_", " "), justify="right")
    for client, row in shown.iterrows():
        whole = ("cluster", "n_train", "n_test")
        table.add_row(
            cut(client, _NAME), *(f"{v:.0f}" if name in whole else number(float(v)) for name, v in row.items())
        )
    yield table
    rounds = result.about["rounds"]
    done = "finished" if result.about["finished"] else "interrupted; continue it with `coterie resume`"
    if "stopped" in result.about and not result.about["finished"]:
        done = f"stopped: {result.about['stopped'].rstrip('.')}"
    yield Text(f"{rounds} rounds, seed {result.about['seed']}, {done}.")
    for told in (*result.about.get("warnings", ()), *result.about.get("notes", ())):
        yield Text(told, style="yellow")


def catalogue_table(catalogue: pd.DataFrame) -> Table:
    table = Table(header_style="bold")
    for name in ("name", "what", "licence", "file"):
        table.add_column(name, overflow="fold", no_wrap=name == "name")
    for entry, row in catalogue.iterrows():
        here = row["file"] if row["file"] == "built in" or row["available"] else f"{row['file']} (not here)"
        table.add_row(str(entry), row["description"], row["licence"], here)
    return table
