"""How a site reaches its hub, with real TLS on loopback: each fault is one sentence."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import ConfigError
from coterie.flower import wire
from coterie.flower.roles import keys
from coterie.flower.roles.invitation import Invitation
from coterie.flower.roles.processes import Keeper, free_port
from coterie.flower.roles.site import Elsewhere, Home, Unreachable


@contextmanager
def answering(folder: Path, port: int, code: int, told: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """A hub that gives one answer; yields what it was sent."""
    seen: list[dict[str, Any]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / keys.CERTIFICATE, folder / keys.CERTIFICATE_KEY)
    server = HTTPServer(("127.0.0.1", port), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "hub").mkdir()
    keys.make_authority(tmp_path / "hub", "hub")
    keys.make_certificate(tmp_path / "hub", "127.0.0.1")
    told = ("basel", f"127.0.0.1:{free_port()}", (tmp_path / "hub" / keys.AUTHORITY).read_text(), "train", "", "s", "1")
    Invitation(*told, wire.PROTOCOL).save(tmp_path / "basel.json")
    return Home.open(tmp_path / "site", tmp_path / "basel.json")


def serve(home: Home, code: int = 200, **told: Any) -> Any:
    return answering(home.folder.parent / "hub", int(home.invitation.address.split(":")[1]), code, told)


def test_a_site_hands_in_its_key_and_shows_its_secret(home: Home) -> None:
    with serve(home, time=time.time(), online=True, over="") as seen:
        assert home.enrol(starts=True)["online"]
    (told,) = seen
    assert (told["site"], told["secret"], told["starts"]) == ("basel", "s", "yes")
    assert told["key"] == keys.site_key(home.folder, "basel")
    assert (home.folder / keys.KEY).read_text().split("\n")[1] not in json.dumps(told)  # the private half


def test_a_hub_that_is_not_there_is_waited_for(home: Home) -> None:
    with pytest.raises(Unreachable, match=r"cannot be reached \(.*refused\)\. This site tries again"):
        home.enrol()


def test_an_expired_certificate_is_named(home: Home) -> None:
    keys.make_certificate(home.folder.parent / "hub", "127.0.0.1", years=-0.001)
    with (
        serve(home),
        pytest.raises(Unreachable, match=r"certificate has expired\. Its coordinator starts the hub again"),
    ):
        home.enrol()


def test_another_hub_at_the_same_address_is_refused(home: Home) -> None:
    keys.make_authority(home.folder.parent / "hub", "other")
    keys.make_certificate(home.folder.parent / "hub", "127.0.0.1")
    with serve(home) as seen, pytest.raises(ConfigError, match="it is another machine, or another hub"):
        home.enrol()
    assert not seen  # neither secret nor key was sent


@pytest.mark.parametrize(("ahead", "said"), [(8, "8 s ahead of"), (-3600, "3600 s behind")])
def test_a_clock_that_is_off_is_named(home: Home, ahead: float, said: str) -> None:
    with serve(home, time=time.time() - ahead, online=True, over=""), pytest.raises(ConfigError, match=said):
        home.enrol()


@pytest.mark.parametrize(("code", "kind"), [(403, ConfigError), (409, Elsewhere)])
def test_a_refusal_is_the_hubs_sentence(home: Home, code: int, kind: type[Exception]) -> None:
    with serve(home, code, why="Use the newest.\x1b[31m"), pytest.raises(kind, match=r"^Use the newest\. \[31m$"):
        home.enrol()


def test_a_process_that_ends_is_started_again_and_all_end_together(tmp_path: Path) -> None:
    said: list[str] = []
    keeper, python = Keeper(tmp_path / "logs", tmp_path, said.append), __import__("sys").executable
    script = "import sys, time; print('Too hot.', flush=True); time.sleep(float(sys.argv[1]))"
    starts = iter(("0", "60"))
    keeper.keep("oven", lambda: (python, "-c", script, next(starts)))
    until = time.monotonic() + 60
    asked: list[str] = []
    while not asked and time.monotonic() < until:
        keeper.look(asked.append)
        time.sleep(0.1)
    assert said == ["oven ended (code 0): Too hot. It is started again in 2 s."]
    assert asked == ["oven"]
    assert not keeper.ended("oven")
    began = time.monotonic()
    keeper.stop()
    assert time.monotonic() - began < 10
