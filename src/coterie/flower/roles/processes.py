"""Processes that are kept running: their output goes to files, and one that ends is started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from coterie.base.disk import private_file, private_folder

_LONGEST = 30.0  # seconds until a process that ends again and again is started again
_STEADY = 60.0  # seconds after which a process counts as one that runs
_GRACE = 10.0  # seconds that processes have to end
_TAIL = 4096  # bytes of a log
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}  # fmt: skip
"""Flower tells nobody about a run, and installs nothing."""
KEEPER = "COTERIE_KEEPER"  # a process that has it in its environment ends with its parent
DAEMON = (
    sys.executable,
    "-P",
    str(Path(__file__).with_name("daemons.py")),
)  # without torch, which a SuperNode needs not
COTERIE = (sys.executable, "-m", "coterie")


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class _Kept:
    command: Callable[[], tuple[str, ...]]
    running: subprocess.Popen[bytes]
    since: float
    pause: float = 1.0
    again: float | None = None  # when it is started again


@dataclass
class Keeper:
    """folder: of the logs. tell: is called with a sentence when a process ended."""

    folder: Path
    home: Path
    tell: Callable[[str], None]
    _kept: dict[str, _Kept] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return os.environ | QUIET | {"FLWR_HOME": str(self.home), KEEPER: str(os.getpid())}

    def keep(self, name: str, command: Callable[[], tuple[str, ...]]) -> None:
        """Start a process and keep it; `command` is asked again for each start."""
        self._kept[name] = _Kept(command, self._start(name, command()), time.monotonic())

    def _start(self, name: str, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        private_folder(self.folder)
        with private_file(self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.env, start_new_session=True)

    def look(self, because: Callable[[str], None] | None = None) -> None:
        """Start again what has ended; `because` is called with its name before."""
        now = time.monotonic()
        for name, kept in self._kept.items():
            if kept.again is None and (code := kept.running.poll()) is not None:
                kept.pause = 1.0 if now - kept.since > _STEADY else min(_LONGEST, 2 * kept.pause)
                kept.again = now + kept.pause
                why = self.last(name) if code >= 0 else signal.Signals(-code).name
                self.tell(f"{name} ended (code {code}): {why}. It is started again in {kept.pause:g} s.")
            if kept.again is not None and now >= kept.again:
                if because is not None:
                    because(name)
                kept.running, kept.since, kept.again = self._start(name, kept.command()), now, None

    def restart(self, name: str) -> None:
        """End a process, which `look` then starts again."""
        _signal(self._kept[name].running, signal.SIGKILL)

    def ended(self, name: str) -> bool:
        return self._kept[name].running.poll() is not None

    def last(self, name: str) -> str:
        """The last line of a process's log that says something."""
        file = self.folder / f"{name}.log"
        text = file.read_bytes()[-_TAIL:].decode(errors="replace") if file.exists() else ""
        lines = [line.strip(" .") for line in text.splitlines() if any(c.isalpha() for c in line)]
        return lines[-1][-200:] if lines else "it said nothing"

    def stop(self) -> None:
        """End all, first kindly."""
        for kept in self._kept.values():
            _signal(kept.running, signal.SIGTERM)
        until = time.monotonic() + _GRACE
        for kept in self._kept.values():
            try:
                kept.running.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(kept.running, signal.SIGKILL)
                kept.running.wait()
        self._kept.clear()


def _signal(process: subprocess.Popen[bytes], how: int) -> None:
    """To the process and all that it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
