"""A real SuperLink and SuperNodes on loopback, with TLS and authentication: what a deployment does when things fail.

Every process is ended at the end. The runs are compared with `fit` in this process, with the same clients lost.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from loopback import Deployment, free_port
from together import split, table

import coterie as ct
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ask
from coterie.training import checkpoint

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(
        importlib.util.find_spec("flwr") is None, reason="flwr is not installed; `make test-flower` installs it"
    ),
    pytest.mark.skipif(
        shutil.which("openssl") is None or shutil.which("ssh-keygen") is None,
        reason="openssl and ssh-keygen are needed",
    ),
]
SIZES = (12, 30, 22, 16, 40, 9)
CONFIG = """\
[data]
client = "who"
target = "label"
features = ["a", "b", "c", "d"]
kind = "classification"
one_class = "allow"

[algorithm]
name = "ditto"
[algorithm.local]
steps = 3
lr = 0.1
batch_size = 8

[run]
rounds = 6
"""
SITES = 3
OPTIONS: dict[str, Any] = {
    "client": "who", "target": "label", "features": list("abcd"), "kind": "classification", "one_class": "allow"
}  # fmt: skip


class Lost(Channel):
    """The clients of a site lost in some rounds."""

    def __init__(self, rounds: set[tuple[int, int]]) -> None:
        self.rounds = rounds

    def __repr__(self) -> str:
        return f"Lost({sorted(self.rounds)})"

    def ask(self, ask: Ask, where: Where) -> Ask:
        return ask.only(np.array([(where.round, int(c) % SITES) not in self.rounds for c in ask.clients]))


class World:
    """Three sites, their keys and ports, and the project."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, table(SIZES)
        (folder / "run.toml").write_text(CONFIG)
        made = [
            sys.executable,
            "-m",
            "coterie",
            "flower",
            "init",
            str(folder / "app"),
            "--config",
            str(folder / "run.toml"),
        ]
        subprocess.run([*made, "--sites", str(SITES)], check=True, capture_output=True, timeout=300)
        (folder / "deployment").mkdir()
        self.flower = Deployment(folder / "deployment")
        self.ports = [free_port() for _ in range(SITES)]
        self.write(self.rows)

    def write(self, rows: pd.DataFrame) -> None:
        """The tables of the sites, for the next run. Owners allow its agreement on columns by removing that of the last."""
        self.rows = rows
        for i, part in enumerate(split(rows, SITES)):
            part.to_csv(self.folder / f"site{i}.csv", index=False)
            (self.folder / f"site{i}" / "statistics.json").unlink(missing_ok=True)

    def begin(self) -> None:
        self.flower.superlink()
        self.keys = [self.flower.key(f"key{i}") for i in range(SITES)]
        for i in range(SITES):
            self.site(i)
        self.flower.workers(self.ports)

    def site(self, i: int) -> None:
        where = {"table": str(self.folder / f"site{i}.csv"), "folder": str(self.folder / f"site{i}")}
        # least=1: medians are those of one table, which the runs are compared with
        self.flower.supernode(f"supernode{i}", self.keys[i], self.ports[i], **where, least=1)

    def run(self, out: Path) -> None:
        self.flower.run(self.folder / "app", out=str(out), timeout=240.0)

    def done(self, out: Path) -> int:
        """Rounds finished so far."""
        file = out / "sites.json"
        return max((int(k) for k in json.loads(file.read_text())["tags"]), default=-1) if file.exists() else -1

    def finished(self, out: Path) -> bool:
        return (out / "deployment.json").exists()

    def compare(self, out: Path, lost: set[tuple[int, int]]) -> None:
        """The server's model and every client's own, against a run in this process."""
        fed = ct.Federation.from_frame(self.rows, **OPTIONS)
        algorithm = ct.Ditto(local=ct.LocalSGD(steps=3, lr=0.1, batch_size=8))
        here = ct.fit(algorithm, fed, rounds=6, alone=False, progress=False, channels=[Lost(lost)] if lost else [])
        tensors, about = checkpoint.read(out / checkpoint.FILE)
        assert about["done"] == 6
        for name, t in here.state.model.items():
            torch.testing.assert_close(tensors[f"state/model/{name}"], t, rtol=1e-5, atol=1e-5)
        run = json.loads((out / "sites.json").read_text())["run"]
        for i in range(SITES):
            kept = ct.Result.load(self.folder / f"site{i}" / run / "result")
            assert len(kept.clients) == 2
            for client in kept.clients:
                for mine, theirs in zip(kept.model(client).parameters(), here.model(client).parameters(), strict=True):
                    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    try:
        made.begin()
        yield made
    finally:
        made.flower.stop()


def failures(out: Path) -> list[dict[str, Any]]:
    """Events of rounds: what was only noted when the sites joined (their tables are new in every test) is none."""
    file = out / "events.jsonl"
    told = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [event for event in told if event["phase"] != "join"]


def test_a_run_gives_the_numbers_of_fit_and_an_unknown_node_is_turned_away(world: World, tmp_path: Path) -> None:
    stranger = world.flower.key("stranger", register=False)
    node = world.flower.supernode("stranger-node", stranger, free_port(), table=str(world.folder / "site0.csv"))
    world.run(tmp_path / "out")
    assert node.wait(timeout=120) != 0
    world.flower.wait(lambda: world.finished(tmp_path / "out"), 300, "the end of the run")
    told = json.loads((tmp_path / "out" / "deployment.json").read_text())
    assert (told["sites"], told["clients"]) == (3, 6)
    world.compare(tmp_path / "out", set())


def test_a_supernode_killed_in_a_round_is_lost_and_rejoins_with_its_states(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    world.write(table(SIZES).fillna(0.5))  # without holes no medians are agreed on, which takes eight exchanges
    world.run(out)
    world.flower.wait(lambda: world.done(out) >= 2, 300, "the second round")
    world.flower.kill("supernode1")
    world.flower.wait(lambda: bool(failures(out)), 120, "the loss")
    world.site(1)
    world.flower.wait(lambda: world.finished(out), 300, "the end of the run")
    events = failures(out)
    site = json.loads((out / "sites.json").read_text())["clients"]
    lost = {(e["round"] - 1, int(site[e["site"]][0][-2:]) % SITES) for e in events if e["phase"] != "finish"}
    assert {i for _, i in lost} == {1}
    world.compare(out, lost)


def test_a_server_that_is_killed_goes_on_in_its_folder(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    world.write(table(SIZES).fillna(0.5))  # without holes no medians are agreed on, which takes eight exchanges
    world.run(out)
    world.flower.wait(lambda: world.done(out) >= 2, 300, "the second round")
    for name in ("worker", "sites"):  # the ServerApp, and whatever the sites were doing
        world.flower.kill(name)
    before = checkpoint.read(out / checkpoint.FILE)[1]["done"]
    world.flower.workers(world.ports)
    world.run(out)
    world.flower.wait(lambda: world.finished(out), 300, "the end of the run")
    assert 2 <= before < 6
    assert not failures(out), failures(out)
    world.compare(out, set())


def test_answers_that_are_none_are_logged_and_their_clients_lost(world: World, tmp_path: Path) -> None:
    """Through a real SuperLink; every kind there is, in one process: `test_pair.py`."""
    out, kinds = tmp_path / "out", ("malformed", "oversized", "nan", "wrong shape", "others' clients")
    world.write(table(SIZES).fillna(0.5))
    faults = world.folder / "site2" / "faults.json"
    faults.parent.mkdir(exist_ok=True)
    faults.write_text(json.dumps(dict(enumerate(kinds))))
    world.run(out)
    world.flower.wait(lambda: world.finished(out), 300, "the end of the run")
    faults.unlink()
    events = failures(out)
    said = ("could not be read", "at most", "NaN or infinity", "of shape", "not asked here")
    assert [e["round"] for e in events] == [1, 2, 3, 4, 5], events
    assert all(re.search(part, e["why"]) for part, e in zip(said, events, strict=True)), events
    world.compare(out, {(r, 2) for r in range(5)})
