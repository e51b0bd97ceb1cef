"""docs/reproduction.md from the JSON files: ``python -m reproductions.page FOLDER PAGE`` (never typed by hand).

Other pages beside it have tables of the same numbers, between ``<!-- numbers: NAME -->`` and ``<!-- end of numbers -->``;
they are made anew as well.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from coterie.disk import write_text
from reproductions.experiment import Experiment, Records
from reproductions.names import EXPERIMENTS
from reproductions.registry import experiment
from reproductions.runner import records, table

HEAD = """# Reproduction

Every table and figure of the four works, by one command each. This page is made from the JSON files in
`benchmarks/reproduction/` by `python -m reproductions.page benchmarks/reproduction docs/reproduction.md`.

**agrees**: within two standard errors, ours and the paper's, or within a difference that nobody would act on.
**same order**: another value, but above and below the same rows of its table as in the paper.
**differs**: neither; the reason stands below the table. Our errors are standard errors over seeds; the paper's stand as
printed, and where it does not say of how many runs, they are taken for standard errors.
What of a claim does not hold is either an error of the paper, by a code of the [errata](errata.md), or explained beside it.
In tables of ours, "tied" is within two standard errors of the best, by differences on equal seeds. Where no paper has a
value, the column "paper" may hold a closed form or another program's value; the row or the text above says so.
Seeds start above 0 where the settings of a file were chosen while looking at the first ones.
`coterie reproduce NAME` also draws each figure; the site shows them here.
"""


def page(folder: Path) -> str:
    """The whole page; an experiment without numbers is said to have none."""
    parts = [HEAD, overview(folder), ""]
    work = ""
    for name in EXPERIMENTS:
        one = experiment(name)
        if one.work != work:
            work = one.work
            parts.append(f"## {work}\n")
        path = folder / f"{name}.json"
        parts.append(section(one, json.loads(path.read_text())) if path.exists() else _missing(one))
    return "\n".join(parts)


def overview(folder: Path) -> str:
    """A line for every experiment: how many rows agree, and how many claims hold."""
    lines = []
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        one, kept = experiment(name), json.loads(path.read_text())
        found = records(kept)
        verdicts, claims = table(one, found).verdict.tolist(), one.claims(found)
        lines.append(
            {
                "experiment": f"`{name}`",
                "work": one.work,
                "scale": kept["scale"],
                **{verdict: verdicts.count(verdict) or "" for verdict in ("agrees", "same order", "differs")},
                "claims that hold": f"{sum(c.holds for c in claims)} of {len(claims)}" if claims else "",
                "where the paper is wrong": sum(c.paper_is_wrong and not c.holds for c in claims) or "",
            }
        )
    return markdown(pd.DataFrame(lines))


def section(one: Experiment, kept: dict[str, Any]) -> str:
    """One experiment: how it was made, its table, its claims, and why what differs does."""
    found = records(kept)
    scale = kept["scale"]
    seeds = max((len(by) for by in found.values.values()), default=0)
    lines = [
        f"### {one.shows}",
        "",
        f"{_made(one, kept, seeds)} on {kept['machine']}, commit {kept['commit'] or kept['version']}. {one.setting(scale)}",
        "",
        markdown(_shown(one, found)),
        "",
        f"<!-- figure: {one.name} -->",  # the site shows it here
        "",
    ]
    for claim in one.claims(found):
        mark = "Holds" if claim.holds else "The paper is wrong here" if claim.paper_is_wrong else "**Does not hold**"
        because = "" if claim.holds or not claim.unlike else f" {claim.unlike}"
        lines.append(f"- {claim.says} {mark}. {claim.found}{because}")
    lines += reasons(one, table(one, found))
    return "\n".join([*lines, ""])


def reasons(one: Experiment, summary: pd.DataFrame) -> list[str]:
    """Why rows differ; a reason that several rows share is said once."""
    differ = set(summary.what[summary.verdict == "differs"])
    by_text: dict[str, list[str]] = {}
    for what, text in one.why.items():
        if not what or what in differ:
            by_text.setdefault(text, []).append(what)
    return [f"- {'; '.join(filter(None, rows)) + ': ' if any(rows) else ''}{text}" for text, rows in by_text.items()]


def markdown(frame: pd.DataFrame) -> str:
    """A table; a "|" inside a value would end a column."""
    values = [[str(v).replace("|", "\\|") for v in row] for row in frame.itertuples(index=False)]
    head = [[str(column) for column in frame.columns], ["---"] * len(frame.columns)]
    return "\n".join("| " + " | ".join(row) + " |" for row in head + values)


def numbers(folder: Path, name: str) -> str:
    """One experiment's table for another page, and how it was made."""
    one, path = experiment(name), folder / f"{name}.json"
    if not path.exists():
        return _missing(one).split("\n\n", 1)[1].strip()
    kept = json.loads(path.read_text())
    found = records(kept)
    seeds = max((len(by) for by in found.values.values()), default=0)
    shown = markdown(_shown(one, found) if one.wide is None else one.wide(found))
    return f"{_made(one, kept, seeds)}. {one.setting(kept['scale'])}\n\n{shown}"


def _shown(one: Experiment, found: Records) -> pd.DataFrame:
    """The table; where no paper has a value, without the paper's columns, or in the shape of its own."""
    summary = table(one, found)
    if not (summary.verdict == "not printed").all():
        return summary
    return summary.drop(columns=["paper", "verdict"]) if one.wide is None else one.wide(found)


def filled(text: str, folder: Path) -> str:
    """A page with its tables made anew."""

    def made(match: re.Match[str]) -> str:
        return f"<!-- numbers: {match[1]} -->\n{numbers(folder, match[1])}\n<!-- end of numbers -->"

    return re.sub(r"<!-- numbers: ([\w-]+) -->\n.*?<!-- end of numbers -->", made, text, flags=re.DOTALL)


def _made(one: Experiment, kept: dict[str, Any], seeds: int) -> str:
    cost = ""
    if kept.get("processor_seconds"):
        cost = f"{_minutes(kept['processor_seconds'])} of one processor, "
    elif kept.get("seconds"):
        cost = f"{_minutes(kept['seconds'])} beside other work, "
    many = f"{seeds} seed" + ("s" if seeds != 1 else "") + (f" from {one.first_seed} on" if one.first_seed else "")
    told = "" if seeds == one.seeds[kept["scale"]] or kept.get("ragged") else f" --seeds {seeds}"
    return f"`coterie reproduce {one.name} --scale {kept['scale']}{told}`: {many}, {cost}{kept['date']}"


def _missing(one: Experiment) -> str:
    return f"### {one.shows}\n\n`coterie reproduce {one.name}` has not been run yet.\n"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def write(folder: Path, target: Path) -> None:
    """The page, and the tables of the pages beside it."""
    write_text(target, page(folder))
    for other in sorted(target.parent.glob("*.md")):
        text = other.read_text()
        if other != target and (new := filled(text, folder)) != text:
            write_text(other, new)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
