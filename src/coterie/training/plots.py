"""Matplotlib pictures of results; every function returns the Axes and never shows them."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from coterie.base.text import suggest
from coterie.errors import ConfigError

GAIN, LOSS, NEUTRAL = "#2a7f62", "#b5443c", "#4a6fa5"


def axes(ax: Axes | None, size: tuple[float, float] = (6.0, 3.6)) -> Axes:
    return plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def plot_history(history: pd.DataFrame, column: str = "loss", ax: Axes | None = None) -> Axes:
    """One column of the history over the rounds."""
    if column not in history:
        raise ConfigError(f"The history has no column {column!r}. {suggest(column, history.columns)}")
    ax = axes(ax)
    shown = history[["round", column]].dropna()
    ax.plot(shown["round"], shown[column], color=NEUTRAL)
    ax.set(xlabel="round", ylabel=column.replace("_", " "))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_gains(evaluation: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Every client's gain or loss by taking part: bars for few clients, a sorted curve for many."""
    gains = evaluation["gain"].sort_values()
    few = len(gains) <= 40
    ax = axes(ax, (6.0, max(2.0, 0.28 * len(gains) + 0.8) if few else 3.6))
    colours: Any = np.where(gains >= 0, GAIN, LOSS)
    if few:
        ax.barh([str(c) for c in gains.index], gains, color=colours)
        ax.set_xlabel(f"gain over training alone ({evaluation.columns[0].replace('_', ' ')})")
        ax.axvline(0, color="black", linewidth=0.8)
    else:
        ax.fill_between(np.arange(len(gains)), gains.clip(lower=0), color=GAIN, step="mid")
        ax.fill_between(np.arange(len(gains)), gains.clip(upper=0), color=LOSS, step="mid")
        ax.set(xlabel="clients, sorted by gain", ylabel=f"gain ({evaluation.columns[0].replace('_', ' ')})")
        ax.axhline(0, color="black", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_clusters(clusters: pd.Series[int], ax: Axes | None = None) -> Axes:
    """The number of clients of each group."""
    ax = axes(ax)
    sizes = clusters.value_counts().sort_index()
    ax.bar([str(c) for c in sizes.index], sizes, color=NEUTRAL)
    ax.set(xlabel="group", ylabel="clients")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_bytes(history: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Bytes sent so far, in both directions."""
    ax = axes(ax)
    for column, colour, label in (("bytes_down", NEUTRAL, "to the clients"), ("bytes_up", LOSS, "from the clients")):
        ax.plot(history["round"], history[column].cumsum() / 1e6, color=colour, label=label)
    ax.set(xlabel="round", ylabel="megabytes so far")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
