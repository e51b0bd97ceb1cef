"""kNN-Per: a global model plus a memory of the client's own samples.

"Personalized Federated Learning through Local Memorization" (Othmane Marfoq, Giovanni Neglia, Laetitia Kameni, Richard
Vidal, 2022, https://arxiv.org/abs/2111.09360).

p(y|x) = λ p_knn(y|x) + (1−λ) p_glob(y|x), where p_knn weighs the k nearest own samples by exp(−distance). Distances are
between the features φ before the last layer of the global model. λ → lam weighs the client's *own* part, and k →
neighbours. Probabilities are clipped before the logarithm. (The dissertation cites another paper for it: erratum EC-17.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.fedavg import FedAvg, FedAvgState
from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Cohort, Context, Exchange, Population
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.predictors import NearestNeighbours
from coterie.learning.task import Task
from coterie.tree import Params


@guarded
@dataclass(frozen=True, kw_only=True)
class KNNPer(Algorithm):
    """`neighbours` is k; the published settings are lam=0.5 (rotations) and 0.9 (private labels)."""

    way = "shrunk"

    local: LocalSteps = field(default_factory=LocalSGD, kw_only=False)
    lam: float = 0.5
    neighbours: int = 10
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        self.predictor()  # checks both settings

    @property
    def _average(self) -> FedAvg:
        return FedAvg(self.local, aggregate=self.aggregate)

    @property
    def helpers(self) -> dict[str, FedAvg]:
        return {"average": self._average}

    @property
    def carries_statistics(self) -> bool:
        return True

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        if task.loss != "cross_entropy" or not isinstance(task.skeleton, nn.Sequential):
            raise ConfigError(
                "KNNPer needs a classification task (loss='cross_entropy') and an nn.Sequential model, whose last layer is "
                f"the head; got loss={task.loss!r} and {type(task.skeleton).__name__}."
            )
        return self._average.init(task, population, seed, start)

    def round(self, state: FedAvgState, cohort: Cohort) -> Exchange[FedAvgState]:
        return (yield from self._average.round(state, cohort))

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return state.model

    def predictor(self) -> NearestNeighbours:
        return NearestNeighbours(self.lam, self.neighbours)

    def cluster(self, ctx: Context, state: FedAvgState) -> Tensor:
        return ctx.index
