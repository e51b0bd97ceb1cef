"""The two drawings most experiments need: values beside the paper's, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproductions.experiment import Row

PAPER, OURS = "0.65", "#4a6fa5"
COLOURS = ("#4a6fa5", "#2a7f62", "#b5443c", "#c58a1b", "#7a5aa0", "#3b3b3b", "#1b9aaa", "#9a6b4f")


def beside(rows: Sequence[Row], label: str, zero: bool = True) -> Figure:
    """The paper's value (grey, where it is printed) over our mean with two standard errors.

    Bars from zero, or, with ``zero=False``, points on a part of the axis, on which the length of a bar would mislead."""
    figure = Figure(figsize=(7.2, 0.42 * len(rows) + 1.3), layout="constrained")
    ax = figure.subplots()
    places = np.arange(len(rows))[::-1]
    printed = [np.nan if row.paper is None else row.paper for row in rows]
    any_printed = bool(np.isfinite(printed).any())
    shift = 0.2 if any_printed else 0.0
    means, errors = [row.mean for row in rows], [2 * np.nan_to_num(row.error) for row in rows]
    ours = "ours ± 2 standard errors" if any(errors) else "ours"
    if zero:
        if any_printed:
            ax.barh(places + shift, printed, height=0.36, color=PAPER, label="paper")
        height = 0.36 if any_printed else 0.6
        ax.barh(places - shift, means, height=height, color=OURS, xerr=errors if any(errors) else None, label=ours)
    else:
        if any_printed:
            ax.plot(printed, places + shift / 2, "D", ms=5, color=PAPER, label="paper")
        ax.errorbar(means, places - shift / 2, xerr=errors, fmt="o", ms=5, color=OURS, label=ours)
        ax.grid(axis="x", color="0.92")
    ax.set_yticks(places, [row.what for row in rows], fontsize=8)
    ax.set_ylim(-0.7, len(rows) - 0.3)
    ax.set_xlabel(label)
    ax.spines[["top", "right"]].set_visible(False)
    if any_printed or any(errors):
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def curves(
    ax: Axes, x: Sequence[float], lines: Mapping[str, Any], title: str = "", xlabel: str = "", ylabel: str = ""
) -> Axes:
    """One curve for every name; a list of runs is drawn as its mean with the range of the runs behind it."""
    for colour, (name, values) in zip(COLOURS * 3, lines.items(), strict=False):
        runs = np.atleast_2d(np.asarray(values, dtype=float))
        ax.plot(x, runs.mean(0), color=colour, label=name, lw=1.6)
        if len(runs) > 1:
            ax.fill_between(x, runs.min(0), runs.max(0), color=colour, alpha=0.15, lw=0)
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def panels(count: int, columns: int = 4, width: float = 3.6, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, `columns` in a row."""
    across = min(count, columns)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes[:count]
