"""The door of a hub: the only requests that other machines may make of a SuperLink, and how a site hands in its key.

A SuperLink asks operators for no password, so whoever reaches all of it can start runs. This gate stands in front of it in
the same process, at a port of its own: there it lets pass what sites need (`/v1/fleet/`), answers `ENROL` itself, and
refuses everything else. All other requests come by a second port, on loopback.

A site enrols whenever it starts and every few seconds: it shows the secret of its invitation and its public key. The first
key that comes with a secret is the site's; the secret is of no use with another one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from coterie.base.disk import unlinked, write_text
from coterie.errors import ConfigError, CoterieError
from coterie.flower import heads, wire
from coterie.secure.identity import public_key

ENROL, STATE, SITES = "/v1/coterie/enrol", "/v1/coterie/state", "/v1/fleet/"
HUB, NODES, KEYS, OVER = "hub.json", "nodes.json", "keys", "over.json"
_MOST = 1 << 14  # bytes of a request here
_APART = 20.0  # seconds without a word after which another process may be the site
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Elsewhere(ConfigError):
    """Another process is the site now, or has just been it."""


class Link(Protocol):
    """What the gate needs of the SuperLink behind it."""

    def register(self, key: str, name: str) -> int:
        """The node of a public key, made if it is new."""
        ...

    def release(self, node: int) -> None:
        """The node's process has ended, and another may take its place."""
        ...

    def status(self) -> dict[int, str]: ...

    def runs(self) -> dict[str, str]: ...


@dataclass
class Gate:
    """app: the SuperLink. folder: the hub's. port: the one that other machines reach."""

    app: App
    link: Link
    folder: Path
    port: int
    _seen: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        outside = (scope.get("server") or (None, None))[1] == self.port
        kind, path = scope["type"], scope.get("path", "")
        if kind == "http" and path == (ENROL if outside else STATE):
            await self._answer(self._enrolled if outside else self._state, receive, send)
        elif not outside or kind == "lifespan" or (kind == "http" and path.startswith(SITES) and ".." not in path):
            await self.app(scope, receive, send)
        elif kind == "http":
            await _reply(send, 403, {"why": "Sites may reach /v1/fleet/ here, and nothing else."})
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, answer: Callable[[bytes], dict[str, Any]], receive: Any, send: Any) -> None:
        body, more = b"", True
        while more and len(body) <= _MOST:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        try:
            await _reply(send, 200, answer(body[:_MOST]))
        except CoterieError as error:
            await _reply(send, 409 if isinstance(error, Elsewhere) else 403, {"why": str(error)})

    # ---- a site ----------------------------------------------------------------------------------------------------------

    def _enrolled(self, body: bytes) -> dict[str, Any]:
        told = _texts(body, ("site", "secret", "key", "instance", "starts", "version", "protocol"))
        name, hub = told["site"], json.loads((self.folder / HUB).read_text("utf-8"))
        kept = hub["sites"].get(name, {}).get("secret", "")
        if not secrets.compare_digest(kept, hashlib.sha256(told["secret"].encode()).hexdigest()):
            raise ConfigError(
                f"The hub knows no such invitation for {wire.one_line(name)}. Use the newest that its coordinator sent."
            )
        if told["protocol"] != str(wire.PROTOCOL):
            raise ConfigError(
                f"The hub has coterie {hub['version']} (protocol {wire.PROTOCOL}) and this site "
                f"{wire.one_line(told['version'])} (protocol {wire.one_line(told['protocol'])}). Install the same at both."
            )
        line = self._own_key(name, told["key"])
        self._require_alone(name, told["instance"])
        node = self.link.register(line, name)
        if told["starts"] == "yes":
            self.link.release(node)  # a killed SuperNode would keep its place for a minute
        self._seen[name] = {
            "instance": told["instance"],
            "time": time.monotonic(),
            "version": told["version"],
            "node": node,
        }
        self._name_nodes(node, name)
        over, online = self.folder / OVER, self.link.status().get(node) == "online"
        ended = json.loads(over.read_text("utf-8"))["run"] if over.exists() else ""
        return {"online": online, "time": time.time(), "over": ended}

    def _own_key(self, name: str, given: str) -> str:
        """The site's key as it first came; any other key is refused."""
        file, key = unlinked(self.folder / KEYS / f"{name}.pub"), public_key(given)
        if not file.exists():
            write_text(file, f"{key} {name}\n")
        if public_key(file.read_text("utf-8")) != key:
            raise ConfigError(
                f"{name} has joined with another key: the invitation was used at another place. If its key was lost, the "
                f"hub's coordinator removes {KEYS}/{name}.pub."
            )
        return key

    def _require_alone(self, name: str, instance: str) -> None:
        seen = self._seen.get(name)
        if seen is not None and seen["instance"] != instance and (past := time.monotonic() - seen["time"]) < _APART:
            raise Elsewhere(
                f"{name} is running at another place, which spoke to the hub {past:.0f} s ago. Stop one of the two."
            )

    def _name_nodes(self, node: int, name: str) -> None:
        """The server's list of which node is which site."""
        file = self.folder / NODES
        names = json.loads(file.read_text("utf-8")) if file.exists() else {}
        wanted = {k: v for k, v in names.items() if v != name} | {str(node): name}
        if wanted != names:
            write_text(file, json.dumps(wanted, indent=1))

    # ---- the hub's own processes -----------------------------------------------------------------------------------------

    def _state(self, _: bytes) -> dict[str, Any]:
        status = self.link.status()
        sites = {
            name: {"status": status.get(seen["node"], "unknown"), "seconds": round(time.monotonic() - seen["time"], 1)}
            | {k: seen[k] for k in ("node", "version")}
            for name, seen in self._seen.items()
        }
        return {"sites": sites, "runs": self.link.runs()}


def _texts(body: bytes, names: tuple[str, ...]) -> dict[str, str]:
    try:
        told = json.loads(body)
        found = {name: told[name] for name in names}
    except wire.ODD:
        found = {}
    if (
        not found
        or not all(isinstance(v, str) and len(v) < 2000 for v in found.values())
        or not heads.name(found["site"])
    ):
        raise ConfigError(
            "A site enrols with its name, secret, key and version; something else came. Install one version."
        )
    return found


async def _reply(send: Any, status: int, told: Mapping[str, Any]) -> None:
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
