"""Learning curves, and the bytes a run sends."""

from __future__ import annotations

from markupsafe import Markup

from coterie.base.text import metric_name, number
from coterie.comparison.result import Comparison
from coterie.report import figures
from coterie.report.parts import Chart, section


def training(c: Comparison) -> Markup:
    if not len(c.curves):
        return Markup()
    note = "Thick: mean over seeds, as far as every seed ran. Thin: each seed. Test scores are shown, never used to choose."
    test = f"test_{c.metric}"
    parts = [("Training loss", "loss")] + [(f"Test {metric_name(c.metric)}", test)] * (test in c.curves)
    return section("Training", note, charts=[_curve(c, title, column) for title, column in parts])


def _curve(c: Comparison, title: str, column: str) -> Chart:
    figure, data = figures.curves(c, column)
    last = data.sort_values("round").groupby("method", sort=False)[column].last()
    ends = ", ".join(f"{m} {number(float(v))}" for m, v in last.items())
    return Chart(figure, f"{title} over the rounds; at the end: {ends}.", data, f"curve-{column}", title)


def traffic(c: Comparison) -> Markup:
    made = figures.bytes_bars(c) if len(c.curves) else None
    if made is None:
        return Markup()
    figure, data = made
    told = ", ".join(f"{m} {down + up:.3g} MB" for m, down, up in data.itertuples(index=False))
    note = "What server and clients would send each other in a whole run, without compression; training alone sends nothing."
    return section("Bytes", note, charts=[Chart(figure, f"Megabytes sent in one run: {told}.", data, "bytes")])
