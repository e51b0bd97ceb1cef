"""FedAvg: one model for all, the sample-weighted mean of the clients' local models.

"Communication-Efficient Learning of Deep Networks from Decentralized Data" (H. Brendan McMahan, Eider Moore, Daniel
Ramage, Seth Hampson, Blaise Agüera y Arcas, 2017, https://arxiv.org/abs/1602.05629).

Server step, with d = mean of local models − model: velocity ← momentum · velocity + d, then model ← model + lr · velocity.
Plain averaging is lr = 1 and momentum = 0. A robust `aggregate` replaces the mean. The server then needs every
client's model (an individual ask) instead of their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coterie.aggregation import Aggregator, Mean, aggregated
from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.tree import Params, Tree, row, tree_map


@dataclass(frozen=True)
class FedAvgState:
    model: Params
    velocity: Params


def average(phase: Any, model: Params, cohort: Cohort, aggregate: Aggregator) -> Exchange[Params | None]:
    """The clients' models after `phase` aggregated to one model, or None if no client answered (for a robust rule: too few).
    All rules except the mean need to see each model."""
    additive = isinstance(aggregate, Mean)
    reply = yield Ask(
        phase,
        cohort.clients,
        {"model": model},
        reduce=MeanBy() if additive else None,
        updates={"model": From("model")},
    )
    if not len(reply.clients):
        return None
    models: Params = row(reply.values["model"], 0) if additive else reply.values["model"]
    if additive:
        return models
    return aggregated(aggregate, models, reply.weight, len(cohort.clients), key=cohort.key("aggregate"), start=model)


@guarded
@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """`server_lr` and `server_momentum` are the server's own step; a robust `aggregate` replaces the mean."""

    way = "together"

    local: LocalSteps = field(default_factory=LocalSGD, kw_only=False)
    server_lr: float = 1.0
    server_momentum: float = 0.0
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        if not (self.server_lr > 0 and 0 <= self.server_momentum < 1):
            raise ConfigError(
                f"{type(self).__name__} needs server_lr above 0 and server_momentum in [0, 1); "
                f"got {self.server_lr} and {self.server_momentum}."
            )

    @property
    def carries_statistics(self) -> bool:
        return self.server_lr == 1 and not self.server_momentum  # a longer step could make a variance negative

    @property
    def keeps_optimiser(self) -> bool:
        return True

    def client(self, ctx: Context) -> Tree:
        return self.local.first_memory(ctx, ctx.initial)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        return FedAvgState(start, tree_map(lambda t: t * 0, start) if self.server_momentum else {})

    def round(self, state: FedAvgState, cohort: Cohort) -> Exchange[FedAvgState]:
        mean = yield from average(self.train, state.model, cohort, self.aggregate)
        if mean is None:
            return state
        if self.server_lr == 1 and not self.server_momentum:
            return FedAvgState(mean, state.velocity)
        step = tree_map(lambda new, old: new - old, mean, state.model)
        if self.server_momentum:
            step = tree_map(lambda v, d: self.server_momentum * v + d, state.velocity, step)
        model = tree_map(lambda old, d: old + self.server_lr * d, state.model, step)
        return FedAvgState(model, step if self.server_momentum else {})

    def train(self, ctx: Context, model: Params) -> Up:
        model, loss, memory = self.local.fit_on(ctx, model)
        return Up(send={"model": model}, weight=ctx.n, state=memory or None, info={"loss": loss})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return state.model
