"""Local: every client trains alone, from the common start, with no exchange. All gains are measured against it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.annotations import guarded
from coterie.exchange.messages import Algorithm, Ask, Cohort, Context, Exchange, Population, SumBy, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.tree import Params, Tree


@dataclass(frozen=True)
class LocalState:
    """A server that knows nothing."""


@guarded
@dataclass(frozen=True, kw_only=True)
class Local(Algorithm):
    """Training alone; `local` are the steps of a round."""

    way = "alone"

    local: LocalSteps = field(default_factory=LocalSGD, kw_only=False)

    @property
    def asks_per_round(self) -> int:
        return 0  # nothing is sent

    @property
    def carries_statistics(self) -> bool:
        return True

    @property
    def keeps_optimiser(self) -> bool:
        return True

    def init(self, task: Task, population: Population, seed: int, start: Params) -> LocalState:
        return LocalState()

    def client(self, ctx: Context) -> Tree:
        return {"model": ctx.initial, **self.local.first_memory(ctx, ctx.initial)}

    def round(self, state: LocalState, cohort: Cohort) -> Exchange[LocalState]:
        yield Ask(self.train, cohort.clients, reduce=SumBy())
        return state

    def train(self, ctx: Context) -> Up:
        model, loss, memory = self.local.fit_on(ctx, ctx.state["model"])
        return Up(send={}, state={"model": model, **memory}, info={"loss": loss})

    def personal(self, ctx: Context, state: LocalState) -> Params:
        model: Params = ctx.state["model"]
        return model

    def cluster(self, ctx: Context, state: LocalState) -> Tensor:
        return ctx.index
