"""docs/reproduction.md from the JSON files: ``python -m reproductions.page FOLDER PAGE`` (never typed by hand).

Other pages beside it have tables of the same numbers, between ``<!-- numbers: NAME -->`` and ``<!-- end of numbers -->``;
they are made anew as well.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from coterie.base.disk import write_text
from reproductions.claims import PAPER_IS_WRONG, Claim
from reproductions.experiment import Experiment, Records
from reproductions.names import EXPERIMENTS
from reproductions.registry import experiment
from reproductions.runner import records, table

HEAD = """# Reproduction

Every table and figure of the four works, by one command each. This page is made from the JSON files in
`benchmarks/reproduction/` by `python -m reproductions.page benchmarks/reproduction docs/reproduction.md`.

**A row of a table** has one of these verdicts. All intervals are 95 % intervals over seeds; fewer than three seeds decide
nothing.

- **agrees**: the paper's value is inside our interval widened by the paper's error, and our interval is no wider than
  that error or 1 % of the value; or the difference is one that nobody would act on.
- **same order**: another value, but clearly above and below the same rows of its table as in the paper.
- **differs**: clearly neither; the reason stands below the table.
- **undecided**: too few seeds, or an interval too wide to tell.
- **impossible**: our value agrees, but an erratum shows that the printed value cannot be what it is said to be.
- **matches**: the value that stands in the column "paper" is not from the paper. It is a closed form or another program's,
  named in brackets.

**A claim** is a sentence of the paper and one or more quantities that it says are above zero: mostly the difference of two
methods under the same seeds. It holds if the interval of each of them is above zero. It does not hold if the interval of one
is below zero, at a level corrected for their number. Otherwise it is undecided. The quantity that is clearest against the
claim stands at its end, with its interval. What is computed and not drawn needs no interval.

Our errors are standard errors over seeds; the paper's stand as printed, and where it does not say of how many runs, they are
taken for standard errors. Where a claim does not hold, this is either an error of the paper, named by a code of the
[errata](errata.md), or it is explained beside it. In tables of ours, "undecided" means that the 95 % interval of the
difference from the best, on equal seeds, contains zero. Seeds start above 0 where the settings of a file were chosen while
looking at the first ones. `--scale paper` is the largest scale of an experiment; the column "size" says how far it is from
the paper's own. `coterie reproduce NAME` also draws each figure; the site shows them here.
"""
VERDICTS = ("agrees", "same order", "matches", "undecided", "differs", "impossible")


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
    """A line for every experiment: its size and seeds, the verdicts of its rows, and what its claims come to."""
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
                "size": one.size if kept["scale"] == "paper" else "a quick run, far smaller",
                "seeds": _seeds(found) if one.drawn else "exact",
                "rows": _counted(verdicts, VERDICTS),
                "claims": _counted(
                    [claim.mark for claim in claims], ("holds", "undecided", "does not hold", PAPER_IS_WRONG)
                ),
            }
        )
    return markdown(pd.DataFrame(lines))


def _counted(found: list[str], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {found.count(name)}" for name in names if name in found)


def _seeds(found: Records) -> str:
    """The number of seeds; where cells have different numbers, the least and the largest."""
    counts = sorted({len(by) for by in found.values.values()})
    return "–".join(dict.fromkeys(str(n) for n in (counts[0], counts[-1]))) if counts else "0"


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
        lines.append(f"- {claim.says} {told(claim)}")
    lines += reasons(one, table(one, found))
    return "\n".join([*lines, ""])


def told(claim: Claim) -> str:
    """The verdict, what was found, the margin that decides, and why a claim that does not hold need not."""
    mark = claim.mark[:1].upper() + claim.mark[1:]
    parts = (f"**{mark}**." if not claim.holds else f"{mark}.", claim.found, claim.decided_by)
    return " ".join(part for part in (*parts, "" if claim.holds else claim.unlike) if part)


def reasons(one: Experiment, summary: pd.DataFrame) -> list[str]:
    """Why rows differ; a reason that several rows share is said once."""
    differ = set(summary.what[summary.verdict.isin(["differs", "impossible"])])
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
