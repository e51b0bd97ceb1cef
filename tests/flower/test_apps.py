"""The generated project's two apps, with Flower's own messages and a Grid in this process."""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from together import split, table

import coterie as ct
from coterie.cli import main
from coterie.training import checkpoint

flwr = pytest.importorskip("flwr", reason="flwr is not installed; `make test-flower` installs it")

from flwr.app import Context, Error, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

CONFIG = """\
[data]
client = "who"
target = "label"
features = ["a", "b", "c", "d"]
kind = "classification"
one_class = "allow"

[algorithm]
name = "{name}"
{more}
[run]
rounds = 3
"""
OPTIONS: dict[str, Any] = {
    "client": "who", "target": "label", "features": list("abcd"), "kind": "classification", "one_class": "allow"
}  # fmt: skip


class InProcessGrid(Grid):
    """Messages go straight to a ClientApp; `broken` nodes answer with that error code."""

    def __init__(self, app: Any, nodes: dict[int, dict[str, str]]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in the process of an app
        self.app, self.nodes, self.replies, self.broken = app, nodes, {}, {}
        self.contexts = {n: Context(1, n, c, RecordDict(), {}) for n, c in nodes.items()}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError

    def send_and_receive(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node, name = message.metadata.dst_node_id, f"m{len(self.replies)}"
            message.metadata.__dict__["_message_id"] = name
            message.metadata.__dict__["_run_id"] = 1
            if node in self.broken:
                self.replies[name] = Message(Error(self.broken[node], "on purpose"), reply_to=message)
            else:
                self.replies[name] = self.app(message, self.contexts[node])
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies[i] for i in message_ids]


def project(folder: Path, name: str, more: str = "") -> tuple[Any, Any]:
    """The apps that `coterie flower init` writes, loaded as Flower loads them."""
    (folder / "run.toml").write_text(CONFIG.format(name=name, more=more))
    with pytest.raises(SystemExit) as end:
        main(["flower", "init", str(folder / "app"), "--config", str(folder / "run.toml"), "--sites", "3"])
    assert end.value.code == 0
    text = (folder / "app" / "pyproject.toml").read_text()
    assert "dependencies = []" in text
    assert "fab-format-version" not in text
    found = []
    for part in ("server_app", "client_app"):
        spec = importlib.util.spec_from_file_location(f"made_{part}", folder / "app" / "site_app" / f"{part}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        found.append(module.app)
    return found[0], found[1]


def nodes(folder: Path, rows: Any) -> dict[int, dict[str, str]]:
    made = {}
    for i, part in enumerate(split(rows, 3)):
        part.to_csv(folder / f"site{i}.csv", index=False)
        made[11 + i] = {"table": str(folder / f"site{i}.csv"), "folder": str(folder / f"site{i}")}
    return made


@pytest.mark.parametrize(("name", "more"), [("fedavg", ""), ("ifca", "clusters = 2"), ("ditto", "")])
def test_the_apps_of_a_project_give_the_numbers_of_fit(name: str, more: str, tmp_path: Path) -> None:
    rows = table((12, 30, 22, 16, 40, 9)).fillna({"a": 0.5})
    server, client = project(tmp_path, name, more)
    grid = InProcessGrid(client, nodes(tmp_path, rows))
    context = Context(1, 0, {}, RecordDict(), {"out": str(tmp_path / "out"), "sites": 3, "timeout": 60.0})
    server(grid, context)
    fed = ct.Federation.from_frame(rows, **OPTIONS)
    algorithm = ct.IFCA(clusters=2) if name == "ifca" else {"fedavg": ct.FedAvg, "ditto": ct.Ditto}[name]()
    here = ct.fit(algorithm, fed, rounds=3, alone=False, progress=False)
    tensors, about = checkpoint.read(tmp_path / "out" / checkpoint.FILE)
    assert about["done"] == 3
    mine = here.state.models if name == "ifca" else here.state.model
    for key, t in mine.items():
        kept = tensors[f"state/{'models' if name == 'ifca' else 'model'}/{key}"]
        torch.testing.assert_close(kept, t, rtol=1e-5, atol=1e-5)
    told = json.loads((tmp_path / "out" / "deployment.json").read_text())
    np.testing.assert_allclose(told["scores"]["accuracy"], here.scores()["accuracy"].mean(), atol=1e-6)


@pytest.mark.parametrize("code", [2, 5, 8])
def test_flowers_error_codes_are_lost_clients_with_a_sentence(code: int, tmp_path: Path) -> None:
    rows = table((12, 30, 22, 16, 40, 9)).fillna({"a": 0.5})
    server, client = project(tmp_path, "fedavg")
    grid = InProcessGrid(client, nodes(tmp_path, rows))
    asked = client.__class__.__call__
    count = {"n": 0}

    def breaking(self: Any, message: Message, context: Context) -> Message:
        count["n"] += 1
        if count["n"] == 13:  # after join, spread, begin and the first round, three messages each
            grid.broken = {12: code}
        return asked(self, message, context)

    grid.app = lambda message, context: breaking(client, message, context)
    server(grid, Context(1, 0, {}, RecordDict(), {"out": str(tmp_path / "out"), "sites": 3, "timeout": 5.0}))
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    assert events
    assert all(f"error {code}" in e["why"] for e in events)


def test_a_site_without_a_table_says_so(tmp_path: Path) -> None:
    server, client = project(tmp_path, "fedavg")
    grid = InProcessGrid(client, {1: {}, 2: {}})
    with pytest.raises(ct.errors.CoterieError, match="does not say where its table is"):
        server(grid, Context(1, 0, {}, RecordDict(), {"out": str(tmp_path / "out"), "sites": 2, "timeout": 5.0}))


def test_an_answer_that_cannot_be_pulled_or_sent_is_its_nodes_failure(tmp_path: Path) -> None:
    from coterie.flower.apps import GridNodes

    _, client = project(tmp_path, "fedavg")
    grid = InProcessGrid(client, {11: {}, 12: {}, 13: {}})
    grid.broken = {11: 2}
    whole, pushed = grid.pull_messages, grid.push_messages

    def pull(ids: Iterable[str]) -> Iterable[Message]:
        ids = list(ids)
        if "m1" in ids:
            raise ValueError("no record\n" * 1000)
        found = list(whole(ids))
        if found[0].has_error():
            found[0].error._reason = "so long a reason\n" * 1000
        return found

    grid.pull_messages = pull
    grid.push_messages = lambda messages: [*pushed(messages)][:2]
    answers = GridNodes(grid, 5.0).exchange(dict.fromkeys((11, 12, 13), b"x"))
    assert "error 2: so long a reason" in answers[11].reason
    assert "could not be read (no record" in answers[12].reason
    assert answers[13].reason == "it could not be sent"
    assert all(len(a.reason) < 400 and "\n" not in a.reason for a in answers.values())


def test_where_a_question_follows_soon_an_empty_message_keeps_nodes_awake(tmp_path: Path) -> None:
    """A SuperNode sleeps for seconds unless the next message is there when it has answered the last one."""
    from coterie.flower.apps import GridNodes

    _, client = project(tmp_path, "fedavg")
    grid = InProcessGrid(client, {11: {}, 12: {}})
    pushed: list[list[tuple[int, bytes]]] = []
    pulled: list[str] = []
    push, pull = grid.push_messages, grid.pull_messages

    def watched(messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        pushed.append([(m.metadata.dst_node_id, m.content["coterie"]["block"]) for m in messages])
        return push(messages)

    grid.push_messages = watched
    grid.pull_messages = lambda ids: pulled.extend(ids) or pull(ids)
    nodes = GridNodes(grid, 5.0)
    answers = nodes.exchange({11: b"x", 12: b"y"}, soon=True)
    assert pushed == [[(11, b"x"), (12, b"y"), (11, b""), (12, b"")]]
    assert all("does not say where its table is" in a.reason for a in answers.values())
    assert pulled == ["m0", "m1"]
    assert not any(grid.replies[m].has_error() or grid.replies[m].content["coterie"]["error"] for m in ("m2", "m3"))
    nodes.exchange({11: b"x"})
    assert pushed[1] == [(11, b"x")]
    assert pulled == ["m0", "m1", "m2", "m3", "m4"]


@pytest.mark.parametrize(("quorum", "there"), [(2, {11, 13}), (3, {11, 13}), (0, {11, 13})])
def test_a_quorum_does_not_wait_for_a_slow_site(quorum: int, there: set[int]) -> None:
    from coterie.flower.apps import GridNodes

    class Slow(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [] if "m1" in message_ids else super().pull_messages(message_ids)

    grid = Slow(lambda message, context: Message(message.content, reply_to=message), {11: {}, 12: {}, 13: {}})
    began = time.monotonic()
    answers = GridNodes(grid, 2.0, 0.2, quorum).exchange(dict.fromkeys((11, 12, 13), b"x"))
    assert set(answers) == there
    assert all(answers[n] == b"x" for n in there)
    assert (time.monotonic() - began < 1.9) == (quorum == 2)


def test_sites_are_handed_two_apps_and_the_run_alone(tmp_path: Path) -> None:
    """What Flower sends to all sites holds nothing of the server's folder: its file of sites has their tickets."""
    project(tmp_path, "fedavg")
    app = tmp_path / "app"
    for place in ("out/sites.json", "out/events.jsonl", "sites/site1.csv.coterie/about.json", "notes.md", "other.py"):
        (app / place).parent.mkdir(parents=True, exist_ok=True)
        (app / place).write_text("{}")
    flwr = Path(sys.executable).parent / "flwr"
    subprocess.run([flwr, "build", "--app", str(app)], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (built,) = tmp_path.glob("*.fab")
    names = {name for name in zipfile.ZipFile(built).namelist() if not name.startswith(".info/")}
    code = {f"site_app/{name}" for name in ("__init__.py", "server_app.py", "client_app.py", "run.toml")}
    assert names == {"pyproject.toml"} | code


def test_an_error_on_purpose_is_logged_as_a_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    project(tmp_path, "fedavg")
    log = logging.getLogger("flwr")
    for error in (ct.errors.ConfigError("Too few sites."), ValueError("a mistake in the code")):
        try:
            raise error
        except (ct.errors.CoterieError, ValueError) as raised:
            with caplog.at_level("ERROR", "flwr"):
                log.error("ServerApp raised an exception", exc_info=raised)
    assert [r.getMessage() for r in caplog.records] == ["Too few sites.", "ServerApp raised an exception"]
    assert [bool(r.exc_info) for r in caplog.records] == [False, True]


@pytest.mark.parametrize(("least", "told"), [(1, "rare"), (None, "names of classes with fewer than 5"), (0, "from 1")])
def test_the_owner_of_a_site_says_from_how_many_rows_it_goes_into_detail(
    least: int | None, told: str, tmp_path: Path
) -> None:
    rows = table((12, 30, 22, 16, 40, 9)).fillna({"a": 0.5})
    rows.loc[[2, 90], "label"] = "rare"
    server, client = project(tmp_path, "fedavg")
    there = {k: node | ({} if least is None else {"least": least}) for k, node in nodes(tmp_path, rows).items()}
    grid = InProcessGrid(client, there)
    context = Context(1, 0, {}, RecordDict(), {"out": str(tmp_path / "out"), "sites": 3, "timeout": 5.0})
    if least == 1:
        server(grid, context)
        assert told in json.loads((tmp_path / "out" / "sites.json").read_text())["blind"]["classes"]
        return
    with pytest.raises(ct.errors.EngineError, match=told):
        server(grid, context)
