"""One runner for all experiments: measure cell after cell, keep each in a JSON file at once, go on where it ended.

``coterie reproduce NAME --scale quick --seeds 3 --out DIR`` writes DIR/NAME.json (all numbers, with date, machine and
version), DIR/NAME.csv (the table), DIR/NAME.png and DIR/NAME.svg (the figure).
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import coterie
from coterie.base.disk import locked, write_text, writing
from coterie.errors import ConfigError
from reproductions.experiment import Experiment, Records, Scale

_PATIENCE = 60.0  # seconds to wait while another experiment writes into the same folder


def run(
    experiment: Experiment, scale: Scale, seeds: int | None, out: Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure what the file does not have yet; returns the file's content."""
    path = out / f"{experiment.name}.json"
    kept = load(path, experiment, scale) if path.exists() else _fresh(experiment, scale)
    cells = experiment.cells(scale)
    first, count = experiment.first_seed, seeds or experiment.seeds[scale]
    wanted = [(str(seed), cell) for seed in range(first, first + count) for cell in cells]
    missing = [(seed, cell) for seed, cell in wanted if seed not in kept["cells"].get(cell, {})]
    if len(missing) < len(wanted):
        say(f"{path} already has {len(wanted) - len(missing)} of {len(wanted)} measurements.")
    if experiment.recall:
        experiment.recall(kept["cells"])
    for done, (seed, cell) in enumerate(missing, 1):
        began, cpu = time.perf_counter(), time.process_time()
        measured = experiment.measure(cells[cell], int(seed), scale)
        kept["cells"].setdefault(cell, {})[seed] = measured
        kept["seconds"] = round(kept["seconds"] + time.perf_counter() - began, 2)
        kept["processor_seconds"] = round(kept["processor_seconds"] + time.process_time() - cpu, 2)
        kept.update(about())
        _write(path, kept)
        say(f"{done}/{len(missing)}  seed {seed}  {cell}  {time.perf_counter() - began:.1f} s")
    return kept


def records(kept: dict[str, Any]) -> Records:
    """The measurements of a file. Unless it is ragged, only seeds under which every cell was measured count."""
    if kept.get("ragged"):
        return Records(kept["scale"], kept["cells"])
    whole = set.intersection(*(set(seeds) for seeds in kept["cells"].values())) if kept["cells"] else set()
    return Records(
        kept["scale"], {cell: {s: v for s, v in by.items() if s in whole} for cell, by in kept["cells"].items()}
    )


def table(experiment: Experiment, found: Records) -> pd.DataFrame:
    """The paper's values beside ours, with a verdict for every row."""
    rows = [row for row in experiment.rows(found) if len(row.ours)]  # others are not yet measured
    lines = [(row.what, row.printed, row.shown, len(row.ours), row.verdict(rows)) for row in rows]
    return pd.DataFrame(lines, columns=["what", "paper", "ours", "seeds", "verdict"])


def finish(experiment: Experiment, kept: dict[str, Any], out: Path) -> pd.DataFrame:
    """Write the table and the figure beside the numbers; returns the table."""
    found = records(kept)
    summary = table(experiment, found)
    figure = experiment.draw(found)
    with locked(out, _PATIENCE):
        with writing(out / f"{experiment.name}.csv") as half:
            summary.to_csv(half, index=False)
        for ending in ("png", "svg"):
            with writing(out / f"{experiment.name}.{ending}") as half:
                figure.savefig(half, format=ending, dpi=150, metadata={"Date": None} if ending == "svg" else None)
    return summary


def load(path: Path, experiment: Experiment, scale: Scale) -> dict[str, Any]:
    """A file of this experiment and scale, or one sentence why not."""
    try:
        kept = json.loads(path.read_text())
        found = (kept["experiment"], kept["scale"], dict(kept["cells"]))[:2]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}). Move it away and run again.") from None
    if found != (experiment.name, scale):
        raise ConfigError(f"{path} holds {found[0]} at {found[1]} scale. Choose another --out for {scale} scale.")
    return dict(kept)


def _fresh(experiment: Experiment, scale: Scale) -> dict[str, Any]:
    fresh = {"experiment": experiment.name, "scale": scale, "seconds": 0.0, "processor_seconds": 0.0, "cells": {}}
    return fresh | ({"ragged": True} if experiment.ragged else {})


def _write(path: Path, kept: dict[str, Any]) -> None:
    """A line for every measurement: curves are long."""
    head = "".join(f" {json.dumps(key)}: {json.dumps(kept[key])},\n" for key in kept if key != "cells")
    cells = [
        f"  {json.dumps(cell)}: {{\n"
        + ",\n".join(f"   {json.dumps(seed)}: {json.dumps(one)}" for seed, one in by.items())
        + "\n  }"
        for cell, by in kept["cells"].items()
    ]
    with locked(path.parent, _PATIENCE):  # it also removes what a killed process left half-written
        write_text(path, f'{{\n{head} "cells": {{\n' + ",\n".join(cells) + "\n }\n}\n")


def about() -> dict[str, str]:
    """When, where and by which code the numbers were made."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "version": coterie.__version__,
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit of the source tree, "" for an installed package."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def machine() -> str:
    """Processor and torch."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0] if models else name
    return f"{name}, torch {torch.__version__}"
