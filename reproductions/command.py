"""What `coterie reproduce` does: run an experiment and print the paper's values beside ours."""

from __future__ import annotations

from pathlib import Path

from coterie.cli.screen import Screen
from coterie.errors import ConfigError
from reproductions.experiment import SCALES
from reproductions.names import EXPERIMENTS
from reproductions.registry import experiment
from reproductions.runner import finish, records, run

console = Screen()


def reproduce(name: str, scale: str, seeds: int | None, out: Path) -> None:
    """Run the experiment, or go on with it, and print its table and claims."""
    chosen = next((s for s in SCALES if s == scale), None)
    if chosen is None:
        raise ConfigError(f"The scale is quick or paper; got {scale!r}.")
    one = experiment(name)
    kept = run(one, chosen, seeds, out, lambda line: console.print(line, style="dim", highlight=False))
    summary = finish(one, kept, out)
    console.print(f"\n{one.work}: {one.shows}. {one.setting(chosen)}", highlight=False)
    console.print(summary.to_string(index=False), highlight=False, soft_wrap=True)
    for claim in one.claims(records(kept)):
        text = f"[{claim.mark}] {claim.says} {claim.found} {claim.decided_by}"
        console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nNumbers, table and figure: {out}/{name}.json, .csv, .png, .svg", highlight=False)


def list_experiments() -> None:
    """A line per experiment that begins with its whole name, however narrow the terminal."""
    width = max(map(len, EXPERIMENTS))
    for name in EXPERIMENTS:
        one = experiment(name)
        needs = f" (needs {', '.join(one.needs)})" if one.needs else ""
        line = f"{name:<{width}}  {one.work}: {one.shows}{needs}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
