"""Sites and a server whose messages can be read, lost and changed, and who can be restarted from their folders."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rehearsal import Rehearsal

from coterie.errors import CoterieError
from coterie.secure.server import Answer, SecureServer, Sum
from coterie.secure.settings import Secure
from coterie.secure.site import SecureSite
from coterie.secure.store import Store

Numbers = dict[str, NDArray[np.int64]]


class World(Rehearsal):
    """``lost``: who does not answer in a step ("keys", "shares", "mask", "open"). ``change`` may do something to a message
    on its way to a site, ``spoil`` to its answer; ``seen`` are all answers."""

    def __init__(self, secure: Secure, folder: Path | None = None, **options: Any) -> None:
        self.notes: list[tuple[str, str]] = []
        options = {"slots": 4, "note": lambda site, why: self.notes.append((site, why))} | options
        super().__init__(secure, **options)
        self.folder = folder
        self.lost: dict[str, set[str]] = {}
        self.change: Callable[[str, str, Any], Any] = lambda site, step, message: message
        self.spoil: Callable[[str, str, Any], Any] = lambda site, step, answer: answer
        self.seen: list[tuple[str, str, Any]] = []
        if folder is not None:
            for name in self.sites:
                self.restart(name)
            self.server.store = Store(folder / "server")

    def restart(self, name: str) -> None:
        """The site comes back with nothing but its folder."""
        assert self.folder is not None
        old = self.sites[name]
        self.sites[name] = SecureSite(old.identity, old.secure, old.run, Store(self.folder / name))

    def restart_server(self) -> None:
        old = self.server
        self.server = SecureServer(
            old.secure, old.run, old.sites, self.tell, old.store, old.present, old.note, old.slots
        )

    def tell(self, messages: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any] | str]:
        told: dict[str, dict[str, Any] | str] = {}
        for name, message in messages.items():
            step = str(message.get("step"))
            if name not in self.there or name in self.lost.get(step, set()):
                continue
            changed = self.change(name, step, copy.deepcopy(message))
            told |= {n: self.spoil(n, step, a) for n, a in super().tell({name: changed}).items()}
            self.seen.append((name, step, told[name]))
        return told

    def add(self, ask: int, about: str, numbers: Numbers, before: Callable[[], Any] = lambda: None) -> Sum:
        count = len(next(iter(numbers.values())))

        def put(orders: dict[str, dict[str, Any]]) -> dict[str, Answer]:
            found: dict[str, Answer] = {}
            for name, order in orders.items():
                if name not in numbers or name not in self.there or name in self.lost.get("mask", set()):
                    continue
                order = self.change(name, "mask", copy.deepcopy(order))
                try:
                    told = self.spoil(name, "mask", self.sites[name].mask(order, ask, about, numbers[name]))
                except CoterieError as refusal:
                    self.notes.append((name, str(refusal)))
                    continue
                self.seen.append((name, "mask", told))
                found[name] = Answer(told["masked"], told["context"], kept=name)
            return found

        return self.server.add(ask, about, count, put, before)


def numbers(world: Rehearsal, count: int = 7, seed: int = 0) -> Numbers:
    """Integers of all sizes for every site, whose sum fits into 64 bits."""
    rng = np.random.default_rng(seed)
    big = 2**62 // len(world.sites)
    return {name: rng.integers(-big, big, count) for name in world.sites}


def total(given: Numbers, but: set[str] = frozenset()) -> NDArray[np.int64]:  # type: ignore[assignment]
    """The plain sum."""
    return np.asarray(sum(x for name, x in given.items() if name not in but))
