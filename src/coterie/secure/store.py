"""What a site or a server remembers, in a folder of its own or, for rehearsals, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.base.disk import locked, private_folder, unlinked, writing
from coterie.errors import ConfigError

_PATIENCE = 60.0  # seconds to wait for another message that is worked on


@dataclass
class Store:
    """Entries by name: bytes, or plain values. A write is whole or absent, and on the disk when it returns."""

    folder: Path | None = None
    _kept: dict[str, bytes] = field(default_factory=dict, repr=False)

    def read(self, name: str) -> bytes | None:
        if self.folder is None:
            return self._kept.get(name)
        file = unlinked(self.folder / name)
        return file.read_bytes() if file.exists() else None

    def write(self, name: str, content: bytes) -> None:
        if self.folder is None:
            self._kept[name] = content
            return
        with writing(private_folder(self.folder) / name, private=True) as partial:
            partial.write_bytes(content)

    def value(self, name: str) -> Any:
        """A plain value; None if there is no such entry."""
        found = self.read(name)
        try:
            return None if found is None else json.loads(found)
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{name} in {self.folder} is damaged. Start a new run; an older copy of it would use keys twice."
            ) from None

    def keep(self, name: str, value: Any) -> None:
        """Write a plain value."""
        self.write(name, json.dumps(value).encode())

    def names(self) -> list[str]:
        if self.folder is None:
            return sorted(self._kept)
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []

    def drop(self, name: str) -> None:
        if self.folder is None:
            self._kept.pop(name, None)
        else:
            (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """One message at a time."""
        with locked(self.folder, _PATIENCE, private=True):
            yield
