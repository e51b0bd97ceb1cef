"""A Flower project for a run: two short apps, the run's file, and Flower's settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

from coterie.base.disk import write_text
from coterie.errors import ConfigError

PACKAGE = "site_app"
_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A deployed run of coterie"
license = "Apache-2.0"
dependencies = []  # coterie[flower] is installed at the server and at every site

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coterie"
# Only these files go to the sites. Flower's default would also send them the server's files in the folder `out`.
fab-include = ["/{package}/*.py", "/{package}/run.toml"]

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
out = {out}  # the server's folder: checkpoint, history, log, receipt
sites = {sites}  # how many SuperNodes to wait for
patience = 300.0  # seconds to wait for them
timeout = 600.0  # seconds a site may take for one question
quorum = 0  # so many answers are enough after `deadline` seconds; 0 for all
deadline = 60.0
names = ""  # a file of the nodes' names, from a hub
"""
_APP = '''\
"""Made by `coterie flower init`; run.toml next to it says what is trained."""

from pathlib import Path

from coterie.cli.flower import {kind}_app

app = {kind}_app(Path(__file__).with_name("run.toml"))
'''
_README = """\
# A run of coterie on Flower

0. Everywhere: `export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1`
1. The SuperLink (server) and its worker:

       flower-superlink --insecure --host 127.0.0.1 --port 8000 --isolation process
       coterie flower worker 127.0.0.1:8000

2. Every site, with a port of its own and its own table:

       flower-supernode --insecure --superlink 127.0.0.1:8000 --host 127.0.0.1 --port 9101 --isolation process \\
           --node-config 'table="/data/site.csv" folder="/data/site.coterie"'
       coterie flower worker 127.0.0.1:9101

3. The SuperLink gets a name in `~/.flwr/config.toml`:

       [superlink.lab]
       address = "127.0.0.1:8000"
       insecure = true

4. The run: `flwr run {folder} lab --stream`

With TLS and authentication of sites: docs/deployment.md of coterie. The server's results go to `{out}`; each site keeps its
clients' models and scores in its own folder, where `coterie.Result.load` reads them.
"""


def write_project(folder: Path, config: str, sites: int) -> list[Path]:
    """Write the project's files; an existing file is never replaced."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "coterie-run"
    out = (folder / "out").resolve().as_posix()
    texts = {
        "pyproject.toml": _PYPROJECT.format(name=name, package=PACKAGE, out=json.dumps(out), sites=sites),
        "README.md": _README.format(out=out, folder=folder.resolve().as_posix()),
        f"{PACKAGE}/__init__.py": '"""Made by `coterie flower init`."""\n',
        f"{PACKAGE}/server_app.py": _APP.format(kind="server"),
        f"{PACKAGE}/client_app.py": _APP.format(kind="client"),
        f"{PACKAGE}/run.toml": config if config.endswith("\n") else config + "\n",
    }
    for place in texts:
        if (folder / place).exists():
            raise ConfigError(f"{folder} already holds a project: {folder / place} is there. Name another folder.")
    for place, text in texts.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / place, text)
    return [folder / place for place in texts]
