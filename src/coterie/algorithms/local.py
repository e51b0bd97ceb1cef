"""Local: every client trains alone, from the common start, with no exchange. All gains are measured against it."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.families import Trained
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, Population, SumBy, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class LocalState:
    """A server that knows nothing."""


@guarded
@dataclass(frozen=True, kw_only=True)
class Local(Trained):
    """Training alone; `local` are the steps of a round."""

    way = "alone"
    carries_statistics = True
    keeps_optimiser = True
    asks_per_round = 0  # nothing is sent
    newcomers = "They are scored with the untrained start, because nobody else's model is known."

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
