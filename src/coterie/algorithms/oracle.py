"""Oracle: FedAvg inside the true clusters; what a perfect clustering would give (needs a federation that knows them)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.tree import Params, repeat, take


@dataclass(frozen=True)
class Clustered:
    models: Params
    truth: Tensor


@dataclass(frozen=True)
class Oracle(Algorithm):
    local: LocalSGD = field(default_factory=LocalSGD)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> Clustered:
        if population.clusters is None:
            raise ConfigError("Oracle needs the true clusters; this federation has none. Pass clusters=… or use IFCA.")
        truth = torch.from_numpy(population.clusters)
        return Clustered(repeat(start, int(truth.max()) + 1), truth)

    def round(self, state: Clustered, cohort: Cohort) -> Exchange[Clustered]:
        mine = state.truth[torch.from_numpy(cohort.clients)]
        groups = len(next(iter(state.models.values())))
        reply = yield Ask(
            self.train,
            cohort.clients,
            each={"model": take(state.models, mine), "cluster": mine},
            reduce=MeanBy(groups),
            updates={"model": From("model", groups="models")},
            known={"models": state.models},
        )
        return Clustered(reply.or_keep("model", state.models), state.truth)

    def train(self, ctx: Context, model: Params, cluster: Tensor) -> Up:
        model, loss = self.local.fit(ctx, model)
        return Up(send={"model": model}, weight=ctx.n, group=cluster, info={"loss": loss})

    def personal(self, ctx: Context, state: Clustered) -> Params:
        model: Params = take(state.models, self.cluster(ctx, state))
        return model

    def cluster(self, ctx: Context, state: Clustered) -> Tensor:
        return state.truth[ctx.index]
