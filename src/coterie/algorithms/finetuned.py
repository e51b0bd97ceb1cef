"""FineTuned: any algorithm, then some steps of each client on its own data, from the model that the algorithm gave it.

This is the usual baseline of personalised learning; it follows no paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from coterie.algorithms.fedavg import FedAvg
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree
from coterie.exchange.messages import Algorithm, Cohort, Context, Exchange, Population
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class FineTuned(Algorithm):
    """`tune` says how to fine-tune; by default as the base trains."""

    way = "shrunk"

    base: Algorithm = field(default_factory=FedAvg)
    tune: LocalSteps | None = None

    @property
    def local(self) -> LocalSteps:
        training: LocalSteps = self.base.local  # type: ignore[attr-defined]
        return training

    @property
    def asks_per_round(self) -> int:
        return self.base.asks_per_round

    def notes(self, state: Any) -> list[str]:
        return self.base.notes(state)

    @property
    def carries_statistics(self) -> bool:
        return self.base.carries_statistics

    def private(self) -> FineTuned:
        return replace(self, base=self.base.private())

    def init(self, task: Task, population: Population, seed: int, start: Params) -> Any:
        return self.base.init(task, population, seed, start)

    def client(self, ctx: Context) -> Tree:
        state: Tree = self.base.client(ctx)
        return state

    def round(self, state: Any, cohort: Cohort) -> Exchange[Any]:
        return (yield from self.base.round(state, cohort))

    def personal(self, ctx: Context, state: Any) -> Params:
        model, _ = (self.tune or self.local).fit(ctx, self.base.personal(ctx, state))
        return model

    def cluster(self, ctx: Context, state: Any) -> Tensor:
        label: Tensor = self.base.cluster(ctx, state)
        return label
