"""Oracle: FedAvg inside the true clusters, which is what a perfect clustering would give.

It needs a federation that knows its clusters. A yardstick; no paper is followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.algorithms.families import InGroups, Trained
from coterie.base.annotations import guarded
from coterie.base.tree import Params, repeat, take
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up, one_per
from coterie.learning.task import Task


@dataclass(frozen=True)
class OracleState:
    models: Params = field(metadata=one_per("truth"))
    truth: Tensor = field(metadata=one_per("client"))


@guarded
@dataclass(frozen=True, kw_only=True)
class Oracle(InGroups, Trained):
    """FedAvg inside the true clusters, which the federation must know."""

    way = "groups"
    carries_statistics = True
    reads_clusters = True

    def init(self, task: Task, population: Population, seed: int, start: Params) -> OracleState:
        if population.clusters is None:
            raise ConfigError(
                "Oracle needs the true clusters; this federation has none.",
                python="Pass clusters=… or use IFCA.",
                cli="Name their column with --cluster, or use ifca.",
            )
        truth = torch.from_numpy(population.clusters)
        return OracleState(repeat(start, int(truth.max()) + 1), truth)

    def round(self, state: OracleState, cohort: Cohort) -> Exchange[OracleState]:
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
        return OracleState(reply.or_keep("model", state.models), state.truth)

    def train(self, ctx: Context, model: Params, cluster: Tensor) -> Up:
        model, loss = self.local.fit(ctx, model)
        return Up(send={"model": model}, weight=ctx.n, group=cluster, info={"loss": loss})

    def cluster(self, ctx: Context, state: OracleState) -> Tensor:
        return state.truth[ctx.index]
