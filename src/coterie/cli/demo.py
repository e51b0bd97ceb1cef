"""`coterie demo`: rain gauges that should learn in groups, and two tables where staying alone is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from coterie.base.text import metric_name
from coterie.cli.comparing import comparison_of, print_comparison, write
from coterie.cli.using import show as show_predictions
from coterie.comparison.result import Comparison
from coterie.data.federation import Federation
from coterie.data.tables import federation_from_frame
from coterie.datasets import elections, heart, rain, rain_stations

SYMBOLS = "·▲o×+#"
_COLOURS = ("green", "blue", "yellow", "magenta", "cyan", "red")
_WIDTH, _HEIGHT = 64, 18


def show(console: Console, out: Path, seeds: int) -> None:
    """The rain first, then the counter-examples; the report is that of the rain."""
    console.print(
        "[bold]360 rain gauges around Colorado[/], 36 months each: how much rain falls in a month? Each gauge can learn "
        "[bold]alone[/], all can share [bold]one model[/], each can be [bold]shrunk[/] towards the others, or gauges can "
        "form [bold]groups[/]. The methods do not know where a gauge stands.\n",
        markup=True,
    )
    comparison, _ = comparison_of(rain(), console, seeds=seeds, family="linear")
    print_comparison(console, comparison)
    console.print()
    if comparison.groups is not None:
        show_map(console, comparison.groups, rain_stations())
    console.print("\n[bold]Two tables with another answer[/]\n", markup=True)
    others = {name: _compared(make, console, seeds) for name, make in COUNTER_EXAMPLES.items()}
    console.print(_short_table(others))
    for name, found in others.items():
        console.print(
            f"\n[bold]{name}[/] (measured by {metric_name(found.metric)}): {found.verdict()}",
            highlight=False, markup=True,
        )  # fmt: skip
    about = comparison.about | {"rerun": {"data": {"name": "rain"}, "compare": {"seeds": seeds}}}
    write(console, replace(comparison, about=about, positions=rain_stations()[["lon", "lat"]]), None, out)
    _predict(console, comparison)


def _predict(console: Console, comparison: Comparison) -> None:
    """Next May at three gauges that are known, and at one that is new."""
    assert comparison.model is not None
    known = [str(c) for c in comparison.table.columns[:3]]
    may = pd.DataFrame({"station": [*known, "a new gauge"], "month": "May"})
    console.print()
    show_predictions(console, comparison.model.table(may), "Rain of next May, with 90 % intervals")


def _compared(make: Callable[[], Federation], console: Console, seeds: int) -> Comparison:
    return comparison_of(make(), console, seeds=seeds, family="linear")[0]


def states() -> Federation:
    """Counties by state: the Republican share of 2020 from those of the five elections before."""
    table = elections().table
    shares = sorted(c for c in table.columns if str(c).startswith("share"))
    frame = table[["state", *shares]].dropna()
    large = frame.groupby("state")["state"].transform("size") >= 10
    return federation_from_frame(frame[large], client="state", target=shares[-1], kind="regression")


COUNTER_EXAMPLES: dict[str, Callable[[], Federation]] = {"heart, 4 hospitals": heart, "elections, by state": states}


def _short_table(found: dict[str, Comparison]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("table", "clients", "alone", "together", "shrunk", "groups", "advice"):
        table.add_column(name, justify="left" if name in ("table", "advice") else "right")
    for name, c in found.items():
        means = [f"{float(c.table.T[m].mean()):.2g}" for m in ("alone", "together", "shrunk", "groups")]
        table.add_row(name, str(c.about["clients"]), *means, f"{c.recommendation} ({c.sure})")
    return table


def landscape(lon: float, height: float) -> str:
    """The name of a group by where its gauges stand (medians); the methods never saw either."""
    if lon > -105.4:
        return "the plains"
    return "the mountains" if height > 2200 else "the western valleys"


def show_map(console: Console, groups: pd.Series[Any], stations: pd.DataFrame) -> None:
    """A grid of longitudes and latitudes with the commonest group of every cell, and where the groups are."""
    at = stations.loc[[str(c) for c in groups.index]]
    middle = at.groupby(groups.to_numpy())[["lon", "elevation_m"]].median()
    names = {int(g): landscape(row["lon"], row["elevation_m"]) for g, row in middle.iterrows()}  # type: ignore[call-overload]
    console.print("The groups found, where their gauges stand (north is up):", highlight=False)
    for line in map_lines(at["lon"].to_numpy(), at["lat"].to_numpy(), groups.to_numpy()):
        console.print(_coloured(line), highlight=False, markup=True)
    for group in sorted(names, key=lambda g: names[g]):
        inside = at[(groups == group).to_numpy()]
        console.print(
            f"{_coloured(SYMBOLS[group % len(SYMBOLS)])} group {group}, {names[group]}: {len(inside)} gauges, median height "
            f"{inside['elevation_m'].median():.0f} m",
            highlight=False,
            markup=True,
        )


def map_lines(lon: Any, lat: Any, group: Any) -> list[str]:
    """Text lines, north first; an empty cell is a blank."""
    column = np.clip(((lon - lon.min()) / max(np.ptp(lon), 1e-9) * (_WIDTH - 1)).round().astype(int), 0, _WIDTH - 1)
    row = np.clip(((lat.max() - lat) / max(np.ptp(lat), 1e-9) * (_HEIGHT - 1)).round().astype(int), 0, _HEIGHT - 1)
    count = np.zeros((_HEIGHT, _WIDTH, int(np.max(group)) + 1), int)
    np.add.at(count, (row, column, np.asarray(group, int)), 1)
    shown = np.where(count.sum(2) > 0, np.array(list(SYMBOLS))[count.argmax(2) % len(SYMBOLS)], " ")
    return ["".join(line).rstrip() for line in shown]


def _coloured(line: str) -> str:
    colours = dict(zip(SYMBOLS, _COLOURS, strict=True))
    return "".join(f"[{colours[c]}]{c}[/]" if c in colours else c for c in line)
