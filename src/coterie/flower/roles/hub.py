"""A hub: its folder, the invitations that it hands out, and what it says of its sites and its run.

hub.json       the address, the sites with checksums of their secrets, the name of the run
ca.*, server.* the certificate authority, and the certificate of the address
invitations/   a file for each site
keys/          the public key of each site that has joined
runs/NAME/     a Flower project; its folder out has the results
logs/          what the processes said
"""

from __future__ import annotations

import hashlib
import json
import secrets
import ssl
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base.disk import private_folder, write_text
from coterie.errors import ConfigError
from coterie.flower import heads, wire
from coterie.flower.project import PACKAGE
from coterie.flower.roles import keys
from coterie.flower.roles.gate import HUB, KEYS, OVER, STATE
from coterie.flower.roles.invitation import Invitation, address_parts
from coterie.flower.server import EVENTS, FAILED, RESULT, ROUNDS

INVITATIONS, RUNS, LOGS, SECRET, DOOR = "invitations", "runs", "logs", "secret", "door.json"


@dataclass(frozen=True)
class Hub:
    folder: Path

    @classmethod
    def make(cls, folder: Path, address: str, sites: list[str]) -> Hub:
        host, _ = address_parts(address)
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty. Name a new folder; `coterie hub next` adds a run to a hub.")
        odd = [s for s in sites if not heads.name(s)]
        if odd or len(set(sites)) < len(sites) or not sites:
            raise ConfigError(
                f"Sites have different names of letters, digits and hyphens; got {', '.join(map(repr, sites))}. Rename one."
            )
        private_folder(folder)
        keys.make_authority(folder, folder.resolve().name)
        keys.make_certificate(folder, host)
        write_text(folder / SECRET, secrets.token_hex(32), private=True)
        hub = cls(folder)
        hub._write({"address": address, "sites": {name: {} for name in sites}})
        return hub

    @classmethod
    def load(cls, folder: Path) -> Hub:
        if not (folder / HUB).is_file():
            raise ConfigError(f"There is no hub in {folder}. Make one with `coterie hub init {folder} --config FILE`.")
        return cls(folder)

    @property
    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / HUB).read_text("utf-8"))
        return found

    def _write(self, about: Mapping[str, Any]) -> None:
        from coterie import __version__

        write_text(self.folder / HUB, json.dumps({**about, "version": __version__}, indent=1), private=True)

    @property
    def sites(self) -> list[str]:
        return list(self.about["sites"])

    def project(self, name: str | None = None) -> Path:
        return self.folder / RUNS / (name or self.about["run"])

    @property
    def out(self) -> Path:
        return self.project() / "out"

    def invite(self, name: str, run: str) -> list[Path]:
        """An invitation to the run for every site, with a new secret; the keys of sites that have joined stay."""
        from coterie import __version__

        about, made = self.about, []
        authority = (self.folder / keys.AUTHORITY).read_text()
        for site in about["sites"]:
            secret = secrets.token_hex(32)
            about["sites"][site] = {"secret": hashlib.sha256(secret.encode()).hexdigest()}
            told = (site, about["address"], authority, name, run, secret, __version__, wire.PROTOCOL)
            made.append(private_folder(self.folder / INVITATIONS) / f"{site}.json")
            Invitation(*told).save(made[-1])
        (self.folder / OVER).unlink(missing_ok=True)
        self._write(about | {"run": name})
        return made

    # ---- what it says ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any] | None:
        """What the gate knows of sites and runs; nothing if the hub is not running."""
        door = self.folder / DOOR
        if not door.exists():
            return None
        trusted = ssl.create_default_context(cafile=str(self.folder / keys.AUTHORITY))
        where = f"https://127.0.0.1:{json.loads(door.read_text())['port']}{STATE}"
        try:
            with urllib.request.urlopen(where, timeout=5, context=trusted) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return None

    def status(self) -> dict[str, Any]:
        """Sites, rounds, losses, who was late, and the privacy that is spent."""
        live, rounds, events = self.state(), lines_of(self.out / ROUNDS), lines_of(self.out / EVENTS)
        config = tomllib.loads((self.project() / PACKAGE / "run.toml").read_text("utf-8"))
        seen = {} if live is None else live["sites"]
        sites = {
            name: {
                "status": seen[name]["status"] if name in seen else "offline" if self.joined(name) else "invited",
                "seconds": seen.get(name, {}).get("seconds"),
                "late": sum(e["site"] == name for e in events),
            }
            for name in self.sites
        }
        last: dict[str, Any] = rounds[-1] if rounds else {}
        run = {
            "name": self.about["run"],
            "kind": "study" if "compare" in config else "training",
            "state": self._stage(live),
        }
        run |= {"round": last.get("round", 0), "of": last.get("of"), "loss": last.get("loss")}
        budget = config.get("privacy") or {}
        privacy = {"epsilon": last.get("epsilon"), "of": budget.get("epsilon"), "delta": budget.get("delta")}
        told = {"run": run, "sites": sites, "losses": [r.get("loss") for r in rounds], "events": events[-20:]}
        return told | {"privacy": privacy if budget else None, "why": self.failure(), "result": self.result()}

    def _stage(self, live: Mapping[str, Any] | None) -> str:
        if (self.out / RESULT).exists():
            return "finished"
        if self.failure() is not None:
            return "failed"
        if live is None:
            return "stopped"
        return "running" if any(s.startswith("running") for s in live["runs"].values()) else "waiting"

    def joined(self, site: str) -> bool:
        return (self.folder / KEYS / f"{site}.pub").exists()

    def failure(self) -> str | None:
        file = self.out / FAILED
        return file.read_text("utf-8").strip() if file.exists() else None

    def result(self) -> dict[str, Any] | None:
        file = self.out / RESULT
        return json.loads(file.read_text("utf-8")) if file.exists() else None


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The objects of a file of lines; a last line that is only half written is left out."""
    found = []
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
