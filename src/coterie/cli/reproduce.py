"""``coterie reproduce``: the tables and figures of the papers, from a checkout of the repository."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import coterie
from coterie.errors import ConfigError


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list names them.")] = None,
    scale: Annotated[str, typer.Option(help="quick (minutes) or paper (as large as the data allow).")] = "quick",
    seeds: Annotated[int | None, typer.Option(min=1, help="By default the experiment's own number.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for numbers, table and figure; an interrupted run resumes.")] = Path(
        "coterie-reproduction"
    ),
    names: Annotated[bool, typer.Option("--list", help="Name all experiments and stop.")] = False,
) -> None:
    """A table or figure of one of the four papers: the paper's values next to ours, with a verdict.

    The experiments are in the repository, not in the installed package."""
    command = experiments()
    if names or name is None:
        command.list_experiments()
    else:
        command.reproduce(name, scale, seeds, out)


def experiments() -> Any:
    """The folder `reproductions` next to `src`, if this package runs from a checkout."""
    root = Path(coterie.__file__).parents[2]
    if not (root / "reproductions" / "command.py").exists():
        raise ConfigError(
            "The papers' experiments are not part of the installed package. Run `coterie reproduce` from a checkout: clone "
            "the repository and install it there with `pip install --editable .`."
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return import_module("reproductions.command")
