"""The contract of a channel: five methods that do nothing by default."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.base import randomness
from coterie.base.tree import Tree
from coterie.data.federation import Federation
from coterie.exchange.messages import Ask, Ints, Reply


@dataclass(frozen=True)
class Where:
    """The current place in a run, and the source of a channel's randomness."""

    federation: Federation
    seed: int
    round: int
    ask: int  # the number of this ask within the round
    group: Tensor | None = None  # in `up`: the group each client's message is for

    def client_keys(self, clients: Ints, purpose: str) -> Tensor:
        """One random key per client, from (seed, client, round, ask, purpose)."""
        keys = randomness.client_keys(self.federation.keys[clients], self.seed)
        return randomness.fold(keys, purpose, self.round, self.ask)


class Channel:
    """Override what you need. `ask` and `reply` see the whole exchange, on the server's side; `data` and `up` see a
    chunk of clients (stacked), on the clients' side: their data before and their messages after the client function.

    A channel that must see all messages at once before they are summed sets `whole = True`; it then gets them in one
    call of `up`, in the order asked.

    A channel in which a client's message depends on no other client sets `separate = True`. A private run with any other
    channel gets no valid receipt, because a client's message may then contain another client's data."""

    whole: bool = False
    separate: bool = False

    def ask(self, ask: Ask, where: Where) -> Ask:
        return ask

    def data(self, x: Tensor, y: Tensor, clients: Ints, where: Where) -> tuple[Tensor, Tensor]:
        return x, y

    def claim(self, group: Tensor, clients: Ints, ask: Ask, where: Where) -> Tensor:
        """The groups that the clients' messages are for."""
        return group

    def up(self, send: Tree, clients: Ints, ask: Ask, where: Where) -> Tree:
        return send

    def reply(self, reply: Reply, ask: Ask, where: Where) -> Reply:
        return reply
