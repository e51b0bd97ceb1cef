"""`coterie site`: an institution joins a consortium, decides what may run on its table, and sees what left."""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.base.text import harmless
from coterie.cli.flower import job_of
from coterie.cli.hub import require_flower, stoppable, telling
from coterie.errors import ConfigError, CoterieError, CoterieWarning

if TYPE_CHECKING:
    from coterie.flower.job import Job
    from coterie.flower.roles.invitation import Invitation
    from coterie.flower.roles.site import Home

app = typer.Typer(help="Take part in a consortium with a table that stays here.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder.")]
Invite = Annotated[Path | None, typer.Option("--invite", help="The invitation; only at the first start of a run.")]
Table = Annotated[Path, typer.Option(help="This site's table.")]
Client = Annotated[str | None, typer.Option(help="The name of the only client, without a client column.")]
Least = Annotated[int | None, typer.Option(min=1, help="Tell no statistic of fewer rows before a run (5).")]
_SHA256 = re.compile(r"[0-9a-f]{64}")


@app.command()
def start(
    folder: Folder,
    table: Table,
    invite: Invite = None,
    approve: Annotated[str, typer.Option(help="ask, always, or a file with the SHA-256 of an approved run.")] = "ask",
    client: Client = None,
    least: Least = None,
    key: Annotated[Path | None, typer.Option(help="For secure sums: this site's private key, if not DIR/key.")] = None,
    peers: Annotated[Path | None, typer.Option(help="For secure sums: a file with all sites' public keys.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Stay connected after the end of the run.")] = False,
) -> None:
    """Take part in the run of an invitation: what would leave is shown first, and nothing begins without approval."""
    from coterie.flower.roles.site import Home, Running

    require_flower()
    if not table.is_file():
        raise ConfigError(f"There is no table {table}. Name this site's file with --table.")
    home = Home.open(folder, invite)
    job = job_of(home.invitation.run, folder)
    _decide(home, job, table, client, approve)
    node = {"table": str(table.resolve()), "folder": str(folder.resolve()), "client": client, "least": least}
    if job.secure is not None:
        node["key"] = str((key or folder / "key").resolve())
        node["peers"] = None if peers is None else str(peers.resolve())
    with stoppable("site"):
        raise typer.Exit(Running(home, {k: v for k, v in node.items() if v is not None}, stay, telling())())


def _decide(home: Home, job: Job, table: Path, client: str | None, approve: str) -> None:
    """Approve the run by its checksum, or end."""
    digest = home.invitation.digest
    if home.approved:
        home.approve("approved before")
        return
    for line in leaving(home.invitation, job, table, client):
        typer.echo(harmless(line))
    if approve == "always":
        home.approve("--approve always")
    elif approve == "ask":
        try:
            agreed = typer.confirm("May this run begin on this table?")
        except typer.Abort:
            raise ConfigError(
                f"The run {digest} is not approved here, and nobody answered. Start this command at a terminal, or give "
                "--approve a file with that checksum."
            ) from None
        if not agreed:
            raise ConfigError("The run was not approved; nothing has left this site.")
        home.approve("at the terminal")
    else:
        if not (file := Path(approve)).is_file():
            raise ConfigError(f"--approve is ask, always, or a file; there is no file {approve}. Check the path.")
        if digest not in _SHA256.findall(file.read_text("utf-8", errors="replace")):
            raise ConfigError(
                f"{file} does not approve this run: it has no line with {digest}. Nothing has left this site."
            )
        home.approve(f"by {file.resolve()}")


def leaving(invitation: Invitation, job: Job, table: Path, client: str | None) -> Iterator[str]:
    """What the run is, and what would leave: for a study from its plan, for a training from a rehearsal here."""
    from coterie.cli.consortium import what_leaves

    yield f"The hub at {invitation.address} asks {invitation.site} to take part in {invitation.name}:"
    yield from (f"  | {line}" for line in invitation.run.strip("\n").split("\n"))
    yield f"SHA-256 of this file: {invitation.digest}"
    if job.ends is not None:
        yield from what_leaves(job, table, client)
        return
    yield f"{job.algorithm!r}, {job.rounds} rounds"
    if job.secure is not None:
        yield "In every round: the algorithm's sums, behind masks. The hub can open the sum of all sites, and no site's own."
        return
    if job.privacy is not None:
        yield f"With a budget: updates are clipped here; all runs in this folder spend at most ε = {job.privacy.total:g}."
    yield "Rehearsed here for one round, with this table alone; a deployment repeats the questions of a round:"
    yield from _rehearsed(invitation.run, table, client)
    yield "Rows, private states and personal models stay. Every message is logged in outgoing.jsonl before it leaves."


def _rehearsed(text: str, table: Path, client: str | None) -> Iterator[str]:
    """The messages of one round of the run with this site alone, in this process; nothing leaves."""
    from coterie.cli.consortium import Here
    from coterie.flower.roles.report import left
    from coterie.flower.server import serve
    from coterie.flower.site import Site
    from coterie.report.toml import toml_text

    told: dict[str, Any] = tomllib.loads(text)
    told["run"] = {**told.get("run", {}), "rounds": 1}
    told.get("privacy", {}).pop("ledger", None)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        folder, job = Path(place), job_of(toml_text(told), Path(place))
        try:
            nodes = Here({1: Site(job, table, folder / "site", client)})
            serve(job, nodes, folder / "server", sites=1, patience=0, tell=lambda line: None)
        except CoterieError as error:
            yield f"  It cannot be rehearsed with this table alone: {error}"
        for row in left(folder / "site"):
            yield f"  {row.message}: {row.fields} ({row.how}; {row.bytes:,} bytes)"


@app.command()
def report(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="The page; by default left.html in DIR.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the totals as JSON.")] = False,
) -> None:
    """Write a page of everything that left this site, for a data-protection officer."""
    from coterie.flower.roles.report import write_page
    from coterie.flower.roles.site import results

    page = out or folder / "left.html"
    told = write_page(folder, page)
    if as_json:
        typer.echo(json.dumps(told))
    else:
        typer.echo(f"{told['messages']} messages, {told['bytes']} bytes left this site. {page}")
        typer.echo(results(folder))


@app.command()
def predict(
    folder: Folder,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A table with new rows.")],
    out: Annotated[Path, typer.Option(help="Write the predictions to this CSV file.")],
    client: Client = None,
) -> None:
    """Predict new rows by this site's own models of the newest run."""
    from coterie.flower.roles.predict import predicted

    made = predicted(folder, new, client)
    made.to_csv(out, index=False)
    typer.echo(f"{len(made)} predictions: {out}")


@app.command("clean")
def clean_up(folder: Folder) -> None:
    """Remove the prepared rows and states of past runs; results, the log of what left and the budget stay."""
    from coterie.flower.roles.site import clean

    if not (folder / "invite.json").is_file():
        raise ConfigError(f"{folder} is no site's folder. Name the folder of `coterie site start`.")
    runs, size = clean(folder)
    typer.echo(f"Removed the prepared rows of {runs} runs, {size} bytes.")


@app.command()
def doctor(folder: Folder, table: Table, invite: Invite = None, client: Client = None) -> None:
    """Look at version, clock, certificate, disk, table and columns before a run; nothing of the table leaves."""
    from coterie.flower.roles import doctor as looks
    from coterie.flower.roles.invitation import Invitation

    file = folder / "invite.json" if invite is None else invite
    told = Invitation.load(file)
    found = looks.examined(folder, told, partial(job_of, told.run, folder), table, client)
    for name, good, line in found:
        typer.echo(harmless(f"{'good' if good else 'BAD '}  {name}: {line}"))
    raise typer.Exit(0 if all(good for _, good, _ in found) else 1)
