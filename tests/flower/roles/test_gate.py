"""The gate of a hub: what other machines may reach, and who may be a site."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from coterie.flower import wire
from coterie.flower.roles import keys
from coterie.flower.roles.gate import ENROL, HUB, KEYS, NODES, OVER, STATE, Gate

INSIDE, OUTSIDE = 8000, 8443


class Link:
    """A SuperLink's register of nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.released: list[int] = []

    def register(self, key: str, name: str) -> int:
        return self.nodes.setdefault(key, 100 + len(self.nodes))

    def release(self, node: int) -> None:
        self.released.append(node)

    def status(self) -> dict[int, str]:
        return dict.fromkeys(self.nodes.values(), "online")

    def runs(self) -> dict[str, str]:
        return {"7": "running"}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    sites = {name: {"secret": hashlib.sha256(f"of {name}".encode()).hexdigest()} for name in ("basel", "bern")}
    (tmp_path / HUB).write_text(json.dumps({"sites": sites, "version": "1"}))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'"passed"'})

    return Gate(app, Link(), tmp_path, OUTSIDE)


def ask(gate: Gate, path: str, port: int = OUTSIDE, body: bytes = b"", kind: str = "http") -> tuple[int, Any]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(part: dict[str, Any]) -> None:
        sent.append(part)

    asyncio.run(gate({"type": kind, "path": path, "server": ("0.0.0.0", port)}, receive, send))
    return (sent[0]["code"], None) if "code" in sent[0] else (sent[0]["status"], json.loads(sent[1]["body"]))


def enrol(gate: Gate, folder: Path, **changes: str) -> tuple[int, Any]:
    folder.mkdir(exist_ok=True)
    told = {
        "site": "basel",
        "secret": "of basel",
        "key": keys.site_key(folder, "basel"),
        "instance": "a",
        "starts": "yes",
    }
    told |= {"version": "1", "protocol": str(wire.PROTOCOL)} | changes
    return ask(gate, ENROL, body=json.dumps(told).encode())


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/runtime/acquire-task", "/health", "/docs", STATE, "/v1/fleet/../control/start-run",
     "//v1/fleet/pull-messages", "/V1/fleet/x", "/v1/fleet"],
)  # fmt: skip
def test_other_machines_reach_what_sites_need_and_nothing_else(gate: Gate, path: str) -> None:
    assert ask(gate, path)[0] == 403
    assert ask(gate, path, kind="websocket") == (1008, None)
    assert ask(gate, "/v1/fleet/pull-messages") == (200, "passed")
    if path != STATE:
        assert ask(gate, path, INSIDE) == (200, "passed")


def test_a_site_enrols_with_the_secret_of_its_invitation(gate: Gate, tmp_path: Path) -> None:
    code, told = enrol(gate, tmp_path / "site")
    assert (code, told["online"], told["over"]) == (200, True, "")
    assert (tmp_path / KEYS / "basel.pub").read_text().endswith(" basel\n")
    assert json.loads((tmp_path / NODES).read_text()) == {"100": "basel"}
    assert gate.link.released == [100]  # type: ignore[attr-defined]
    assert enrol(gate, tmp_path / "site", starts="no")[0] == 200
    assert gate.link.released == [100]  # type: ignore[attr-defined]
    code, told = ask(gate, STATE, INSIDE)
    assert (told["sites"]["basel"]["status"], told["runs"]) == ("online", {"7": "running"})
    (tmp_path / OVER).write_text('{"run": "study"}')
    assert enrol(gate, tmp_path / "site")[1]["over"] == "study"


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"secret": "of bern"}, 403, "no such invitation for basel"),
        ({"site": "zug"}, 403, "no such invitation for zug"),
        ({"site": "../x"}, 403, "something else came"),
        ({"site": "basel", "secret": ""}, 403, "no such invitation"),
        ({"protocol": "1"}, 403, "Install the same at both"),
        ({"instance": "b"}, 409, "is running at another place"),
    ],
)
def test_a_site_that_is_refused_is_told_why(
    gate: Gate, tmp_path: Path, changes: dict[str, str], code: int, said: str
) -> None:
    assert enrol(gate, tmp_path / "site")[0] == 200
    got, told = enrol(gate, tmp_path / "site", **changes)
    assert got == code
    assert said in told["why"]


def test_two_sites_with_one_name_are_refused(gate: Gate, tmp_path: Path) -> None:
    """The first key that comes with an invitation is the site's, also after a restart of the hub."""
    assert enrol(gate, tmp_path / "one")[0] == 200
    again = Gate(gate.app, gate.link, tmp_path, OUTSIDE)
    code, told = enrol(again, tmp_path / "other")
    assert (code, "joined with another key" in told["why"]) == (403, True)
    assert enrol(again, tmp_path / "one")[0] == 200


@pytest.mark.parametrize("body", [b"", b"[]", b'{"site": 3}', b"\xff", b"{" * 40000])
def test_odd_requests_are_refused(gate: Gate, body: bytes) -> None:
    code, told = ask(gate, ENROL, body=body)
    assert (code, "something else came" in told["why"]) == (403, True)
