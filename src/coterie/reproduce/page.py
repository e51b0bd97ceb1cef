"""docs/reproduction.md from the JSON files: ``python -m coterie.reproduce.page FOLDER PAGE`` (never typed by hand)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from coterie.disk import write_text
from coterie.reproduce.experiment import Experiment
from coterie.reproduce.names import EXPERIMENTS
from coterie.reproduce.registry import experiment
from coterie.reproduce.runner import records, table

HEAD = """# Reproduction

Every table and figure of the four works, by one command each. This page is made from the JSON files in
`benchmarks/reproduction/` by `python -m coterie.reproduce.page benchmarks/reproduction docs/reproduction.md`.

**agrees**: within two standard errors, ours and the paper's, or within a difference that nobody would act on.
**same order**: another value, but every claim of the paper about the order of methods holds in our runs.
**differs**: neither; the reason stands below the table. Errors are standard errors over seeds.
"""


def page(folder: Path) -> str:
    """The whole page; an experiment without numbers is said to have none."""
    parts = [HEAD]
    work = ""
    for name in EXPERIMENTS:
        one = experiment(name)
        if one.work != work:
            work = one.work
            parts.append(f"## {work}\n")
        path = folder / f"{name}.json"
        parts.append(section(one, json.loads(path.read_text())) if path.exists() else _missing(one))
    return "\n".join(parts)


def section(one: Experiment, kept: dict[str, Any]) -> str:
    """One experiment: how it was made, its table, its claims, and why what differs does."""
    found = records(kept)
    summary = table(one, found)
    scale = kept["scale"]
    seeds = max((len(by) for by in found.values.values()), default=0)
    lines = [
        f"### {one.shows}",
        "",
        f"`coterie reproduce {one.name} --scale {scale}`: {seeds} seeds, {_minutes(kept['seconds'])} on "
        f"{kept['machine']}, {kept['date']}, commit {kept['commit'] or kept['version']}. {one.setting(scale)}",
        "",
        "| what | paper | ours | seeds | verdict |",
        "|---|---|---|---|---|",
        *("| " + " | ".join(str(v) for v in row) + " |" for row in summary.itertuples(index=False)),
        "",
    ]
    for claim in one.claims(found):
        mark = "Holds" if claim.holds else "The paper is wrong here" if claim.paper_is_wrong else "**Does not hold**"
        because = "" if claim.holds or not claim.unlike else f" {claim.unlike}"
        lines.append(f"- {claim.says} {mark}. {claim.found}{because}")
    lines += [f"- {what + ': ' if what else ''}{text}" for what, text in one.why.items()]
    return "\n".join([*lines, ""])


def _missing(one: Experiment) -> str:
    return f"### {one.shows}\n\n`coterie reproduce {one.name}` has not been run yet.\n"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    write_text(Path(sys.argv[2]), page(Path(sys.argv[1])))
