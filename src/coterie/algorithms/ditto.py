"""Ditto: a global model w by federated averaging, and one personal model v per client.

"Ditto: Fair and Robust Federated Learning Through Personalization" (Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith,
2021, https://arxiv.org/abs/2012.04221).

The personal model of client i minimises F_i(v) + (λ/2)‖v − w‖², with λ → lam. λ = 0 is training alone, and λ → ∞ is the
global model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.fedavg import FedAvgState, average
from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Cohort, Context, Exchange, Population, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.tree import Params, Tree


@guarded
@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm):
    """`lam` is λ, how strongly a client's own model is pulled towards the common one."""

    way = "shrunk"

    local: LocalSteps = field(default_factory=LocalSGD, kw_only=False)
    lam: float = 1.0
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise ConfigError(f"Ditto needs lam ≥ 0; got {self.lam}.")

    @property
    def carries_statistics(self) -> bool:
        return True

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        return FedAvgState(start, {})

    def client(self, ctx: Context) -> Tree:
        return {"model": ctx.initial}

    def round(self, state: FedAvgState, cohort: Cohort) -> Exchange[FedAvgState]:
        mean = yield from average(self.train, state.model, cohort, self.aggregate)
        return state if mean is None else FedAvgState(mean, {})

    def train(self, ctx: Context, model: Params) -> Up:
        """The global model's local steps, and the personal model's towards w^t (the model just received), on the same
        batches: the global model is that of FedAvg, and does not depend on the personal models."""
        mine, loss = self.local.fit(ctx, ctx.state["model"], anchor=model, pull=self.lam)
        trained, _ = self.local.fit(ctx.rewound(), model)
        return Up(send={"model": trained}, weight=ctx.n, state={"model": mine}, info={"loss": loss})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        model: Params = ctx.state["model"]
        return model

    def cluster(self, ctx: Context, state: FedAvgState) -> Tensor:
        return ctx.index
