"""Faults: clients that do not answer."""

from __future__ import annotations

from dataclasses import dataclass

from coterie import randomness
from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ask


@guarded
@dataclass(frozen=True)
class Dropout(Channel):
    """Every asked client fails to answer with this probability, independently, from its own random stream."""

    rate: float
    separate = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ConfigError(f"Dropout needs a rate in [0, 1]; got {self.rate}.")

    def ask(self, ask: Ask, where: Where) -> Ask:
        answers = randomness.uniform(where.client_keys(ask.clients, "dropout"), 1).squeeze(-1) >= self.rate
        return ask.only(answers.numpy())
