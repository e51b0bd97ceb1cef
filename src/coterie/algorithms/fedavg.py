"""FedAvg: one model for all, the sample-weighted mean of the clients' local models.

"Communication-Efficient Learning of Deep Networks from Decentralized Data" (H. Brendan McMahan, Eider Moore, Daniel
Ramage, Seth Hampson, Blaise Agüera y Arcas, 2017, https://arxiv.org/abs/1602.05629).

Server step, with d = mean of local models − model: velocity ← momentum · velocity + d, then model ← model + lr · velocity.
Plain averaging is lr = 1 and momentum = 0; `families.py` has the mean and the clients' local steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.families import Averaging, FedAvgState
from coterie.base.annotations import guarded
from coterie.base.arguments import BelowOne, Positive
from coterie.base.tree import Params, Tree, tree_map
from coterie.exchange.messages import Cohort, Context, Exchange, Population
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """`server_lr` and `server_momentum` are the server's own step; a robust `aggregate` replaces the mean."""

    way = "together"
    keeps_optimiser = True

    server_lr: Positive = 1.0
    server_momentum: BelowOne = 0.0

    @property
    def carries_statistics(self) -> bool:
        return self.server_lr == 1 and not self.server_momentum  # a longer step could make a variance negative

    def client(self, ctx: Context) -> Tree:
        return self.local.first_memory(ctx, ctx.initial)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        return FedAvgState(start, tree_map(lambda t: t * 0, start) if self.server_momentum else {})

    def round(self, state: FedAvgState, cohort: Cohort) -> Exchange[FedAvgState]:
        mean = yield from self.average(state, cohort)
        if mean is None:
            return state
        if self.server_lr == 1 and not self.server_momentum:
            return FedAvgState(mean, state.velocity)
        step = tree_map(lambda new, old: new - old, mean, state.model)
        if self.server_momentum:
            step = tree_map(lambda v, d: self.server_momentum * v + d, state.velocity, step)
        model = tree_map(lambda old, d: old + self.server_lr * d, state.model, step)
        return FedAvgState(model, step if self.server_momentum else {})
