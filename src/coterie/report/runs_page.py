"""The page and the terminal table of saved runs side by side, from the sections of a comparison's page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.table import Table as Rich

from coterie.base.disk import write_text
from coterie.base.text import metric_name, number
from coterie.comparison.result import Comparison
from coterie.errors import ConfigError
from coterie.evidence.gains import Gains, intervals
from coterie.report import figures
from coterie.report.page import assemble
from coterie.report.parts import Chart, Table, render, row, section, with_code
from coterie.report.runs import Run, load, named, side_by_side
from coterie.report.sections.clients import clients
from coterie.report.sections.data import data
from coterie.report.sections.groups import groups
from coterie.report.sections.privacy import run_receipt
from coterie.report.sections.training import traffic, training

TITLE = "Runs side by side"
_HOW = (
    "drawn with its interval over seeds, where there are several, corrected for looking at many clients: how much training "
    "varies, not how much other test rows would. So no client is marked."
)
_COLUMNS = ("run", "method", "seed", "rounds", "done", "mean", "gain", "error", "MB", "groups")


def write_runs(folders: Sequence[Path], out: Path | None = None) -> tuple[Path, list[Run]]:
    """The page of some saved runs, and the data it was made from."""
    if out is not None and not out.is_dir() and out.suffix not in ("", ".html", ".htm"):
        raise ConfigError(f"--out must be a folder or a page ending in .html; got {out}. Name another.")
    runs = named([run for folder in folders for run in load(folder)])
    if out is not None and (out.is_dir() or out.suffix == ""):
        out = out / "report.html"
    path = out or (
        folders[0] / "report.html" if len(folders) == 1 and runs[0].result is not None else Path("report.html")
    )
    write_text(path, page(runs))
    return path, runs


def page(runs: list[Run]) -> str:
    c = side_by_side(runs)
    receipts = [
        run_receipt(f"Privacy receipt of {r.method}, seed {r.seed}", r.result.receipt)
        for r in runs
        if r.result is not None and r.result.receipt is not None
    ]
    parts = [
        _head(runs, c), _overview(runs, c), clients(c, how=_HOW), groups(c), training(c), traffic(c), data(c), *receipts,
        *_settings(runs),
    ]  # fmt: skip
    return assemble(TITLE, parts)


def _head(runs: list[Run], c: Comparison) -> Markup:
    methods, seeds = len({r.method for r in runs}), len({r.seed for r in runs})
    counts = ((len(runs), "run"), (methods, "method"), (seeds, "seed"), (c.about["clients"], "client"))
    told = ", ".join(f"{n:,} {what}{'s' * (n > 1)}" for n, what in counts)
    return render("head", title=TITLE, facts=f"{told}; measured by {metric_name(c.metric)}.")


def facts(runs: list[Run]) -> pd.DataFrame:
    """A row per run: what it was, the mean over clients, the mean gain and its standard error over clients, megabytes."""
    rows = []
    for r in runs:
        gain = r.scores["gain"].dropna()
        error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else float("nan")
        sent = r.history[["bytes_down", "bytes_up"]].to_numpy().sum() / 1e6 if "bytes_up" in r.history else float("nan")
        means = (r.scores["score"].mean(), gain.mean(), error, sent)
        where = str(r.folder) if len(str(r.folder)) <= 20 else f"…/{r.folder.name}"
        rows.append([where, r.method, r.seed, r.rounds, r.finished, *means, r.clusters.nunique()])
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _words(table: pd.DataFrame) -> list[list[str]]:
    return [
        [str(r[0]), str(r[1]), str(r[2]), "–" if pd.isna(r[3]) else f"{r[3]:.0f}", "yes" if r[4] else "no", number(r[5]),
         number(r[6], "+"), number(r[7]), number(r[8]), str(r[9])]
        for r in table.itertuples(index=False, name=None)
    ]  # fmt: skip


def _overview(runs: list[Run], c: Comparison) -> Markup:
    table = facts(runs)
    note = "Mean over clients; gains over training alone, with their standard error over clients."
    cells = Table(list(_COLUMNS), [row(*line) for line in _words(table)], "text", "The runs")
    by = table.groupby("method", sort=False)
    shown = pd.DataFrame(
        {str(m): _interval(part, len(c.table.columns)) for m, part in by}, index=["mean gain", "low", "high"]
    ).T
    shown = shown.dropna()
    many = by.size() > 1
    charts = []
    if len(shown):
        tones = [figures.colour(c, str(m)) for m in shown.index]
        figure, kept = figures.mean_gains(shown, c.metric, tones)
        told = ", ".join(f"{m} {number(float(g), '+')}" for m, g in shown["mean gain"].items())
        title = "Mean gain, with its interval over clients" + (" or seeds, the larger" if many.any() else "")
        charts = [Chart(figure, f"Mean gain over training alone: {told}.", kept, "mean-gains", title)]
    return section("Runs", note, charts=charts, table=cells)


def _interval(runs: pd.DataFrame, clients: int) -> tuple[float, float, float]:
    """The mean gain of one method's runs, with its interval by their spread or by that of the clients, the larger."""
    count, mean = len(runs), float(runs["gain"].mean())
    seeds = float(runs["gain"].std(ddof=1) / np.sqrt(count)) if count > 1 else np.nan
    over = ((float(runs["error"].mean()), clients), (seeds, count))
    error, number = max((pair for pair in over if np.isfinite(pair[0])), default=(np.nan, 2))
    parts = (np.array([float(value)]) for value in (mean, error, number - 1, number))
    low, high = intervals(Gains(*parts), fewest=2)
    return mean, float(low[0]), float(high[0])


def _settings(runs: list[Run]) -> list[Markup]:
    """The files that run them again."""
    shown = []
    for folder in dict.fromkeys(r.folder for r in runs):
        for name in ("config.toml", "settings.toml"):
            if (folder / name).is_file():
                text = (folder / name).read_text("utf-8")
                note = with_code(f"`coterie run {name}` runs it again.")
                shown.append(section(f"Settings of {folder.name or folder}", note, pre=text))
    return shown


def runs_table(runs: list[Run]) -> Rich:
    """For the terminal: what fits 80 columns."""
    table, shown = Rich(box=SIMPLE_HEAD, header_style="bold", pad_edge=False), (0, 1, 2, 3, 5, 6, 7)
    for i in shown:
        left = _COLUMNS[i] in ("run", "method")
        table.add_column(_COLUMNS[i], justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for line in _words(facts(runs)):
        table.add_row(*(line[i] for i in shown))
    return table
