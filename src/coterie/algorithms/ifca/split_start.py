"""Where IFCA's k models start: from a random split of the clients, as in the authors' code for Table 2.

The clients are put into k groups of equal size at random, and for some rounds every client trains its group's model,
whatever its losses. Then Algorithm 2 begins, with models that have learned something, each from other clients. The paper
does not mention this start; without it random last layers over one shared network often attract nobody (erratum EC-21).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.algorithms.ifca.algorithm_2 import Algorithm2
from coterie.algorithms.ifca.cluster_models import IFCAState
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.tree import Params, joined, take
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, SumBy, Up


@guarded
@dataclass(frozen=True)
class FromSplit:
    """Start from a random split of the clients: each k-th of them trains one of the models for `rounds` rounds."""

    rounds: int = 20


def equal_groups(clients: int, k: int, seed: int) -> Tensor:
    """A group for every client: k groups at random whose sizes differ by one at most."""
    order = randomness.bits(randomness.fold(randomness.base_key(seed), "split"), clients).argsort()
    group = torch.empty(clients, dtype=torch.long)
    group[order] = torch.arange(clients) % k
    return group


@dataclass(frozen=True)
class SplitStart:
    """The first rounds of a run that starts from a split. The groups are the server's, and stand in `identity` until the
    last of these rounds."""

    plain: Algorithm2
    setting: FromSplit

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        group = state.identity[torch.from_numpy(cohort.clients)]
        each = {"model": take(state.models, group), "group": group}
        origin = From("model", "shared") if self.plain.option.sends == "model" else None
        updates = {self.plain.option.sends: origin}
        down = {"shared": state.shared}
        reply = yield Ask(
            self.train, cohort.clients, down, each, reduce=SumBy(self.plain.clusters), updates=updates, optional=True
        )
        if len(reply.clients):
            state = self.plain.update(state, reply.values, reply.weight)
        if cohort.round + 1 < self.setting.rounds:
            return state
        return replace(state, started=True, identity=torch.full_like(state.identity, -1))

    def train(self, ctx: Context, model: Params, group: Tensor, shared: Params) -> Up:
        return self.plain.work(ctx, joined(model, shared, ctx.initial), group)
