"""Faults: clients that do not answer."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.arguments import Share
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ask


@guarded
@dataclass(frozen=True)
class Dropout(Channel):
    """Every asked client fails to answer with this probability, independently, from its own random stream."""

    rate: Share
    separate = True

    def ask(self, ask: Ask, where: Where) -> Ask:
        answers = randomness.uniform(where.client_keys(ask.clients, "dropout"), 1).squeeze(-1) >= self.rate
        return ask.only(answers.numpy())
