"""The experiments of each paper, from their registry: a page writes `<!-- experiments: WORDS OF THE WORK -->`."""

from __future__ import annotations

import re

from coterie.reproduce.names import EXPERIMENTS
from coterie.reproduce.registry import experiment

MARKER = re.compile(r"<!-- experiments: (.*?) -->")


def filled(text: str) -> str:
    """A page with its markers replaced by tables."""
    return MARKER.sub(lambda match: table(match[1]), text)


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
