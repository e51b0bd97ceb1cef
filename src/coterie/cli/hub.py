"""`coterie hub`: the coordinator of a consortium makes a hub, invites sites, and runs studies and trainings on them."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.base.text import harmless, listed
from coterie.cli.flower import INSTALL, made
from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.flower.roles.hub import Hub

app = typer.Typer(help="Coordinate a consortium: one command per role.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The hub's folder.")]
Config = Annotated[
    Path, typer.Option("--config", help="A TOML file as for `coterie run`, or with \\[compare] for a study.")
]
_CODES = "Exit codes: 0 all is well · 1 the run failed · 2 a mistake · 3 the hub is not running · 4 sites are missing"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the hub.")],
    config: Config,
    sites: Annotated[str, typer.Option(help="Names of the sites, separated by commas.")] = "site1,site2",
    address: Annotated[str, typer.Option(help="HOST:PORT by which sites reach this machine.")] = "127.0.0.1:8443",
) -> None:
    """Make a hub: certificates, the project of a run, and an invitation for every site."""
    from coterie.flower.roles.hub import Hub  # torch, which `--help` does without

    hub = Hub.make(folder, address, [name.strip() for name in sites.split(",")])
    try:
        _with_run(hub, config)
    except BaseException:
        _undo(folder)
        raise
    if address.startswith(("127.", "localhost")):
        typer.echo(f"{address} is this machine alone; sites elsewhere need --address with a name that they know.")


@app.command("next")
def another(folder: Folder, config: Config) -> None:
    """Add the next run of a hub, with new invitations; the sites keep their keys."""
    _with_run(_loaded(folder), config)


def _loaded(folder: Path) -> Hub:
    from coterie.flower.roles.hub import Hub

    return Hub.load(folder)


def _with_run(hub: Hub, config: Path) -> None:
    if not config.is_file():
        raise ConfigError(f"There is no file {config}. Name the TOML file of a run.")
    name = config.stem
    invitations = hub.invite(name, made(hub.project(name), config, len(hub.sites)))
    typer.echo(f"The run {name} is in {hub.project(name)}. Send each site its invitation, by a channel that is secret:")
    for file in invitations:
        typer.echo(f"  {file}")
    typer.echo(f"Start the hub:  coterie hub start {hub.folder}")
    typer.echo("Start a site:   coterie site start DIR --invite FILE --table TABLE.csv")


def _undo(folder: Path) -> None:
    """A hub whose run was refused is no hub."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


@app.command(epilog=_CODES)
def start(
    folder: Folder,
    quorum: Annotated[int, typer.Option(min=0, help="So many sites are enough; 0 for all.")] = 0,
    patience: Annotated[float, typer.Option(min=0, help="With a quorum: seconds to wait for the other sites.")] = 300.0,
    deadline: Annotated[float, typer.Option(min=0, help="With a quorum: seconds to wait for their answers.")] = 60.0,
    timeout: Annotated[float, typer.Option(min=1, help="The most seconds for one question.")] = 600.0,
) -> None:
    """Run the hub until its run is over: sites join, the run starts, and what dies is started again. Ctrl-C ends it."""
    from coterie.flower.roles.running import Limits, Running

    hub = _loaded(folder)
    require_flower()
    if quorum > len(hub.sites):
        raise ConfigError(f"A quorum is at most the number of sites, {len(hub.sites)}; got {quorum}. Lower --quorum.")
    with stoppable("hub"):
        raise typer.Exit(Running(hub, Limits(quorum, patience, deadline, timeout), telling())())


@app.command(epilog=_CODES)
def status(
    folder: Folder, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Sites, rounds, losses, who was late, and the privacy that is spent."""
    told = _loaded(folder).status()
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        for line in _lines(told):
            typer.echo(harmless(line))
    raise typer.Exit(_code(told))


def _code(told: dict[str, Any]) -> int:
    state = told["run"]["state"]
    if state in ("finished", "failed", "stopped"):
        return {"finished": 0, "failed": 1, "stopped": 3}[state]
    return 0 if all(site["status"] == "online" for site in told["sites"].values()) else 4


def _lines(told: dict[str, Any]) -> Iterator[str]:
    run, late = told["run"], [f"{name} ({s['late']} times)" for name, s in told["sites"].items() if s["late"]]
    of = f" of {run['of']}" if run["of"] else ""
    loss = "" if run["loss"] is None else f", loss {run['loss']:.4g}"
    step = "question" if run["kind"] == "study" else "round"
    yield f"{run['name']} ({run['kind']}): {run['state']}, {step} {run['round']}{of}{loss}"
    for name, site in told["sites"].items():
        yield f"  {name}: {site['status']}"
    if late:
        yield f"Gave no answer in time, or a wrong one: {listed(late)}"
    if told["privacy"]:
        yield f"Privacy: ε {told['privacy']['epsilon'] or 0:.3g} of {told['privacy']['of']:g} spent"
    if told["why"]:
        yield told["why"]


# ---- what hub and site share -----------------------------------------------------------------------------------------


def require_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(INSTALL)


def telling() -> Callable[[str], None]:
    """Sentences on standard output, each with the time."""
    import time

    return lambda line: typer.echo(f"{time.strftime('%H:%M:%S')} {harmless(line)}")


@contextmanager
def stoppable(what: str) -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does: the processes are ended first."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"The {what} is stopped; start it again to go on.")
        raise typer.Exit(130) from None
