"""Plotly figures of a comparison. Colours of text, grid and background are the page's, set by its script: they follow the
light or dark theme. Names inside figures go through `label`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from coterie.base.text import method_label, metric_name
from coterie.comparison.result import Comparison
from coterie.report.parts import label, labels

COLOURS = ("#3b82f6", "#d97706", "#0d9488", "#a855f7", "#db2777", "#65a30d", "#0891b2", "#dc2626", "#a16207", "#64748b")
GROUPS = ("#3b82f6", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b5a642", "#8b5cf6")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
GAIN, LOSS, GREY = "#16a34a", "#dc2626", "#94a3b8"
FEW = 20  # clients shown as bars
_POINTS = 150  # of a curve


def blank(height: int, **options: Any) -> go.Figure:
    """An empty figure with the page's margins; no template, since the page's theme is one."""
    figure = go.Figure()
    figure.update_layout(
        template=go.layout.Template(),
        height=height,
        margin={"l": 8, "r": 12, "t": 30, "b": 8},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        **options,
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure


def colour(comparison: Comparison, method: str) -> str:
    return COLOURS[comparison.methods.index(method) % len(COLOURS)]


def others(comparison: Comparison) -> list[str]:
    """The methods that are compared with being alone."""
    return [m for m in comparison.methods if m != comparison.baseline(m)]


def mean_gains(table: pd.DataFrame, metric: str, tones: list[str]) -> tuple[go.Figure, pd.DataFrame]:
    """The mean gain of every method over being alone, with its interval (mean gain, low, high by method)."""
    names = list(labels(method_label(str(m)) for m in table.index).values())
    gain = table["mean gain"].to_numpy()
    figure = blank(90 + 34 * len(table), showlegend=False)
    figure.add_scatter(
        x=gain.tolist(),
        y=names,
        mode="markers",
        marker={"size": 11, "color": tones},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": np.nan_to_num(table["high"] - gain).tolist(),
            "arrayminus": np.nan_to_num(gain - table["low"]).tolist(),
            "thickness": 2,
            "width": 5,
            "color": GREY,
        },
        hovertemplate="%{y}: %{x:+.4g}<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(title=f"mean gain, {metric_name(metric)}", zeroline=True)
    return figure, table.rename_axis("method").reset_index()


def client_map(
    at: pd.DataFrame, groups: pd.Series[Any], more: pd.Series[Any] | None, *, geographic: bool
) -> tuple[go.Figure, pd.DataFrame]:
    """Clients at their positions, or arranged by their models; colour and shape show the group."""
    across, up = (str(c) for c in at.columns[:2])
    table = pd.DataFrame({"client": groups.index, across: at.iloc[:, 0].to_numpy(), up: at.iloc[:, 1].to_numpy()})
    table["group"] = groups.to_numpy()
    if more is not None:
        table["stability"] = more.to_numpy()
    figure = blank(430)
    for group, part in table.groupby("group"):
        extra = "" if more is None else "<br>in this group in %{customdata:.0%} of the fits"
        figure.add_scatter(
            x=part[across].tolist(),
            y=part[up].tolist(),
            mode="markers",
            name=f"group {group}",
            text=[label(c, 40) for c in part["client"]],
            customdata=None if more is None else part["stability"].tolist(),
            marker={"size": 9 if len(table) <= 400 else 6, "opacity": 0.85} | _marker(group),
            hovertemplate="%{text}" + extra + f"<extra>group {group}</extra>",
        )  # fmt: skip
    figure.update_xaxes(title=label(across), zeroline=False)
    figure.update_yaxes(title=label(up), zeroline=False)
    if geographic:  # a degree of longitude is shorter than one of latitude
        ratio = 1 / max(np.cos(np.radians(float(at.iloc[:, 1].mean()))), 0.1) if up.lower().startswith("lat") else 1.0
        figure.update_yaxes(scaleanchor="x", scaleratio=ratio, constrain="domain", constraintoward="top")
        figure.update_xaxes(constrain="domain")
    return figure, table


def group_colour(group: object) -> str:
    return GREY if int(str(group)) < 0 else GROUPS[int(str(group)) % len(GROUPS)]


def _marker(group: object) -> dict[str, str]:
    return {"color": group_colour(group), "symbol": SYMBOLS[int(str(group)) % len(SYMBOLS)]}


def matrix(apart: pd.DataFrame, unit: str) -> tuple[go.Figure, pd.DataFrame]:
    """Distances between clients' models, ordered by group."""
    names = [f"{i + 1}. {label(c, 20)}" for i, c in enumerate(apart.index)]
    figure = blank(430)
    figure.add_heatmap(
        z=[[float(f"{v:.3g}") for v in line] for line in apart.to_numpy()],
        x=names,
        y=names,
        colorscale="Viridis",
        reversescale=True,
        colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12},
        hovertemplate="%{y}<br>%{x}<br>%{z:.3g}<extra></extra>",
    )
    few = len(names) <= 15
    text = {"type": "category", "showgrid": False, "ticks": ""}  # a client may be called 1.5
    figure.update_xaxes(showticklabels=False, **text)
    figure.update_yaxes(showticklabels=few, autorange="reversed", **text)
    return figure, apart.rename_axis("client").reset_index()


def apart_dots(told: pd.DataFrame, what: str, title: str, most: int = 12) -> tuple[go.Figure, pd.DataFrame] | None:
    """What distinguishes groups in one respect: the properties with the largest differences, a dot per group."""
    part = told[told["what"] == what]
    names = list(dict.fromkeys(part["name"]))[:most]
    if not names:
        return None
    shown, told_apart = part[part["name"].isin(names)], labels(names)
    figure = blank(150 + 26 * len(names))
    for group, some in shown.groupby("group"):
        figure.add_scatter(
            x=some["size"].tolist(),
            y=[told_apart[n] for n in some["name"]],
            mode="markers",
            name=f"group {group}",
            marker={"size": 10} | _marker(group),
            hovertemplate="%{y}: %{x:+.2f}<extra>group " + str(group) + "</extra>",
        )
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(told_apart.values()), autorange="reversed"
    )
    figure.update_xaxes(title=title, zeroline=True)
    return figure, shown


def curves(comparison: Comparison, column: str) -> tuple[go.Figure, pd.DataFrame]:
    """One column of the histories over the rounds: mean over seeds, thin lines for the seeds."""
    figure, kept = blank(330), []
    for method, part in comparison.curves.groupby("method", sort=False):
        shown = part[["method", "round", "seed", column]].dropna()
        kept.append(shown)
        tone, name = colour(comparison, str(method)), label(method)
        mean = _common_rounds(shown, column)
        if shown["seed"].nunique() > 1:
            for _, one in shown.groupby("seed"):
                one = one.iloc[_thin(len(one))]
                figure.add_scatter(
                    x=one["round"].tolist(), y=one[column].tolist(), mode="lines", line={"color": tone, "width": 1},
                    opacity=0.3, showlegend=False, hoverinfo="skip", legendgroup=name,
                )  # fmt: skip
        mean = mean.iloc[_thin(len(mean))]
        figure.add_scatter(
            x=mean.index.tolist(), y=mean.tolist(), mode="lines", name=name, line={"color": tone, "width": 2.5},
            legendgroup=name, hovertemplate="round %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_xaxes(title="round", rangemode="tozero")
    return figure, pd.concat(kept, ignore_index=True)


def _thin(n: int) -> np.ndarray:
    """At most `_POINTS` places of n, including the last."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, _POINTS)).astype(int))


def _common_rounds(shown: pd.DataFrame, column: str) -> pd.Series[Any]:
    """Mean over seeds at the rounds that every seed reached (their number is chosen a split at a time)."""
    grouped = shown.groupby("round")[column]
    mean: pd.Series[Any] = grouped.mean()[grouped.count() == shown["seed"].nunique()]
    return mean


def bytes_bars(comparison: Comparison) -> tuple[go.Figure, pd.DataFrame] | None:
    """The megabytes that a whole run sends from the server and to it, as a mean over seeds."""
    if not {"bytes_down", "bytes_up"} <= set(comparison.curves.columns):
        return None
    total = comparison.curves.groupby(["method", "seed"], sort=False)[["bytes_down", "bytes_up"]].sum()
    table = total.groupby("method", sort=False).mean() / 1e6
    if not table.to_numpy().sum():
        return None
    names = list(labels(method_label(str(m)) for m in table.index).values())
    figure = blank(110 + 34 * len(table), barmode="stack", bargap=0.35)
    for column, name, tone in (
        ("bytes_down", "to the clients", COLOURS[0]),
        ("bytes_up", "from the clients", COLOURS[1]),
    ):
        figure.add_bar(
            y=names, x=table[column].tolist(), name=name, orientation="h", marker={"color": tone},
            hovertemplate="%{y}: %{x:.4g} MB<extra>" + name + "</extra>",
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(title="megabytes of one run, all clients")
    return figure, table.rename(columns={"bytes_down": "MB down", "bytes_up": "MB up"}).reset_index()


def gets_and_brings(found: pd.DataFrame) -> tuple[go.Figure, pd.DataFrame] | None:
    """What each client brings to the others (across) and gets (up), by group; hollow where it is open."""
    if not found["brings"].notna().any():
        return None
    figure = blank(400)
    for group, part in found.groupby("group"):
        tone = group_colour(group)
        figure.add_scatter(
            x=part["brings"].tolist(), y=part["gets"].tolist(), mode="markers", text=[label(c, 40) for c in part.index],
            name="alone" if int(str(group)) < 0 else f"group {group}",
            marker={"size": 10, "color": tone, "symbol": ["circle-open" if s == "open" else "circle" for s in part["sure"]]},
            error_x={"array": np.nan_to_num(part["brings_se"]).tolist(), "color": GREY, "thickness": 1},
            error_y={"array": np.nan_to_num(part["gets_se"]).tolist(), "color": GREY, "thickness": 1},
            hovertemplate="%{text}<br>brings %{x:+.4g}, gets %{y:+.4g}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="brings to the others", zeroline=True)
    figure.update_yaxes(title="gets over training alone", zeroline=True)
    return figure, found.rename_axis("client").reset_index()


def target_bars(comparison: Comparison) -> tuple[go.Figure, pd.DataFrame] | None:
    """Shares of the classes, or the mean of the target, by client."""
    shares = [c for c in comparison.overview.columns if c.startswith("share of ")]
    clients = list(labels(comparison.overview.index).values())
    if len(clients) > FEW or not (shares or "mean target" in comparison.overview):
        return None
    figure = blank(110 + 30 * len(clients), barmode="stack", bargap=0.3)
    for i, column in enumerate(shares):
        name = label(column.removeprefix("share of "))
        figure.add_bar(
            y=clients, x=comparison.overview[column].tolist(), name=name, orientation="h",
            marker={"color": COLOURS[i % len(COLOURS)]}, hovertemplate="%{y}: %{x:.0%}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    if shares:
        figure.update_xaxes(tickformat=".0%", range=[0, 1], title="share of each class")
    else:
        means = comparison.overview["mean target"].tolist()
        figure.add_bar(y=clients, x=means, orientation="h", marker={"color": COLOURS[0]}, showlegend=False)
        figure.update_xaxes(title="mean of the target")
    figure.update_yaxes(autorange="reversed", type="category")
    return figure, comparison.overview.rename_axis("client").reset_index()
