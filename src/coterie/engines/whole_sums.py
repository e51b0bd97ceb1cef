"""Private releases of whole numbers that clients make themselves; the server or the sites add the noise of the mechanism.

It takes the place of `Releases`, which clips and rounds the updates of training. A client sends {"whole": int64 numbers}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from coterie.engines.base import Env
from coterie.engines.private import Shapes, noisy_sites
from coterie.exchange.messages import Ask, Reply
from coterie.privacy.account import Account
from coterie.privacy.mechanisms.gaussian import GaussianMechanism
from coterie.privacy.mechanisms.noise import ExactNoise
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Booking, Released
from coterie.secure.settings import Secure


@dataclass
class WholeSums:
    """One release. ``mechanism`` knows of how many sites its noise is; ``released`` is there after the ask."""

    mechanism: GaussianMechanism
    account: Account | None
    privacy: Privacy
    n_users: int
    secure: Secure | None = None
    released: Released[Any] | None = field(default=None, init=False)
    louder: float = field(default=1.0, init=False)
    exact: bool = field(default=True, init=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled for the processes where clients are: the account stays with the server."""
        return vars(self) | {"account": None}

    @property
    def parts(self) -> int:
        return noisy_sites(self.privacy, self.secure)

    @property
    def noise_multiplier(self) -> float:
        return self.mechanism.noise_multiplier

    def partial(self, ask: Ask, env: Env, rows: dict[str, Any]) -> dict[str, Any]:
        """The share of a chunk of clients."""
        none = torch.zeros(1)
        return {"sums": {"": rows["send"]["whole"].sum(0)}, "weights": none, "counts": none.clone()}

    def part(self, ask: Ask, shapes: Shapes, total: Any) -> Any:
        """A site's sum with its part of the noise, if sites add it."""
        return self.mechanism.part(total, ExactNoise()) if self.parts else total

    def book_ahead(self, ask: Ask, shapes: Shapes) -> int | None:
        """Book a release whose noise sites have drawn, before it can be seen; the number of the booking."""
        assert self.account is not None
        return self.account.book(self.mechanism.event()).number if self.parts else None

    def reply(self, ask: Ask, env: Env, added: dict[str, Any] | None, about: dict[str, Any]) -> Reply:
        """Keep what is released of the sum of all shares."""
        assert self.account is not None
        assert added is not None
        total = added["sums"][""].numpy()
        if self.parts:
            booking = Booking(self.mechanism.event(), self.account.ledger.id, added["booked"])
            self.released = Released(self.mechanism.drawn(total), (booking,))
            self.louder = math.sqrt(added["sites"] / self.parts)  # all sites were noisy, not the honest ones alone
        else:
            self.released = self.mechanism.give_out(total, self.account.noise, self.account.book)
        return Reply(ask.clients, {}, torch.zeros(1), torch.zeros(1, dtype=torch.int64), **about)
