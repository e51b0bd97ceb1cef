"""Flower's own SuperLink and SuperNode as a hub and a site start them: `python daemons.py NAME …`.

The other arguments are those of `flower-superlink` and `flower-supernode`. A SuperLink gets the gate of `gate.py` as a
second port. A SuperNode asks for messages more often while there are any (Flower sleeps for 3 s), and its absence is noticed
within 20 s. Both end with the process that started them, and never stay alive without working. Like `worker.py`, this file
uses modules that are not public in Flower.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_ANSWER, _WORKING = 0.5, 0.05  # what Flower sleeps while it waits for the site's own worker, and what is enough
_CALMER = 0.05  # of the time since the last message, as the time between two polls
_HEARTBEAT = 10  # seconds; the shortest that Flower allows
_LOOK = 1.0  # seconds between two looks at the parent


class ShortPolls:
    """Stands for the module `time` in a loop of Flower: short pauses while there is work, longer ones when none has come for
    a while, so that an idle site costs little."""

    def __init__(self, busy: float = 0.2, idle: float = 3.0) -> None:
        """Seconds between two polls."""
        self.busy, self.idle, self.last = busy, idle, time.monotonic()

    def work(self) -> None:
        """Something came."""
        self.last = time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds == _ANSWER:
            self.work()
            time.sleep(_WORKING)
        else:
            time.sleep(min(self.idle, max(self.busy, _CALMER * (time.monotonic() - self.last))))


def supernode() -> None:
    """`flower-supernode` with short polls and short heartbeats."""
    import flwr.supercore.heartbeat as heartbeat
    import flwr.supernode.fleet_http_connection as connection
    import flwr.supernode.start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    loop.time = ShortPolls()  # type: ignore[assignment]
    for module in (heartbeat, connection):
        module.HEARTBEAT_DEFAULT_INTERVAL = _HEARTBEAT
    flower_supernode()


class LinkState:
    """The state of the SuperLink in this process, for its gate."""

    def __init__(self, app: Any) -> None:
        self._app = app

    @property
    def _state(self) -> Any:
        return self._app.state.linkstate_factory.state()

    def register(self, key: str, name: str) -> int:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        known = public_key_to_bytes(load_ssh_public_key(key.encode()))  # type: ignore[arg-type]
        node = self._state.get_node_id_by_public_key(known)
        if node is None:
            node = self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, known, _HEARTBEAT, name=name)
        return int(node)

    def release(self, node: int) -> None:
        self._state.deactivate_node(node)

    def status(self) -> dict[int, str]:
        return {int(n.node_id): str(n.status) for n in self._state.get_node_info()}

    def runs(self) -> dict[str, str]:
        found = {str(r.run_id): r.status for r in self._state.get_run_info()}
        return {run: ":".join(filter(None, (s.status, s.sub_status))) for run, s in found.items()}


def superlink(folder: Path, host: str, port: int) -> None:
    """`flower-superlink`, which other machines reach by the gate at host and port alone."""
    import uvicorn

    from coterie.flower.roles.gate import Gate

    def run(app: Any, host: str, port: int, **options: Any) -> None:
        inside = _listening(host, port)
        gate = Gate(app, LinkState(app), folder, outside.getsockname()[1])
        uvicorn.Server(uvicorn.Config(gate, host=host, port=port, **options)).run(sockets=[inside, outside])

    command: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of that name
    outside = _listening(host, port)
    command.uvicorn = SimpleNamespace(run=run)
    command.flower_superlink()


def _listening(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        print(f"The hub cannot listen at {host}:{port}: {error.strerror}. End what uses it, or make a hub elsewhere.")
        sys.exit(2)
    return made


def end_with_parent() -> None:
    """End this process when the one that started it is gone, however it ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        if os.getpgrp() == os.getpid():  # with the tasks that it forked
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def main(arguments: list[str]) -> None:
    end_with_parent()
    name, rest = arguments[0], arguments[1:]
    start: Callable[[], None] = supernode
    if name == "superlink":
        folder, host, port = Path(rest[0]), rest[1], int(rest[2])
        rest = rest[3:]

        def start() -> None:
            superlink(folder, host, port)

    sys.argv = [f"flower-{name}", *rest]
    code: Any = 1
    try:
        start()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a server's thread that Flower leaves running would keep the process alive and offline


if __name__ == "__main__":
    main(sys.argv[1:])
