"""Ditto (Li, Hu, Beirami, Smith): a global model w by federated averaging, and beside it a personal model v that minimises
F_i(v) + (λ/2)‖v − w‖². λ = 0 is training alone, λ → ∞ the global model."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.fedavg import Shared, average
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Cohort, Context, Exchange, Population, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.tree import Params, Tree


@dataclass(frozen=True)
class Ditto(Algorithm):
    lam: float = 1.0
    local: LocalSGD = field(default_factory=LocalSGD)
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise ConfigError(f"Ditto needs lam ≥ 0; got {self.lam}.")

    def init(self, task: Task, population: Population, seed: int, start: Params) -> Shared:
        return Shared(start, {})

    def client(self, ctx: Context) -> Tree:
        return {"model": ctx.initial}

    def round(self, state: Shared, cohort: Cohort) -> Exchange[Shared]:
        mean = yield from average(self.train, state.model, cohort, self.aggregate)
        return state if mean is None else Shared(mean, {})

    def train(self, ctx: Context, model: Params) -> Up:
        """The global model's local steps, and the personal model's towards w^t (the model just received), on the same
        batches: the global model is FedAvg's, whatever the personal ones do."""
        mine, loss = self.local.fit(ctx, ctx.state["model"], anchor=model, pull=self.lam)
        trained, _ = self.local.fit(ctx.rewound(), model)
        return Up(send={"model": trained}, weight=ctx.n, state={"model": mine}, info={"loss": loss})

    def personal(self, ctx: Context, state: Shared) -> Params:
        model: Params = ctx.state["model"]
        return model

    def cluster(self, ctx: Context, state: Shared) -> Tensor:
        return ctx.index
