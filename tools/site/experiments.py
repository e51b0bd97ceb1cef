"""The experiments of each paper, from their registry: a page writes `<!-- experiments: WORDS OF THE WORK -->`.

The figures of the reproductions are drawn from the committed numbers when the site is built; they stand where a page of
docs/ writes `<!-- figure: NAME -->`.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

from reproductions.names import EXPERIMENTS
from reproductions.registry import experiment
from reproductions.runner import records

NUMBERS = Path(__file__).parents[2] / "benchmarks" / "reproduction"
MARKER = re.compile(r"<!-- experiments: (.*?) -->")
FIGURE = re.compile(r"<!-- figure: ([\w-]+) -->")


def filled(text: str) -> str:
    """A page with its markers replaced by tables and figures."""
    text = FIGURE.sub(lambda match: f"![{experiment(match[1]).shows}]({picture(match[1])}){{ loading=lazy }}", text)
    return MARKER.sub(lambda match: table(match[1]), text)


def picture(name: str) -> str:
    return f"figures/reproduction/{name}.svg"


def drawn(pages: list[str]) -> dict[str, str]:
    """The figures that these pages show."""
    names = {match[1] for text in pages for match in FIGURE.finditer(text)}
    return {picture(name): drawing(name) for name in sorted(names)}


def drawing(name: str) -> str:
    figure = experiment(name).draw(records(json.loads((NUMBERS / f"{name}.json").read_text("utf-8"))))
    held = io.StringIO()
    figure.savefig(held, format="svg", metadata={"Date": None})
    return held.getvalue()


def table(words: str) -> str:
    """The experiments whose work contains one of the words (separated by |); "all" for every one."""
    wanted = [word.strip().lower() for word in words.split("|")]
    found = [
        one for one in map(experiment, EXPERIMENTS) if words == "all" or any(w in one.work.lower() for w in wanted)
    ]
    if not found:
        return "No experiment of this work is in the registry yet."
    lines = ["| command | what it makes | needs |", "|---|---|---|"]
    lines += [f"| `coterie reproduce {one.name}` | {one.work}: {one.shows} | {', '.join(one.needs)} |" for one in found]
    return "\n".join(lines)
