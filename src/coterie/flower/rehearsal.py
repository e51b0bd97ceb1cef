"""A rehearsal of a deployment with secure sums: all sites and their server in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.base.tree import Tree
from coterie.engines.base import Env, Post
from coterie.engines.reduce import assemble, merged
from coterie.engines.secure import SecureSums, about, integers, nothing, require_additive
from coterie.engines.vectorised import LocalEngine
from coterie.exchange.messages import Ask, Ints, Reply
from coterie.secure.identity import Identity
from coterie.secure.server import Answer, SecureServer
from coterie.secure.settings import Secure
from coterie.secure.site import SecureSite


@dataclass
class RehearsalEngine:
    """Sites and their server in one process, with keys made for the purpose: the numbers of a deployment with secure sums,
    and no protection. Client i is at site i modulo the number of sites; `absent` says by round which sites do not answer."""

    secure: Secure
    absent: Mapping[int, Collection[int]] = field(default_factory=dict)
    _asked: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.engine = LocalEngine()
        own = {f"site {i + 1}": Identity.made() for i in range(self.secure.count)}
        known = replace(self.secure, sites=[f"{who.public} {name}" for name, who in own.items()])
        self.sites = {name: SecureSite(who, known, "rehearsal") for name, who in own.items()}
        self._sums = SecureSums(SecureServer(known, "rehearsal", {n: who.public for n, who in own.items()}, self.tell))

    def tell(self, messages: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any] | str]:
        """What the sites answer to the protocol's own messages."""
        return {name: self.sites[name].answer(message) for name, message in messages.items()}

    def run(self, ask: Ask, env: Env) -> Reply:
        require_additive(ask)
        if not len(ask.clients):
            return assemble(ask, env, ())
        places = {name: np.arange(i, len(env.federation), len(self.sites)) for i, name in enumerate(self.sites)}
        there = set(self.sites) - {f"site {i + 1}" for i in self.absent.get(env.round, ())}
        asked = {name: ask.only(np.isin(ask.clients, places[name])) for name in sorted(there)}
        shares = {name: merged(self.engine.shares(part, env)) for name, part in asked.items() if len(part.clients)}
        expected, question = next(iter(shares.values())), self._asked
        self._asked += 1
        self._sums.server.forget(question)

        def put(orders: dict[str, dict[str, Any]]) -> dict[str, Answer]:
            found = {}
            for name in (name for name in orders if name in there):
                told = integers(shares.get(name, nothing(expected)), asked[name], env, len(self.sites))
                masked = self.sites[name].mask(orders[name], question, about(asked[name], env), told)
                found[name] = Answer(masked["masked"], masked["context"])
            return found

        return self._sums.reply(ask, env, question, expected, places, put)[0]

    def map(
        self, function: Callable[..., Tree], clients: Ints, env: Env, *, test: bool = False, post: Post | None = None
    ) -> Tree:
        return self.engine.map(function, clients, env, test=test, post=post)

    def close(self) -> None:
        self.engine.close()
