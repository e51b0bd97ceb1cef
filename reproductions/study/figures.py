"""Figures of the studies, as SVG."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reproductions.study.tabulate import covered, flat

_COLOURS = {"nothing": "#bbbbbb", "alone": "#4477aa", "together": "#ee6677", "shrunk": "#228833", "groups": "#ccbb44"}
_MOST = 30  # rows of a figure that can still be read


def draw(study: str, records: dict[str, Any], path: Path) -> None:
    """Draw a study into a file; nothing is shown."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "coterie"
    figure = {"tables": _tables, "coverage": _coverage, "deployment": _deployment}.get(study, _answers)(records, plt)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _short(key: Any) -> str:
    world, metric = key
    name = " ".join(part for part in world.split(" ") if part not in ("n10-60", "c2", "e0.35"))
    return f"{name} · {metric}"


def _answers(records: dict[str, Any], plt: Any) -> Any:
    """Stacked shares of answers per world and metric; the share of wrong ones in words."""
    table = flat(records)
    table["answer"] = np.where(table["sure"] == "nothing", "nothing", table["advice"])
    cells = list(table.groupby(["world", "metric"], sort=False))
    if len(cells) > _MOST:  # the two metrics that recommendations use by default
        cells = [(key, cell) for key, cell in cells if key[1] in ("mse", "log_loss")]
    figure, ax = plt.subplots(figsize=(8, 0.24 * len(cells) + 1))
    for y, (_, cell) in enumerate(cells):
        left = 0.0
        for answer, colour in _COLOURS.items():
            share = float((cell["answer"] == answer).mean())
            ax.barh(y, share, left=left, color=colour, label=answer if y == 0 else None, height=0.8)
            left += share
        ax.text(1.01, y, f"wrong {100 * cell['wrong'].mean():.0f} % of {len(cell)}", va="center", fontsize=7)
    ax.set_yticks(range(len(cells)), [_short(key) for key, _ in cells], fontsize=7)
    ax.set_ylim(len(cells) - 0.4, -0.6)
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of worlds by answer")
    ax.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False, fontsize=8)
    return figure


def _coverage(records: dict[str, Any], plt: Any) -> Any:
    """Coverage of the nominal 95 % interval per world and metric, with two standard errors."""
    table = flat(records)
    table["covered"] = [covered(row) for row in table.to_dict("records")]
    cells = list(table.groupby(["world", "metric"], sort=False))
    figure, ax = plt.subplots(figsize=(7, 0.24 * len(cells) + 1))
    share = np.array([cell["covered"].mean() for _, cell in cells])
    count = np.array([len(cell) for _, cell in cells])
    error = 2 * np.sqrt(np.maximum(share * (1 - share), 0.25 / count) / count)
    ax.errorbar(share, range(len(cells)), xerr=error, fmt="o", markersize=4, color="#4477aa")
    ax.axvline(0.95, color="#ee6677", linewidth=1)
    ax.set_yticks(range(len(cells)), [_short(key) for key, _ in cells], fontsize=7)
    ax.invert_yaxis()
    ax.set_xlim(0.5, 1.02)
    ax.set_xlabel("share of intervals that hold the true gain (nominal 0.95)")
    return figure


def _deployment(records: dict[str, Any], plt: Any) -> Any:
    """Losses over that of the best peer, per table: the deployed model, `shrunk`, and the other peers."""
    order = sorted(records, key=lambda n: _over(records[n])["deployed"])
    figure, ax = plt.subplots(figsize=(7, 0.22 * len(order) + 1))
    for y, name in enumerate(order):
        over = {key: min(value, 2.0) for key, value in _over(records[name]).items()}
        peers = [value for key, value in over.items() if key.startswith("peer")]
        ax.plot(peers, [y] * len(peers), "|", color="#bbbbbb", markersize=9, label=None if y else "peers")
        ax.plot(over["shrunk"], y, "o", color=_COLOURS["shrunk"], markersize=4, label=None if y else "shrunk")
        ax.plot(over["deployed"], y, "o", color="#4477aa", markersize=6, label=None if y else "deployed")
    ax.axvspan(0, 1.02, color="#4477aa", alpha=0.08, linewidth=0)
    ax.set_yticks(range(len(order)), [n.rpartition("/")[2] for n in order], fontsize=7)
    ax.set_xscale("log")
    ax.set_xlim(0.5, 2.1)
    ax.set_xticks([0.5, 0.75, 1, 1.25, 1.5, 2], ["0.5", "0.75", "1", "1.25", "1.5", "2"])
    ax.minorticks_off()
    ax.set_xlabel("loss on held-out rows over that of the best peer (cut at 2); shaded: at most 2 % more")
    ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8)
    return figure


def _over(record: dict[str, Any]) -> dict[str, float]:
    """Losses over that of the best peer."""
    loss = record["by_row"]
    best = min(value for name, value in loss.items() if name.startswith("peer"))
    return {name: value / best for name, value in loss.items()}


def _tables(records: dict[str, Any], plt: Any) -> Any:
    """Losses relative to alone per table; the recommended method is ringed."""
    names = list(records)
    losses = pd.DataFrame({name: records[name]["losses"] for name in names})
    relative = losses / losses.loc["alone"]
    figure, ax = plt.subplots(figsize=(7, 0.26 * len(names) + 1))
    for way in ("together", "shrunk", "groups", "alone"):
        ax.plot(relative.loc[way].clip(upper=3), range(len(names)), "o", markersize=5, color=_COLOURS[way], label=way)
    for y, name in enumerate(names):
        x = min(float(relative.loc[records[name]["advice"], name]), 3.0)
        ax.plot(x, y, "o", markersize=11, fillstyle="none", color="black")
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlabel("loss relative to alone on unseen rows (cut at 3); ringed: the advice")
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8)
    return figure
