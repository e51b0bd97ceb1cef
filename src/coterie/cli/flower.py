"""`coterie flower`: it makes a Flower project from a run's file, and has the functions that make the project's two apps."""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.base.text import suggest
from coterie.errors import ConfigError
from coterie.report.toml import toml_text

if TYPE_CHECKING:
    import pandas as pd

    from coterie.data.federation import Federation
    from coterie.flower.job import Job

app = typer.Typer(help="Deploy a run on real clients with Flower.", no_args_is_help=True)
_READING = ("delimiter", "decimal", "encoding")
_USED = ("rounds", "seed", "cohort")  # of [run]
INSTALL = (
    "Flower is not installed here. In a clone, run `pip install torch==2.13.0` and then "
    "`pip install --constraint constraints-flower.txt '.[flower]'`."
)


def for_sites(path: Path, sites: int) -> tuple[str, dict[str, pd.DataFrame]]:
    """A run's file with columns and kind named, and example tables of sites if it names a built-in data set."""
    from coterie.cli.config import Config, read_toml

    table = read_toml(path)
    text, data = path.read_text("utf-8"), table.get("data", {})
    section = re.search(
        r"^\[[ \t]*data[ \t]*\][ \t]*(#[^\n]*)?$.*?(?=^\[(?![ \t]*data\.)|\Z)", text, flags=re.MULTILINE | re.DOTALL
    )
    if section is None or not isinstance(data, dict):
        return text, {}
    at_hand = isinstance(data.get("path"), str) and (path.parent / data["path"]).is_file()
    if not ("name" in data or (at_hand and not ("features" in data and "kind" in data))):
        return text, {}
    federation = Config.parse({k: v for k, v in table.items() if k != "compare"}, path.parent).federation()
    if "name" in data:
        named, example = _dealt(federation, sites)
    else:
        used = federation.notes.used if federation.notes is not None else []
        named, example = {"features": used, "kind": federation.kind} | data, {}
        named.pop("exclude", None)  # not among the features
    return text.replace(section[0], toml_text({"data": named}) + "\n"), example


def _dealt(federation: Federation, sites: int) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """A built-in table as tables of sites; clients are assigned to sites in turn."""
    import numpy as np
    import pandas as pd

    if federation.x.ndim != 2 or not 1 <= sites <= len(federation):
        raise ConfigError(
            f"A built-in data set is dealt out when it is a table and has a client for each site; this one has "
            f"{federation.x.ndim} dimensions, {len(federation)} clients and {sites} sites. Name the columns of your tables."
        )
    features = list(federation.columns or (f"x{i}" for i in range(federation.n_features)))
    rows = pd.DataFrame(federation.x.numpy(), columns=features)
    classes = federation.classes
    rows["target"] = federation.y.numpy() if classes is None else [classes[int(k)] for k in federation.y]
    owner = np.repeat(np.arange(len(federation)), federation.n_samples)
    rows["client"] = federation.clients.to_numpy()[owner]
    named = {
        "client": "client",
        "target": "target",
        "features": features,
        "kind": federation.kind,
        "one_class": "allow",
    }
    return named, {f"sites/site{i + 1}.csv": rows[owner % sites == i] for i in range(sites)}


def job_of(text: str, folder: Path) -> Job:
    """The run that a file's text describes, for clients whose tables stay at their sites."""
    from coterie.cli.config import Config
    from coterie.flower.job import Job
    from coterie.flower.site_tables import OPTIONS

    table = tomllib.loads(text)
    data = table.get("data", {})
    if not isinstance(data, dict):
        raise ConfigError(f"[data] must be a section; got {data!r}. Write its keys on lines of their own below [data].")
    if "name" in data:
        raise ConfigError(
            "Sites have their own tables; [data] name is a built-in data set. Give client, target, features and kind."
        )
    for key in (k for k in data if k not in (*OPTIONS, *_READING, "path")):
        raise ConfigError(f"Unknown key data.{key} for a deployment. {suggest(key, OPTIONS)}")
    if table.get("channels"):
        raise ConfigError(
            "Channels are faults and attacks of a simulation; a deployment has its own. Leave out [[channels]]."
        )
    reading = {k: v for k, v in data.items() if k in _READING}
    for kind in (k for k in ("compare", "estimate") if k in table):
        from coterie.cli.build import build
        from coterie.cli.consortium import study_job
        from coterie.cli.estimates import estimate_job
        from coterie.secure.settings import Secure

        for name in (n for n in table if n not in ("data", kind, *(("secure",) if kind == "compare" else ()))):
            raise ConfigError(
                f"[{name}] does not go with [{kind}], which says all of a study. Take one of the two out."
            )
        more = {} if "secure" not in table else {"secure": build(Secure, table["secure"], "secure")}
        made = study_job if kind == "compare" else estimate_job
        return made({k: v for k, v in data.items() if k in OPTIONS}, table[kind], reading, text=text, **more)
    config = Config.parse({**table, "data": {"path": "the site's own table", **data}}, folder)
    return Job(
        config.algorithm(),
        config.task,
        {k: v for k, v in data.items() if k in OPTIONS},
        config.run.rounds,
        config.run.seed,
        config.cohort(),
        config.privacy(),
        reading,
        secure=config.secure(),
        text=text,
    )


def server_app(path: Path) -> Any:
    """The ServerApp of a project; its run.toml is read when it starts."""
    from coterie.flower import apps

    return apps.server_app(lambda: job_of(path.read_text("utf-8"), path.parent))


def client_app(path: Path) -> Any:
    """The ClientApp of a project."""
    from coterie.flower import apps

    return apps.client_app(lambda: job_of(path.read_text("utf-8"), path.parent))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the project.")],
    config: Annotated[Path, typer.Option("--config", help="A TOML file as for `coterie run`.")],
    sites: Annotated[int, typer.Option(min=1, help="How many SuperNodes the server waits for.")] = 2,
) -> None:
    """Write a Flower project that trains as a TOML file says, on tables that stay at their sites. Columns that the file does
    not name are those of its table; a built-in data set is dealt out to example sites."""
    text = made(folder, config, sites)
    typer.echo(f"Wrote {folder}. Its README.md says how to start the SuperLink, the sites and the run.")
    if "compare" in tomllib.loads(text):
        typer.echo(f"Each site sees what would leave it: coterie flower show {folder} --table ITS.csv")


def made(folder: Path, config: Path, sites: int) -> str:
    """Write a project and the tables of example sites, and say what is unused; returns the text of the run's file."""
    from coterie.flower.project import PACKAGE, write_project

    text, example = for_sites(config, sites)
    job_of(text, config.parent)  # an error about missing keys comes before anything is written
    write_project(folder, text, sites)
    for place, table in example.items():
        (folder / place).parent.mkdir(exist_ok=True)
        table.to_csv(folder / place, index=False)
    unused = [f"run.{key}" for key in tomllib.loads(text).get("run", {}) if key not in _USED]
    if unused:
        typer.echo(f"A deployment does not use {', '.join(unused)}: sites work where they are and score at the end.")
    if example:
        typer.echo(f"The clients of the built-in data set are dealt out to {', '.join(example)} in {folder}.")
    return (folder / PACKAGE / "run.toml").read_text("utf-8")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project of a study.")],
    table: Annotated[Path, typer.Option(help="This site's table.")],
    client: Annotated[str | None, typer.Option(help="The name of the only client, without a client column.")] = None,
) -> None:
    """Say what a study would tell of this site's table, before anything leaves it."""
    from coterie.cli.consortium import what_leaves
    from coterie.comparison.sites.study import Study
    from coterie.flower.project import PACKAGE

    file = folder / PACKAGE / "run.toml"
    if not file.is_file():
        raise ConfigError(f"There is no project in {folder}. Name the folder that `coterie flower init` wrote.")
    job = job_of(file.read_text("utf-8"), folder)
    if not isinstance(job.algorithm, Study):
        raise ConfigError(f"{folder} holds no study; docs/deployment.md says what leaves its sites.")
    for line in what_leaves(job, table, client):
        typer.echo(line)


@app.command()
def worker(
    addresses: Annotated[
        list[str],
        typer.Argument(metavar="ADDRESS…", help="Host and port of SuperNodes here; https://HOST:PORT of a SuperLink."),
    ],
    root_certificates: Annotated[Path | None, typer.Option(help="The certificate authority's file, for https.")] = None,
    secret: Annotated[Path | None, typer.Option(help="The file given there as --superexec-auth-secret-file.")] = None,
    run: Annotated[Path | None, typer.Option(help="At a site: the run.toml to work on, whatever a run brings.")] = None,
) -> None:
    """Do the work of SuperNodes (and SuperLinks) started with --isolation process, in processes that have torch loaded."""
    for option, file in (("--root-certificates", root_certificates), ("--secret", secret), ("--run", run)):
        if file is not None and not file.is_file():
            raise ConfigError(f"There is no file {file}, which {option} names. Check the path.")
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(INSTALL)
    import coterie.cli.config  # noqa: F401  # half a second that no task should spend
    from coterie.flower.roles.daemons import end_with_parent
    from coterie.flower.roles.processes import KEEPER
    from coterie.flower.worker import work

    if KEEPER in os.environ:
        end_with_parent()

    authority = None if root_certificates is None else str(root_certificates)
    own = None if run is None else partial(job_of, run.read_text("utf-8"), run.parent)
    work(addresses, authority, None if secret is None else secret.read_bytes(), own)
