"""Which nodes can be reached, and which site of a run each of them is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coterie.flower import answers, wire
from coterie.flower.engine import Failure

_HELLO = 30.0  # seconds that a node has to identify itself
_PAUSE = 0.2  # seconds between two looks for sites that are missing
_LATER = 4  # times this period until a node is asked again


class Nodes(Protocol):
    """The nodes that can be reached now, and how to ask them."""

    def connected(self) -> Iterable[int]: ...

    def exchange(
        self, messages: Mapping[int, bytes], timeout: float | None = None, soon: bool = False
    ) -> Mapping[int, bytes | Failure]:
        """The answers that came in time; `timeout` are the seconds, where they differ from the default. With `soon` the next
        question follows at once, and nodes that sleep between two looks may be kept awake."""
        ...


@dataclass
class Sites:
    """Which node holds a site's clients; after a restart a site is recognised by its ticket."""

    nodes: Nodes
    run: str
    tickets: dict[str, str] = field(default_factory=dict)
    where: dict[str, int] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)
    _later: dict[int, float] = field(default_factory=dict)  # when to ask a node again that gave no answer

    def exchange(self, messages: Mapping[str, bytes], soon: bool = False) -> dict[str, bytes | Failure]:
        self.find()
        there = set(self.nodes.connected())
        sent = {self.where[s]: m for s, m in messages.items() if self.where.get(s) in there}
        got = self.nodes.exchange(sent, soon=soon) if sent else {}
        gone = Failure("the site is not connected")
        late = Failure("no answer in time")
        return {s: got.get(self.where[s], late) if self.where.get(s) in sent else gone for s in messages}

    def present(self) -> list[str]:
        """The sites that can be reached now."""
        self.find()
        there = set(self.nodes.connected())
        return [site for site in self.tickets if self.where.get(site) in there]

    def gather(self, patience: float) -> list[str]:
        """Wait until every site is reached, at most so many seconds; the sites that are missing then. A node that was busy
        with a question of the server before is asked again at once."""
        began = time.monotonic()
        while len(self.present()) < len(self.tickets) and time.monotonic() - began < patience:
            self._later.clear()
            time.sleep(_PAUSE)
        return sorted(set(self.tickets) - set(self.present()))

    def find(self) -> None:
        """Ask new nodes whether they are a lost site."""
        there = set(self.nodes.connected())
        if all(self.where.get(site) in there for site in self.tickets):
            return
        waiting = {node for node, when in self._later.items() if when > time.monotonic()}
        new = there - set(self.where.values()) - self._strangers - waiting
        if not new:
            return
        hello, began = wire.pack({"do": "hello", "run": self.run}), time.monotonic()
        got = self.nodes.exchange(dict.fromkeys(new, hello), _HELLO)
        now = time.monotonic()
        for node in new:
            try:
                ticket = answers.ticket(wire.unpack(got.get(node))[0])
            except wire.Malformed:
                if node not in got:  # a node that does not answer must not slow every question
                    self._later[node] = now + _LATER * (now - began)
                continue
            sites = [s for s, t in self.tickets.items() if secrets.compare_digest(t.encode(), ticket)]
            self.where |= dict.fromkeys(sites, node)
            if not sites:
                self._strangers.add(node)
