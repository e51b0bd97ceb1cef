"""Plotly figures of a comparison, for the report page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from coterie.comparison.result import Comparison
from coterie.comparison.verdict import metric_name
from coterie.training.gains import CLEAR, GAINS, LOSES

COLOURS = ("#64748b", "#2563eb", "#d97706", "#0d9488", "#9333ea", "#db2777", "#65a30d", "#0891b2", "#dc2626", "#a16207")
GAIN, LOSS, GREY = "#15803d", "#b91c1c", "#94a3b8"
FEW = 20  # clients shown as bars; more as a sorted curve


def layout(figure: go.Figure, height: int, **options: Any) -> go.Figure:
    """The page's look: quiet grid, legend above, room for labels."""
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 36, "b": 8},
        font={"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 13, "color": "#334155"},
        plot_bgcolor="white",
        paper_bgcolor="white",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        hoverlabel={"bgcolor": "white"},
        **options,
    )
    figure.update_xaxes(gridcolor="#eef2f7", zerolinecolor="#cbd5e1", automargin=True)
    figure.update_yaxes(
        gridcolor="#eef2f7", zerolinecolor="#cbd5e1", automargin=True, ticks="outside", ticklen=6, tickcolor="white"
    )
    return figure


def colour(comparison: Comparison, method: str) -> str:
    return COLOURS[comparison.methods.index(method) % len(COLOURS)]


def others(comparison: Comparison) -> list[str]:
    """The methods that are compared with being alone."""
    return [m for m in comparison.methods if m != comparison.baseline(m)]


def gain_bars(comparison: Comparison) -> go.Figure:
    """Every client's gain over training alone with two standard errors; pale where it is within chance."""
    shown = others(comparison)
    clients = [str(c) for c in comparison.table.columns]
    metric = metric_name(comparison.metric)
    figure = go.Figure()
    if len(clients) > FEW:
        for method in shown:
            gains = comparison.gains.T[method].sort_values()
            figure.add_scatter(
                x=np.arange(len(gains)) + 1,
                y=gains,
                text=[str(c) for c in gains.index],
                name=method,
                line={"color": colour(comparison, method)},
                hovertemplate="%{text}: %{y:+.3f}<extra>" + method + "</extra>",
            )
        figure.update_yaxes(title=f"gain in {metric}")
        figure.update_xaxes(title="clients, sorted by gain")
        return layout(figure, 380)
    for method in shown:
        clear = comparison.marks.loc[method].isin([GAINS, LOSES])
        figure.add_bar(
            y=clients,
            x=comparison.gains.loc[method],
            name=method,
            orientation="h",
            marker={"color": colour(comparison, method), "opacity": np.where(clear, 1.0, 0.4)},
            error_x={"array": CLEAR * comparison.errors.loc[method], "color": "#475569", "thickness": 1.2, "width": 4},
            hovertemplate="%{y}: %{x:+.3f}<extra>" + method + "</extra>",
        )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(title=f"gain in {metric} (± {CLEAR:g} standard errors)")
    return layout(figure, 110 + (24 * len(shown) + 14) * len(clients), barmode="group", bargap=0.25)


def curves(comparison: Comparison, column: str) -> go.Figure:
    """One column of the histories over the rounds: mean over seeds, thin lines for the seeds."""
    figure = go.Figure()
    for method, part in comparison.curves.groupby("method", sort=False):
        shown = part[["round", "seed", column]].dropna()
        tone = colour(comparison, str(method))
        for _, one in shown.groupby("seed"):
            figure.add_scatter(
                x=one["round"], y=one[column], mode="lines", line={"color": tone, "width": 1}, opacity=0.3,
                showlegend=False, hoverinfo="skip",
            )  # fmt: skip
        mean = _common_rounds(shown, column)
        figure.add_scatter(
            x=mean.index, y=mean, mode="lines", name=str(method), line={"color": tone, "width": 2.5},
            hovertemplate="round %{x}: %{y:.3f}<extra>" + str(method) + "</extra>",
        )  # fmt: skip
    figure.update_xaxes(title="round", rangemode="tozero")
    return layout(figure, 320)


def _common_rounds(shown: pd.DataFrame, column: str) -> pd.Series[Any]:
    """Mean over seeds at the rounds that every seed reached (their number is chosen a split at a time)."""
    grouped = shown.groupby("round")[column]
    mean: pd.Series[Any] = grouped.mean()[grouped.count() == shown["seed"].nunique()]
    return mean


def target_bars(comparison: Comparison) -> go.Figure | None:
    """Shares of the classes, or the mean of the target, by client."""
    shares = [c for c in comparison.overview.columns if c.startswith("share of ")]
    clients = [str(c) for c in comparison.overview.index]
    if len(clients) > FEW or not (shares or "mean target" in comparison.overview):
        return None
    figure = go.Figure()
    for i, column in enumerate(shares):
        figure.add_bar(
            y=clients,
            x=comparison.overview[column],
            name=column.removeprefix("share of "),
            orientation="h",
            marker={"color": COLOURS[i % len(COLOURS)]},
            hovertemplate="%{y}: %{x:.0%}<extra>" + column + "</extra>",
        )
    if shares:
        figure.update_xaxes(tickformat=".0%", range=[0, 1], title="share of each class")
    else:
        figure.add_bar(y=clients, x=comparison.overview["mean target"], orientation="h", marker={"color": COLOURS[1]})
        figure.update_xaxes(title="mean of the target")
    figure.update_yaxes(autorange="reversed", type="category")
    return layout(figure, 110 + 30 * len(clients), barmode="stack", bargap=0.3)
