"""An invitation: one file from a hub to one site, with all that the site needs.

It holds a secret with which the site's own key is registered, once. So it goes to the site by a channel that nobody else
reads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from coterie.base.disk import unlinked, write_text
from coterie.base.text import harmless
from coterie.errors import ConfigError
from coterie.flower import heads, wire

_MOST = 1 << 22  # bytes of a file


@dataclass(frozen=True)
class Invitation:
    """authority: the certificate of the hub's authority. run: the text of the run's file, and name: what the hub calls it.
    secret: what the site says when it hands in its key. version and protocol: of coterie at the hub."""

    site: str
    address: str
    authority: str
    name: str
    run: str
    secret: str
    version: str
    protocol: int

    @property
    def digest(self) -> str:
        """The SHA-256 checksum of the run's file, as `sha256sum` shows it."""
        return hashlib.sha256(self.run.encode()).hexdigest()

    def save(self, path: Path) -> None:
        write_text(path, json.dumps(asdict(self) | {"sha256": self.digest}, indent=1) + "\n", private=True)

    @classmethod
    def load(cls, path: Path) -> Invitation:
        if not unlinked(path).is_file() or path.stat().st_size > _MOST:
            raise ConfigError(f"There is no invitation {path}. Name the file that the hub's coordinator sent.")
        try:
            told: Any = json.loads(path.read_text("utf-8"))
            made = cls(**{f.name: told[f.name] for f in fields(cls)})
            texts = [v for k, v in asdict(made).items() if k != "protocol"]
            good = all(isinstance(v, str) for v in texts) and made.digest == told["sha256"] and heads.name(made.site)
            good = good and harmless(made.run) == made.run
        except wire.ODD:
            good = False
        if not good:
            raise ConfigError(f"{path} is no invitation, or a part of it was changed. Ask the hub's coordinator again.")
        if made.protocol != wire.PROTOCOL:
            from coterie import __version__

            raise ConfigError(
                f"The hub has coterie {made.version} (protocol {made.protocol}) and this site {__version__} (protocol "
                f"{wire.PROTOCOL}). Install the same version at both."
            )
        return made


def address_parts(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or any(c.isspace() for c in host):
        raise ConfigError(f"An address is HOST:PORT; got {address!r}. Write for example fl.example.org:8443.")
    return host, int(port)
