"""`coterie flower`: a run's file becomes a Flower project, and what that project's two apps are made of."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.errors import ConfigError
from coterie.text import suggest

if TYPE_CHECKING:
    from coterie.flower.job import Job

app = typer.Typer(help="Deploy a run on real clients with Flower.", no_args_is_help=True)
_READING = ("delimiter", "decimal", "encoding")
_INSTALL = (
    "Flower is not installed here. Install it with `pip install 'coterie[flower]' --constraint constraints-flower.txt`."
)


def job_of(path: Path) -> Job:
    """The run that a file describes, for clients whose tables stay at their sites."""
    from coterie.cli.config import Config, read_toml
    from coterie.data.sites import OPTIONS
    from coterie.flower.job import Job

    table = read_toml(path)
    data = dict(table.get("data", {}))
    if "name" in data:
        raise ConfigError(
            "Sites have tables of their own; [data] name is a built-in data set. Give client, target, features and kind."
        )
    for key in (k for k in data if k not in (*OPTIONS, *_READING, "path")):
        raise ConfigError(f"Unknown key data.{key} for a deployment. {suggest(key, OPTIONS)}")
    if table.get("channels"):
        raise ConfigError(
            "Channels are faults and attacks of a simulation; a deployment has its own. Leave out [[channels]]."
        )
    config = Config.parse({**table, "data": {"path": "the site's own table", **data}}, path.parent)
    return Job(
        config.algorithm(),
        config.task,
        {k: v for k, v in data.items() if k in OPTIONS},
        config.run.rounds,
        config.run.seed,
        config.cohort(),
        config.privacy(),
        {k: v for k, v in data.items() if k in _READING},
    )


def server_app(path: Path) -> Any:
    """The ServerApp of a project; its run.toml is read when it starts."""
    from coterie.flower import apps

    return apps.server_app(lambda: job_of(path))


def client_app(path: Path) -> Any:
    """The ClientApp of a project."""
    from coterie.flower import apps

    return apps.client_app(lambda: job_of(path))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the project.")],
    config: Annotated[Path, typer.Option("--config", help="A TOML file as for `coterie run`.")],
    sites: Annotated[int, typer.Option(min=1, help="How many SuperNodes the server waits for.")] = 2,
) -> None:
    """Write a Flower project that trains as a TOML file says, on tables that stay at their sites."""
    from coterie.flower.project import write_project

    job_of(config)  # says what is missing before anything is written
    write_project(folder, config.read_text("utf-8"), sites)
    typer.echo(f"Wrote {folder}. Its README.md says how to start the SuperLink, the sites and the run.")


@app.command()
def worker(
    addresses: Annotated[
        list[str],
        typer.Argument(metavar="ADDRESS…", help="Host and port of SuperNodes here; https://HOST:PORT of a SuperLink."),
    ],
    root_certificates: Annotated[Path | None, typer.Option(help="The certificate authority's file, for https.")] = None,
) -> None:
    """Do the work of SuperNodes (and SuperLinks) started with --isolation process, in processes that have torch loaded."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(_INSTALL)
    import coterie.cli.config  # noqa: F401  # half a second that no task should spend
    from coterie.flower.worker import work

    work(addresses, None if root_certificates is None else str(root_certificates))
