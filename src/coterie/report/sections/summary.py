"""The head of the page: what was compared, the verdict and how sure it is, and the numbers that matter most."""

from __future__ import annotations

from pathlib import PurePath

from markupsafe import Markup

from coterie.base.text import metric_name, number, sentence_case
from coterie.comparison.result import Comparison
from coterie.comparison.verdict import SURE, WAYS, facts
from coterie.evidence.gains import GAINS, LOSES
from coterie.report import figures
from coterie.report.parts import Chart, render

TITLE = "Who should learn together?"
_SHORT = {"clear": "clear", "borderline": "borderline", "leaning": "only a leaning", "nothing": "nothing to learn"}


def head(c: Comparison) -> Markup:
    told = f"{_what(c)}{c.about['kind'].capitalize()} with {c.about['features']} inputs, measured by {metric_name(c.metric)}"
    parts = []
    if c.decision is not None:
        parts.append(f"exact models on {c.about['repeats']} × {c.about['folds']} folds inside every client")
    if c.results:
        seeds = len(c.about["seeds"])
        unit = "train/test split" if c.about["new_split_each_seed"] else "seed"
        parts.append(f"trained methods on {seeds} {unit}{'s' * (seeds > 1)}")
    return render("head", title=TITLE, facts=f"{told}; {' and '.join(parts)}.")


def _what(c: Comparison) -> str:
    """The table, its target and its clients, where they have names."""
    named = c.about.get("labels") or {}
    if "target" not in named:
        return ""
    rerun = c.about.get("rerun") or {}
    path = c.about.get("table") or rerun.get("data", {}).get("path")
    table = f" in {PurePath(path).name}" if path else ""
    return f"{sentence_case(named['target'])} for every {named['client']}{table}. "


def verdict(c: Comparison) -> Markup:
    way = c.recommendation
    charts = [mean_chart(c)] if figures.others(c) else []
    advice = f"{sentence_case(WAYS[way])}; {SURE[c.sure]}."
    return render(
        "verdict", way=way, advice=advice, sure=c.sure, sure_short=_SHORT[c.sure], facts=facts(c), charts=charts
    )


def mean_chart(c: Comparison) -> Chart:
    shown = figures.others(c)
    table = c.summary().loc[shown, ["mean gain", "low", "high"]]
    figure, data = figures.mean_gains(table, c.metric, [figures.colour(c, m) for m in shown])
    best = data.iloc[int(data["mean gain"].fillna(-float("inf")).to_numpy().argmax())]
    alt = (
        f"Mean gain over being alone of {len(data)} methods with intervals; the largest is {best['method']} with "
        f"{number(float(best['mean gain']), '+')}, interval {number(float(best['low']), '+')} to "
        f"{number(float(best['high']), '+')}."
    )
    return Chart(figure, alt, data, "mean-gains", "How sure: mean gain of every method, with its interval")


def cards(c: Comparison) -> Markup:
    shown = [(f"{c.about['clients']:,}", "clients"), (f"{c.about['rows']:,}", "rows")]
    if c.groups is not None:
        shown += [(str(c.groups.nunique()), "groups found")]
    if c.method in c.gains.index and c.method != c.baseline(c.method):
        gain = number(float(c.gains.T[c.method].mean()), "+")
        shown += [(gain, f"mean gain with {c.method}")]
        shown += [(str(len(c.who(c.method, GAINS))), f"measurably gain with {c.method}")]
        shown += [(str(len(c.who(c.method, LOSES))), f"measurably lose with {c.method}")]
    return render("cards", cards=shown)
