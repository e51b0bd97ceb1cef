"""A hub while it runs: its processes, the sites that come and go, and the run, which goes on after an interruption."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.base.disk import locked, private_folder, write_text
from coterie.base.text import listed
from coterie.errors import ConfigError
from coterie.flower import wire
from coterie.flower.roles import keys
from coterie.flower.roles.gate import NODES, OVER
from coterie.flower.roles.hub import DOOR, LOGS, SECRET, Hub, lines_of
from coterie.flower.roles.invitation import address_parts
from coterie.flower.roles.processes import COTERIE, DAEMON, Keeper, free_port
from coterie.flower.server import EVENTS, FAILED, ROUNDS

_TICK, _ASK = 0.5, 2.0  # seconds between two looks at the results, and between two questions to the SuperLink
_STARTS = 5  # how often a run is started that the processes under it ended
_FAREWELL = 15.0  # seconds for sites to hear that the run is over
_GONE = 60.0  # seconds for the end of an interrupted run's process
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FLWR = "from flwr.cli.app import app; app()"


@dataclass(frozen=True)
class Limits:
    """quorum: so many sites are enough to start after `patience` seconds, and for an answer after `deadline` seconds; 0 for
    all. timeout: the most seconds for one question."""

    quorum: int = 0
    patience: float = 300.0
    deadline: float = 60.0
    timeout: float = 600.0


class Running:
    """The processes of a hub while it runs."""

    def __init__(self, hub: Hub, limits: Limits, tell: Callable[[str], None]) -> None:
        self.hub, self.limits, self.tell = hub, limits, tell
        self.keeper = Keeper(hub.folder / LOGS, hub.folder / "flwr", tell)
        self.run: str | None = None  # Flower's number of the run
        self.starts, self.shown, self.began = 0, {ROUNDS: 0, EVENTS: 0}, time.monotonic()
        self.asked = 0.0
        self.status: dict[str, str] = {}

    def __call__(self) -> int:
        """Until the run is over: 0, or 1 if it failed."""
        hub = self.hub
        if (told := hub.result()) is not None:
            return self._end(told)
        with locked(private_folder(hub.folder / LOGS), private=True):
            (hub.out / FAILED).unlink(missing_ok=True)
            try:
                self._processes()
                while (code := self._tick()) is None:
                    time.sleep(_TICK)
                return code
            finally:
                self.keeper.stop()
                (hub.folder / DOOR).unlink(missing_ok=True)

    def _processes(self) -> None:
        folder, inside = self.hub.folder.resolve(), free_port()
        host, port = address_parts(self.hub.about["address"])
        if keys.renewed(folder, host):
            self.tell("The certificate was about to end and was replaced; sites trust the new one.")
        authority = str(folder / keys.AUTHORITY)
        flwr = f'[superlink]\ndefault = "hub"\n\n[superlink.hub]\naddress = "127.0.0.1:{inside}"\n'
        write_text(
            private_folder(folder / "flwr") / "config.toml", f"{flwr}root-certificates = {json.dumps(authority)}\n"
        )
        write_text(folder / DOOR, json.dumps({"port": inside}), private=True)
        for name in self.shown:  # of an earlier start
            self.shown[name] = len(lines_of(self.hub.out / name))
        open_to = "127.0.0.1" if host in _LOOPBACK else "::" if ":" in host else "0.0.0.0"
        superlink = (
            *DAEMON, "superlink", str(folder), open_to, str(port), "--host", "127.0.0.1", "--port", str(inside),
            "--isolation", "process", "--enable-supernode-auth", "--database", str(folder / "superlink.db"),
            "--superexec-auth-secret-file", str(folder / SECRET), "--ssl-ca-certfile", authority,
            "--ssl-certfile", str(folder / keys.CERTIFICATE), "--ssl-keyfile", str(folder / keys.CERTIFICATE_KEY),
        )  # fmt: skip
        worker = (*COTERIE, "flower", "worker", f"https://127.0.0.1:{inside}", "--root-certificates", authority)
        self.keeper.keep("superlink", lambda: superlink)
        self._healthy()
        self.keeper.keep("worker", lambda: (*worker, "--secret", str(folder / SECRET)))
        self.tell(f"The hub is at {self.hub.about['address']}; it waits for {listed(self.hub.sites, 20)}.")

    def _healthy(self) -> None:
        until = time.monotonic() + 120
        while self.hub.state() is None:
            if self.keeper.ended("superlink") or time.monotonic() > until:
                raise ConfigError(
                    f"The SuperLink does not start: {self.keeper.last('superlink')}. Its log is in {LOGS}."
                )
            time.sleep(0.2)

    def _tick(self) -> int | None:
        self.keeper.look()
        live = None
        if time.monotonic() - self.asked > _ASK:
            live, self.asked = self.hub.state(), time.monotonic()
        if live is not None:
            self._show_sites(live)
            if self.run is None:
                self._maybe_start(live)
                return None
        self._show_progress()
        if (told := self.hub.result()) is not None:
            return self._end(told)
        if (why := self.hub.failure()) is not None:
            self.tell(why)
            return 1
        if live is not None and self.run is not None and live["runs"].get(self.run, "finished").startswith("finished"):
            return self._again(live["runs"].get(self.run, "the SuperLink does not know it"))
        return None

    def _again(self, how: str) -> int | None:
        """Flower ended the run, and the run did not end itself: a process under it was killed."""
        if self.hub.result() is not None or self.hub.failure() is not None:
            return None
        if self.starts >= _STARTS:
            self.tell(f"The run ended {_STARTS} times without a word ({how}); {LOGS}/worker.log may say why.")
            return 1
        self.tell(f"The run was interrupted ({how}); it is started again after its last finished round.")
        with locked(self.hub.out, _GONE):  # until the process of the interrupted run is gone
            self.run, self.began = None, time.monotonic()
        return None

    def _show_sites(self, live: Mapping[str, Any]) -> None:
        for name, site in live["sites"].items():
            if site["status"] != self.status.get(name) and (site["status"] == "online" or name in self.status):
                self.tell(f"{name} is {'connected' if site['status'] == 'online' else site['status']}")
                self.status[name] = site["status"]

    def _maybe_start(self, live: Mapping[str, Any]) -> None:
        here = [name for name, site in live["sites"].items() if site["status"] == "online"]
        quorum, patience = (1, _GONE) if self.starts else (self.limits.quorum, self.limits.patience)
        enough = quorum and len(here) >= quorum and time.monotonic() - self.began > patience
        if len(here) == len(self.hub.sites) or enough:
            self._start(len(here))

    def _start(self, sites: int) -> None:
        self.starts += 1
        config = {"sites": sites, "names": str((self.hub.folder / NODES).resolve()), "patience": 60.0}
        config |= {
            "timeout": float(self.limits.timeout),
            "deadline": float(self.limits.deadline),
            "quorum": self.limits.quorum,
        }
        given = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())
        command = (sys.executable, "-c", _FLWR, "run", str(self.hub.project()), "hub", "--run-config", given)
        done = subprocess.run(
            (*command, "--format", "json"), env=self.keeper.env, capture_output=True, text=True, check=False
        )
        found = done.stdout[done.stdout.find("{") :]
        told: dict[str, Any] = json.loads(found) if found.startswith("{") else {"error-message": done.stderr[-300:]}
        if "run-id" not in told:
            raise ConfigError(f"Flower did not start the run: {wire.one_line(told.get('error-message', found))}")
        self.run = str(told["run-id"])
        self.tell(f"{self.hub.about['run']} starts with {sites} sites")

    def _show_progress(self) -> None:
        for name in (ROUNDS, EVENTS):
            lines = lines_of(self.hub.out / name)
            for line in lines[self.shown[name] :]:
                self.tell(_sentence(line))
            self.shown[name] = len(lines)

    def _end(self, told: Mapping[str, Any]) -> int:
        scores = ", ".join(f"{k} {v:.4g}" for k, v in told.get("scores", {}).items())
        self.tell(
            str(told.get("verdict") or f"{self.hub.about['run']} is finished after {told['rounds']} rounds; {scores}")
        )
        self.tell(f"The results are in {self.hub.out}.")
        self._farewell()
        return 0

    def _farewell(self) -> None:
        """Tell the sites, which look every few seconds, that the run is over."""
        write_text(self.hub.folder / OVER, json.dumps({"run": self.hub.about["run"]}))
        until = time.monotonic() + _FAREWELL
        while time.monotonic() < until and (live := self.hub.state()) is not None:
            if not any(site["status"] == "online" for site in live["sites"].values()):
                break
            time.sleep(_TICK)


def _sentence(line: Mapping[str, Any]) -> str:
    if "why" in line:
        where = " in ".join(str(line[k]) for k in ("site", "phase") if line.get(k))
        return f"{where}: {line['why']}"
    if "ask" in line:
        return f"question {line['round']} ({line['ask']}) is answered"
    loss = "" if line.get("loss") is None else f", loss {line['loss']:.4g}"
    spent = "" if line.get("epsilon") is None else f", ε {line['epsilon']:.3g} spent"
    there = f"{line['clients'] - line['lost']} of {line['clients']} clients"
    return f"round {line['round']} of {line['of']}: {there}{loss}{spent}"
