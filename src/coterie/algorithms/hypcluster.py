"""HypCluster: clients choose the best of k hypotheses and train it.

"Three Approaches for Personalization with Applications to Federated Learning" (Yishay Mansour, Mehryar Mohri, Jae Ro,
Ananda Theertha Suresh, 2020, https://arxiv.org/abs/2002.10619).

Each hypothesis becomes the sample-weighted mean of the models of the clients that chose it. This is IFCA's option II up to
the weights. The start is random, as published. A robust `aggregate` replaces the mean (`ifca/robust_clusters.py`); then
every client counts once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.families import Trained
from coterie.algorithms.ifca import IFCA, IFCAState
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree
from coterie.exchange.messages import Cohort, Context, Exchange, Population
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class HypCluster(Trained):
    """clusters=None lets `fit` choose the number; a robust `aggregate` replaces the mean in every cluster."""

    way = "groups"
    carries_statistics = True

    clusters: int | None = None
    aggregate: Aggregator = field(default_factory=Mean)

    @property
    def _rounds(self) -> IFCA:
        return IFCA(
            clusters=self.clusters, local=self.local, start="random", samples_weighted=True, aggregate=self.aggregate
        )

    @property
    def helpers(self) -> dict[str, Any]:
        return self._rounds.helpers

    def init(self, task: Task, population: Population, seed: int, start: Params) -> IFCAState:
        return self._rounds.init(task, population, seed, start)

    def client(self, ctx: Context) -> Tree:
        return self._rounds.client(ctx)

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        return (yield from self._rounds.round(state, cohort))

    def personal(self, ctx: Context, state: IFCAState) -> Params:
        return self._rounds.personal(ctx, state)

    def cluster(self, ctx: Context, state: IFCAState) -> Tensor:
        return self._rounds.cluster(ctx, state)
