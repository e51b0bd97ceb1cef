"""Sites and a server in one process: the same protocol with keys made for the purpose, for trials and for `fit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from coterie.errors import CoterieError
from coterie.secure.identity import Identity
from coterie.secure.server import Answer, SecureServer, Sum
from coterie.secure.settings import Secure
from coterie.secure.site import Integers, SecureSite


class Rehearsal:
    """As many sites as the settings have, called "site 1", "site 2" and so on."""

    def __init__(self, secure: Secure, run: str = "rehearsal", **options: Any) -> None:
        own = {f"site {i + 1}": Identity.made() for i in range(secure.count)}
        self.settings = replace(secure, sites=[f"{identity.public} {name}" for name, identity in own.items()])
        self.sites = {name: SecureSite(identity, self.settings, run) for name, identity in own.items()}
        self.there = set(self.sites)  # who can be reached
        keys = {name: identity.public for name, identity in own.items()}
        self.server = SecureServer(self.settings, run, keys, self.tell, present=lambda: self.there, **options)

    def tell(self, messages: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any] | str]:
        """What the sites that can be reached answer."""
        told: dict[str, dict[str, Any] | str] = {}
        for name in (name for name in messages if name in self.there):
            try:
                told[name] = self.sites[name].answer(messages[name])
            except CoterieError as refusal:
                told[name] = str(refusal)
        return told

    def add(
        self, ask: int, about: str, numbers: Mapping[str, Integers], before: Callable[[], Any] = lambda: None
    ) -> Sum:
        """The sum of the sites' numbers, as the server learns it; a site without numbers does not answer."""
        count = len(next(iter(numbers.values())))

        def put(orders: dict[str, dict[str, Any]]) -> dict[str, Answer]:
            told = {n: self.sites[n].mask(o, ask, about, numbers[n]) for n, o in orders.items() if n in numbers}
            return {n: Answer(one["masked"], one["context"]) for n, one in told.items()}

        return self.server.add(ask, about, count, put, before)
