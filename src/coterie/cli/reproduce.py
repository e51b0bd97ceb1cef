"""``coterie reproduce``: the tables and figures of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.screen import Screen
from coterie.reproduce.names import EXPERIMENTS

console = Screen()


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list names them.")] = None,
    scale: Annotated[str, typer.Option(help="quick (minutes) or paper (as large as the data allow).")] = "quick",
    seeds: Annotated[int | None, typer.Option(min=1, help="Left out: the experiment's own number.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for numbers, table and figure; an interrupted run goes on.")] = Path(
        "coterie-reproduction"
    ),
    names: Annotated[bool, typer.Option("--list", help="Name all experiments and stop.")] = False,
) -> None:
    """A table or figure of one of the four papers: the paper's values beside ours, with a verdict."""
    if names or name is None:
        _list()
        return
    from coterie.reproduce.experiment import SCALES
    from coterie.reproduce.registry import experiment
    from coterie.reproduce.runner import finish, records, run

    chosen = next((s for s in SCALES if s == scale), None)
    if chosen is None:
        raise typer.BadParameter(f"The scale is quick or paper; got {scale!r}.")
    one = experiment(name)
    kept = run(one, chosen, seeds, out, lambda line: console.print(line, style="dim", highlight=False))
    summary = finish(one, kept, out)
    console.print(f"\n{one.work}: {one.shows}. {one.setting(chosen)}", highlight=False)
    console.print(summary.to_string(index=False), highlight=False, soft_wrap=True)
    for claim in one.claims(records(kept)):
        mark = "holds" if claim.holds else "paper is wrong" if claim.paper_is_wrong else "does not hold"
        console.print(f"[{mark}] {claim.says} {claim.found}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nNumbers, table and figure: {out}/{name}.json, .csv, .png, .svg", highlight=False)


def _list() -> None:
    """A line per experiment that begins with its whole name, however narrow the terminal."""
    from coterie.reproduce.registry import experiment

    width = max(map(len, EXPERIMENTS))
    for name in EXPERIMENTS:
        one = experiment(name)
        needs = f" (needs {', '.join(one.needs)})" if one.needs else ""
        line = f"{name:<{width}}  {one.work}: {one.shows}{needs}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
