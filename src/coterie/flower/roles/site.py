"""A site: its folder, how it joins a hub, and the two processes that it keeps.

    invite.json      the invitation                 approved.toml    the run's file that this site works on
    key              the site's own key             approvals.jsonl  what was approved, when and how
    outgoing.jsonl   everything that left           logs/            what the processes said
    RUN/             the prepared rows and the results of a run

The worker runs the coterie that is installed here on the approved file. Code that a run brings is neither unpacked nor run.
"""

from __future__ import annotations

import json
import secrets
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.base.disk import add_lines, locked, private_folder, unlinked, write_text
from coterie.errors import ConfigError, CoterieError
from coterie.flower import wire
from coterie.flower.guard import OUTGOING, STATISTICS
from coterie.flower.roles import keys
from coterie.flower.roles.gate import ENROL
from coterie.flower.roles.hub import LOGS, SECRET, lines_of
from coterie.flower.roles.invitation import Invitation
from coterie.flower.roles.processes import COTERIE, DAEMON, Keeper, free_port

INVITE, APPROVED, APPROVALS = "invite.json", "approved.toml", "approvals.jsonl"
_TICK, _EVERY = 0.5, 4.0  # seconds between two looks, and between two words to the hub
_ELSEWHERE = 25.0  # seconds to wait for the end of another process that was this site
_OFFLINE = 45.0  # seconds after which a SuperNode that the hub does not see is started again
SKEW = 5.0  # seconds by which a site's clock may be ahead of the hub's
_BEHIND = 300.0  # and behind it


class Unreachable(CoterieError, OSError):
    """The hub does not answer; it may later."""


class Elsewhere(ConfigError):
    """Another process is this site now."""


@dataclass(frozen=True)
class Home:
    """A site's folder with its invitation."""

    folder: Path
    invitation: Invitation
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def open(cls, folder: Path, invite: Path | None) -> Home:
        """The folder, made at the first start; a newer invitation of the same hub replaces the one that is kept."""
        kept = folder / INVITE
        if invite is None and not kept.exists():
            raise ConfigError(f"{folder} is no site's folder yet. Start it once with --invite FILE.")
        told = Invitation.load(kept if invite is None else invite)
        if kept.exists():
            before = Invitation.load(kept)
            if (before.site, before.authority) != (told.site, told.authority):
                raise ConfigError(
                    f"{folder} is the site {before.site} of another hub or name. Give this invitation a folder of its own."
                )
        private_folder(folder)
        told.save(kept)
        write_text(folder / keys.AUTHORITY, told.authority)
        if not (folder / SECRET).exists():
            write_text(folder / SECRET, secrets.token_hex(32), private=True)
        return cls(folder, told)

    # ---- what it has agreed to -------------------------------------------------------------------------------------------

    @property
    def approved(self) -> bool:
        """Whether the invitation's run has been approved here."""
        lines = lines_of(self.folder / APPROVALS)
        return any(line["sha256"] == self.invitation.digest for line in lines)

    def approve(self, how: str) -> None:
        """Write down that the run was approved, and let its agreement on columns take the place of an earlier one."""
        kept = self.folder / APPROVED
        if kept.exists() and kept.read_text("utf-8") != self.invitation.run:
            unlinked(self.folder / STATISTICS).unlink(missing_ok=True)
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "run": self.invitation.name, "how": how}
        if not self.approved:
            add_lines(self.folder / APPROVALS, [json.dumps(line | {"sha256": self.invitation.digest})], private=True)
        write_text(kept, self.invitation.run, private=True)

    # ---- the hub ---------------------------------------------------------------------------------------------------------

    def enrol(self, starts: bool = False) -> dict[str, Any]:
        """Hand in the key, or show again that this site is there; the hub's answer."""
        from coterie import __version__

        told = {
            "site": self.invitation.site, "secret": self.invitation.secret, "instance": self.instance,
            "key": keys.site_key(self.folder, self.invitation.site), "starts": "yes" if starts else "no",
            "version": __version__, "protocol": str(wire.PROTOCOL),
        }  # fmt: skip
        address = self.invitation.address
        trusted = ssl.create_default_context(cadata=self.invitation.authority)
        request = urllib.request.Request(f"https://{address}{ENROL}", json.dumps(told).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except (OSError, ValueError) as error:
            raise _unreachable(address, error) from None
        ahead = time.time() - float(found["time"])
        if ahead > SKEW or ahead < -_BEHIND:
            where = "ahead of" if ahead > 0 else "behind"
            raise ConfigError(
                f"This machine's clock is {abs(ahead):.0f} s {where} the hub's, which then refuses the site. Set the clock."
            )
        return found


def _refused(error: urllib.error.HTTPError) -> CoterieError:
    try:
        why = wire.one_line(json.load(error)["why"])
    except (*wire.ODD, OSError):
        why = f"The hub refuses this site (HTTP {error.code}). Look at its log."
    return Elsewhere(why) if error.code == 409 else ConfigError(why)


def _unreachable(address: str, error: Exception) -> CoterieError:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        if "expired" in str(reason):
            return Unreachable(
                "The hub's certificate has expired. Its coordinator starts the hub again, which replaces it."
            )
        return ConfigError(
            f"{address} does not show a certificate of the invitation's authority: it is another machine, or another hub "
            "with the same address. Ask the coordinator for a new invitation."
        )
    return Unreachable(
        f"The hub at {address} cannot be reached ({wire.one_line(reason)}). This site tries again until its coordinator has "
        "started it with `coterie hub start`."
    )


# ---- running it ------------------------------------------------------------------------------------------------------


class Running:
    """The processes of a site while it runs."""

    def __init__(self, home: Home, node: dict[str, Any], stay: bool, tell: Callable[[str], None]) -> None:
        """node: the node configuration of the SuperNode."""
        self.home, self.node, self.stay, self.tell = home, node, stay, tell
        self.keeper = Keeper(home.folder / LOGS, home.folder / "flwr", tell)
        self.port, self.offline, self.spoke, self.said = free_port(), 0.0, 0.0, ""
        self.left = len(lines_of(home.folder / OUTGOING))

    def __call__(self) -> int:
        with locked(private_folder(self.home.folder / LOGS), private=True):
            over = self._enrolled()
            try:
                self.keeper.keep("supernode", self._supernode)
                self.keeper.keep("worker", self._worker)
                while not over or self.stay:
                    time.sleep(_TICK)
                    over = self._tick()
                return 0
            finally:
                self.keeper.stop()

    def _enrolled(self) -> bool:
        """Join the hub, and wait for it if it is not there yet. Whether its run is over already."""
        began = time.monotonic()
        while True:
            try:
                found = self.home.enrol(starts=True)
                name = self.home.invitation.site
                self.tell(
                    f"{name} has joined the hub at {self.home.invitation.address}; {self.home.invitation.name} may begin."
                )
                return bool(found["over"] == self.home.invitation.name)
            except Unreachable as error:
                self._once(str(error))
            except Elsewhere as error:
                self._once(str(error))
                if time.monotonic() - began > _ELSEWHERE:
                    raise
            time.sleep(1.0)

    def _once(self, line: str) -> None:
        if line != self.said:
            self.tell(line)
        self.said = line

    def _tick(self) -> bool:
        self.keeper.look(self._release)
        self._show()
        if time.monotonic() - self.spoke < _EVERY:
            return False
        self.spoke = time.monotonic()
        try:
            found = self.home.enrol()
        except CoterieError as error:
            self._once(str(error))
            return False
        self.said = ""
        self.offline = 0.0 if found["online"] else self.offline or time.monotonic()
        if self.offline and time.monotonic() - self.offline > _OFFLINE:
            self.tell("The hub does not see this site's SuperNode, which is started again.")
            self.keeper.restart("supernode")
            self.offline = 0.0
        if found["over"] == self.home.invitation.name and not self.stay:
            self.tell(f"{self.home.invitation.name} is over. {results(self.home.folder)}")
            return True
        return False

    def _release(self, name: str) -> None:
        """The hub gives the place of a SuperNode that ended to the next one."""
        if name == "supernode":
            try:
                self.home.enrol(starts=True)
            except CoterieError as error:
                self._once(str(error))

    def _show(self) -> None:
        lines = lines_of(self.home.folder / OUTGOING)
        for line in lines[self.left :]:
            what = line["message"] + (f" {line['phase']}" if "phase" in line else "")
            self.tell(
                f"refused {what}: {line['refused']}" if "refused" in line else f"answered {what}: {line['bytes']} bytes"
            )
        self.left = len(lines)

    def _supernode(self) -> tuple[str, ...]:
        folder = self.home.folder.resolve()
        told = " ".join(f"{k}={json.dumps(v)}" for k, v in self.node.items())
        return (
            *DAEMON, "supernode", "--superlink", self.home.invitation.address,
            "--host", "127.0.0.1", "--port", str(self.port),
            "--root-certificates", str(folder / keys.AUTHORITY), "--auth-supernode-private-key", str(folder / keys.KEY),
            "--isolation", "process", "--superexec-auth-secret-file", str(folder / SECRET), "--node-config", told,
        )  # fmt: skip

    def _worker(self) -> tuple[str, ...]:
        folder = self.home.folder.resolve()
        given = ("--secret", str(folder / SECRET), "--run", str(folder / APPROVED))
        return (*COTERIE, "flower", "worker", f"127.0.0.1:{self.port}", *given)


def results(folder: Path) -> str:
    """Where the results of the newest run are."""
    found = sorted(folder.glob("*/result"), key=lambda path: path.stat().st_mtime)
    return f"Results: {found[-1]}" if found else "This site has no results of it."


def clean(folder: Path) -> tuple[int, int]:
    """Remove prepared rows and states of all runs; results, the log of what left and the budget stay. The number of runs
    and of bytes."""
    with locked(private_folder(folder / LOGS), private=True):
        runs, size = 0, 0
        for run in {path.parent for path in folder.glob("*/rows")}:
            gone = [
                run / "rows",
                run / "secure",
                *run.glob("state-*.safetensors"),
                run / "places.npy",
                run / "n_clients.txt",
            ]
            for path in (p for p in gone if p.exists()):
                size += sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")) if f.is_file())
                path.unlink() if path.is_file() else shutil.rmtree(path)
            runs += 1
        return runs, size
