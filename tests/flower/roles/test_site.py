"""A hub's and a site's folder without Flower: invitations, decisions, what left, and what is cleaned up."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from together import InProcess, table

from coterie.base.disk import write_text
from coterie.cli import main
from coterie.cli.flower import job_of
from coterie.errors import ConfigError
from coterie.flower import serve
from coterie.flower.guard import OUTGOING, STATISTICS
from coterie.flower.roles.hub import Hub
from coterie.flower.roles.invitation import Invitation
from coterie.flower.roles.report import left, summary
from coterie.flower.roles.site import APPROVALS, APPROVED, Home
from coterie.flower.server import EVENTS, RESULT, ROUNDS

RUN = """\
[data]
client = "who"
target = "label"
features = ["a", "b", "c", "d"]
kind = "classification"
one_class = "allow"

[algorithm]
name = "ditto"

[run]
rounds = 2
"""


def coterie(*command: Any) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(part) for part in command])
    return int(end.value.code or 0)


@pytest.fixture
def hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Hub:
    (tmp_path / "train.toml").write_text(RUN)
    assert coterie("hub", "init", tmp_path / "hub", "--config", tmp_path / "train.toml", "--sites", "basel,bern") == 0
    assert "invitations/bern.json" in capsys.readouterr().out
    return Hub.load(tmp_path / "hub")


def test_a_hub_has_an_invitation_for_each_site(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    basel, bern = (Invitation.load(hub.folder / "invitations" / f"{name}.json") for name in ("basel", "bern"))
    assert (basel.run, basel.digest, basel.name) == (RUN, hashlib.sha256(RUN.encode()).hexdigest(), "train")
    assert basel.secret != bern.secret
    kept = (hub.folder / "hub.json").read_text()
    assert basel.secret not in kept
    assert bern.secret not in kept
    assert coterie("hub", "status", hub.folder, "--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == {
        "name": "train",
        "kind": "training",
        "state": "stopped",
        "round": 0,
        "of": None,
        "loss": None,
    }
    assert {name: site["status"] for name, site in told["sites"].items()} == {"basel": "invited", "bern": "invited"}
    assert coterie("hub", "init", hub.folder, "--config", tmp_path / "train.toml") == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_status_of_a_run(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.out.mkdir()
    row = {"round": 1, "of": 2, "loss": 0.5, "epsilon": None, "clients": 4, "lost": 2}
    (hub.out / ROUNDS).write_text(json.dumps(row) + '\n{"round"')
    (hub.out / EVENTS).write_text(json.dumps({"site": "bern", "phase": "train", "why": "no answer in time"}) + "\n")
    (hub.out / RESULT).write_text('{"rounds": 2}')
    assert coterie("hub", "status", hub.folder) == 0
    said = capsys.readouterr().out
    assert "train (training): finished, round 1 of 2, loss 0.5" in said
    assert "bern (1 times)" in said
    (hub.out / RESULT).unlink()
    (hub.out / "failed.txt").write_text("Too few sites.\n")
    assert coterie("hub", "status", hub.folder) == 1
    assert "Too few sites." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sites", "a,a"], "different names"),
        (["--sites", "a b,c"], "letters, digits and hyphens"),
        (["--address", "here"], "HOST:PORT"),
        (["--config", "nowhere.toml"], "There is no file nowhere.toml"),
    ],
)
def test_a_hub_that_cannot_be_is_not_made(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.toml").write_text(RUN)
    assert coterie("hub", "init", tmp_path / "hub", "--config", tmp_path / "train.toml", *options) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "hub").exists()


def test_the_next_run_has_new_invitations(hub: Hub, tmp_path: Path) -> None:
    before = Invitation.load(hub.folder / "invitations" / "basel.json")
    (tmp_path / "more.toml").write_text(RUN.replace("rounds = 2", "rounds = 3"))
    assert coterie("hub", "next", hub.folder, "--config", tmp_path / "more.toml") == 0
    after = Invitation.load(hub.folder / "invitations" / "basel.json")
    assert (after.name, after.authority) == ("more", before.authority)
    assert after.secret != before.secret
    home = Home.open(tmp_path / "site", hub.folder / "invitations" / "basel.json")
    home.approve("for a test")
    (home.folder / STATISTICS).write_text("{}")
    assert Home.open(tmp_path / "site", None).approved
    before.save(tmp_path / "before.json")
    assert not Home.open(tmp_path / "site", tmp_path / "before.json").approved
    Home.open(tmp_path / "site", tmp_path / "before.json").approve("for a test")
    assert not (home.folder / STATISTICS).exists()  # the agreement of the run before gives way
    with pytest.raises(ConfigError, match="of another hub or name"):
        Home.open(tmp_path / "site", hub.folder / "invitations" / "bern.json")


def test_nothing_begins_without_approval(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """The operator sees file, checksum and messages of a rehearsal first."""
    table((20, 30)).to_csv(tmp_path / "basel.csv", index=False)
    started: list[dict[str, Any]] = []
    monkeypatch.setattr("coterie.cli.site.require_flower", lambda: None)
    monkeypatch.setattr("coterie.flower.roles.site.Running.__call__", lambda self: started.append(self.node) or 0)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    command = ["site", "start", tmp_path / "site", "--invite", hub.folder / "invitations" / "basel.json"]
    command += ["--table", tmp_path / "basel.csv"]
    digest = hashlib.sha256(RUN.encode()).hexdigest()
    for approve, why in (
        ("ask", "nobody answered"),
        (str(tmp_path / "absent"), "there is no file"),
        (str(tmp_path / "basel.csv"), f"it has no line with {digest}"),
    ):
        assert coterie(*command, "--approve", approve) == 2
        out, err = capsys.readouterr()
        assert why in " ".join(err.split())
        assert f"SHA-256 of this file: {digest}" in out
        assert "| rounds = 2" in out
        assert "ask train: bytes" in out
        assert "summed over the clients here" in out
        assert not started
        assert not (tmp_path / "site" / APPROVED).exists()
    (tmp_path / "committee.txt").write_text(f"{digest}  train.toml\n")
    assert coterie(*command, "--approve", tmp_path / "committee.txt") == 0
    assert (tmp_path / "site" / APPROVED).read_text() == RUN
    assert json.loads((tmp_path / "site" / APPROVALS).read_text())["sha256"] == digest
    assert coterie(*command[:3], *command[5:]) == 0  # approved, so neither asked nor invited again
    assert [node["table"] for node in started] == [str((tmp_path / "basel.csv").resolve())] * 2
    assert not (tmp_path / "site" / OUTGOING).exists()


def test_the_page_of_what_left_is_right_to_the_byte(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table((12, 30, 22, 16))
    parts = [rows[rows["who"] == who].reset_index(drop=True) for who in sorted(rows["who"].unique())]
    nodes = InProcess(job_of(RUN, tmp_path), parts, tmp_path)
    serve(nodes.job, nodes, tmp_path / "out", sites=4, tell=lambda line: None)
    for i in range(4):
        folder = tmp_path / f"site{i}"
        received = [len(block) for node, block in nodes.got if node == 100 + i]
        assert summary(folder) == {"messages": len(received), "bytes": sum(received), "refused": 0, "epsilon": None}
        assert sum(row.count for row in left(folder)) == len(received)
        assert sum(row.bytes for row in left(folder)) == sum(received)
    assert coterie("site", "report", tmp_path / "site0", "--json") == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == sum(len(b) for node, b in nodes.got if node == 100)
    page = (tmp_path / "site0" / "left.html").read_text()
    assert f"{sum(len(b) for node, b in nodes.got if node == 100):,} bytes" in page
    assert "ask train" in page
    (train,) = (row for row in left(tmp_path / "site0") if row.message == "ask train")
    assert (train.count, train.how) == (2, "summed over the clients here")
    assert coterie("site", "report", tmp_path / "nowhere") == 2


def test_rows_of_past_runs_are_cleaned_up(tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    Home.open(tmp_path / "site0", hub.folder / "invitations" / "basel.json").approve("for a test")
    rows = table((12, 30, 22, 16))
    nodes = InProcess(job_of(RUN, tmp_path), [rows], tmp_path)
    serve(nodes.job, nodes, tmp_path / "out", sites=1, tell=lambda line: None)
    assert len(list((tmp_path / "site0").glob("*/rows/*"))) > 0
    assert coterie("site", "clean", tmp_path / "site0") == 0
    assert "prepared rows of 1 runs" in capsys.readouterr().out
    assert not list((tmp_path / "site0").glob("*/rows"))
    assert not list((tmp_path / "site0").glob("*/state-*"))
    assert list((tmp_path / "site0").glob("*/result/*.safetensors"))
    assert (tmp_path / "site0" / OUTGOING).exists()
    shutil.rmtree(tmp_path / "out")
    write_text(tmp_path / "x", "")
    assert coterie("site", "clean", tmp_path / "out") == 2


def test_the_doctor_says_what_is_wrong(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table((20, 30)).drop(columns="b").to_csv(tmp_path / "basel.csv", index=False)
    invite = hub.folder / "invitations" / "basel.json"
    assert coterie("site", "doctor", tmp_path / "site", "--invite", invite, "--table", tmp_path / "basel.csv") == 1
    lines = {line.split(": ")[0].split()[-1]: line for line in capsys.readouterr().out.splitlines() if ": " in line}
    assert lines["version"].startswith("good")
    assert lines["hub"].startswith("BAD")  # nothing listens there
    assert lines["disk"].startswith("good")
    assert "'b'" in lines["table"]
    assert not (tmp_path / "site").exists()
