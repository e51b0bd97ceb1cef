"""The report's figures in matplotlib, for papers: every function returns the Axes and never shows them.

`ax.figure.savefig("gains.pdf")` writes vectors. Colours and shapes are those of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from coterie.base.text import metric_name, suggest
from coterie.comparison.likeness import embedding, model_points, ordered_distances, tell_apart
from coterie.errors import ConfigError
from coterie.evidence.gains import GAINS, LOSES
from coterie.training.plots import GAIN, LOSS, axes

if TYPE_CHECKING:
    from coterie.comparison.result import Comparison

GREY = "#8a8a8a"
GROUPS = ("#3b82f6", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#b5a642", "#8b5cf6")
SHAPES = "osD^PX*v"
_FEW = 60  # clients with names


def plot_means(c: Comparison, ax: Axes | None = None) -> Axes:
    """The mean gain of every method over being alone, with its interval."""
    table = c.summary().loc[[m for m in c.methods if m != c.baseline(m)], ["mean gain", "low", "high"]]
    ax = axes(ax, (6.0, 0.35 * len(table) + 0.9))
    place = np.arange(len(table))[::-1]
    ax.hlines(place, table["low"], table["high"], color=GREY, linewidth=2)
    ax.scatter(table["mean gain"], place, color=[GROUPS[i % len(GROUPS)] for i in range(len(table))], s=36, zorder=3)
    ax.set_yticks(place, [str(m) for m in table.index])
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set(xlabel=f"mean gain over being alone ({metric_name(c.metric)})", ylim=(-0.6, len(table) - 0.4))
    return _bare(ax)


def plot_gains(c: Comparison, method: str | None = None, ax: Axes | None = None) -> Axes:
    """Every client's gain with its interval, the largest first: with names for up to 60 clients."""
    method = _known(c, c.method if method is None else method)
    gain = c.gains.T[method].astype(float).dropna().sort_values()
    half = c.half_widths.T[method].astype(float).loc[gain.index].fillna(0)
    marks = c.marks.T[method].loc[gain.index]
    tones = np.where(marks == GAINS, GAIN, np.where(marks == LOSES, LOSS, GREY)).tolist()
    place, few = np.arange(len(gain)), len(gain) <= _FEW
    ax = axes(ax, (6.0, max(1.6, 0.22 * len(gain) + 0.8)) if few else (6.0, 3.4))
    label = f"gain over being alone ({metric_name(c.metric)}), {method}"
    if few:
        ax.hlines(place, gain - half, gain + half, colors=tones, linewidth=1.5)
        ax.scatter(gain, place, c=tones, s=22, zorder=3)
        ax.set_yticks(place, [str(x) for x in gain.index])
        ax.set(xlabel=label, ylim=(-0.6, len(gain) - 0.4))
        ax.axvline(0, color="black", linewidth=0.8)
    else:
        ax.vlines(place[::-1], gain - half, gain + half, colors=tones, linewidth=0.5, alpha=0.6)
        ax.scatter(place[::-1], gain, c=tones, s=4, zorder=3)
        ax.set(xlabel="clients, the largest gain first", ylabel=label)
        ax.axhline(0, color="black", linewidth=0.8)
    return _bare(ax)


def plot_map(c: Comparison, positions: pd.DataFrame | None = None, ax: Axes | None = None) -> Axes:
    """Clients coloured by group, at their places (positions, or those of the comparison), else by their models."""
    found, where = _groups(c), c.positions if positions is None else positions
    ax = axes(ax, (5.0, 4.2))
    if where is None:
        points = model_points(c)
        if points is None:
            raise ConfigError("There are neither positions nor models in memory to draw a map from. Pass positions.")
        at = embedding(points).loc[found.index]
    else:
        at = where.set_axis([str(i) for i in where.index], axis=0).reindex([str(i) for i in found.index])
        if at.isna().to_numpy().any():
            raise ConfigError("positions must have a row for every client; some are missing. Add them.")
        ax.set_aspect(1 / max(np.cos(np.radians(at.iloc[:, 1].mean())), 0.1) if _latitude(at) else 1.0)
    for g in np.unique(found):
        some = at[(found == g).to_numpy()]
        ax.scatter(
            some.iloc[:, 0], some.iloc[:, 1], s=18, color=GROUPS[g % 8], marker=SHAPES[g % 8], label=f"group {g}"
        )
    ax.set(xlabel=str(at.columns[0]), ylabel=str(at.columns[1]))
    ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))  # next to the clients
    return _bare(ax)


def _latitude(at: pd.DataFrame) -> bool:
    return str(at.columns[1]).lower().startswith("lat")


def plot_likeness(c: Comparison, ax: Axes | None = None) -> Axes:
    """How much the predictions of two clients' own models differ; clients are ordered by group, and dark is different."""
    points, found = model_points(c), _groups(c)
    if points is None:
        raise ConfigError("There are no models in memory to compare the clients by. Compare again without loading.")
    ax = axes(ax, (4.6, 4.0))
    image = ax.imshow(ordered_distances(points.loc[found.index], found), cmap="viridis_r", interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="difference of predictions")
    ax.set(xticks=[], yticks=[], xlabel="clients, ordered by group")
    return ax


def plot_apart(c: Comparison, what: str = "effect", most: int = 12, ax: Axes | None = None) -> Axes:
    """The differences between groups by "column", "effect" or "target"; see `likeness.tell_apart`."""
    if what not in ("column", "effect", "target"):
        raise ConfigError(f"what must be column, effect or target; got {what!r}. Name one of them.")
    told = tell_apart(c, _groups(c), next(iter(c.grouped)))
    told = told[told["what"] == what]
    names = list(dict.fromkeys(told["name"]))[:most][::-1]
    ax = axes(ax, (6.0, 0.28 * len(names) + 1.2))
    for g, some in told[told["name"].isin(names)].groupby("group"):
        place = [names.index(n) for n in some["name"]]
        tone, shape = GROUPS[int(str(g)) % 8], SHAPES[int(str(g)) % 8]
        ax.scatter(some["size"], place, color=tone, marker=shape, label=f"group {g}", zorder=3)
    ax.set_yticks(range(len(names)), names)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set(xlabel="group minus the others, in standard deviations")
    ax.legend(frameon=False, fontsize="small")
    return _bare(ax)


def plot_curves(c: Comparison, column: str = "loss", ax: Axes | None = None) -> Axes:
    """A column of the histories over the rounds: thin lines are seeds, thick ones their mean as far as all ran."""
    if column not in c.curves:
        raise ConfigError(f"There is no curve {column!r}. {suggest(column, c.curves.columns)}")
    ax = axes(ax)
    for i, (method, part) in enumerate(c.curves.groupby("method", sort=False)):
        tone, shown = GROUPS[i % 8], part[["round", "seed", column]].dropna()
        for _, one in shown.groupby("seed"):
            ax.plot(one["round"], one[column], color=tone, linewidth=0.7, alpha=0.35)
        by = shown.groupby("round")[column]
        mean = by.mean()[by.count() == shown["seed"].nunique()]
        ax.plot(mean.index, mean, color=tone, linewidth=2, label=str(method))
    ax.set(xlabel="round", ylabel=column.replace("_", " "))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small")
    return _bare(ax)


def plot_bytes(c: Comparison, ax: Axes | None = None) -> Axes:
    """The bytes that a whole run sends, as a mean over seeds."""
    if "bytes_up" not in c.curves:
        raise ConfigError("Nothing was sent: exact models are not trained in rounds. Name algorithms to train.")
    total = c.curves.groupby(["method", "seed"], sort=False)[["bytes_down", "bytes_up"]].sum()
    table = total.groupby("method", sort=False).mean().iloc[::-1] / 1e6
    ax = axes(ax, (6.0, 0.35 * len(table) + 1.0))
    names = [str(m) for m in table.index]
    ax.barh(names, table["bytes_down"], color=GROUPS[0], label="to the clients")
    ax.barh(names, table["bytes_up"], left=table["bytes_down"], color=GROUPS[1], label="from the clients")
    ax.set(xlabel="megabytes of one run, all clients")
    ax.legend(frameon=False, fontsize="small")
    return _bare(ax)


def _bare(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _known(c: Comparison, method: str) -> str:
    if method not in c.gains.index:
        raise ConfigError(f"There is no method {method!r}. {suggest(method, c.methods)}")
    return method


def _groups(c: Comparison) -> pd.Series[Any]:
    found = next(iter(c.grouped.values()), None)
    if found is None:
        raise ConfigError("No method found more than one group, so there is no picture of groups.")
    return found
