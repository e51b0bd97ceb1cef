"""kNN-Per: a global model plus a memory of the client's own samples.

"Personalized Federated Learning through Local Memorization" (Othmane Marfoq, Giovanni Neglia, Laetitia Kameni, Richard
Vidal, 2022, https://arxiv.org/abs/2111.09360).

p(y|x) = λ p_knn(y|x) + (1−λ) p_glob(y|x), where p_knn weighs the k nearest own samples by exp(−distance). Distances are
between the features φ before the last layer of the global model. λ → lam weighs the client's *own* part, and k →
neighbours. Probabilities are clipped before the logarithm. (The dissertation cites another paper for it: erratum EC-17.)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from coterie.algorithms.families import Averaging, FedAvgState
from coterie.base.annotations import guarded
from coterie.base.arguments import Share
from coterie.base.tree import Params
from coterie.errors import ConfigError
from coterie.exchange.messages import Population
from coterie.learning.predictors import NearestNeighbours
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class KNNPer(Averaging):
    """`neighbours` is k; the published settings are lam=0.5 (rotations) and 0.9 (private labels)."""

    way = "shrunk"
    carries_statistics = True

    lam: Share = 0.5
    neighbours: int = 10

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        if task.loss != "cross_entropy" or not isinstance(task.skeleton, nn.Sequential):
            raise ConfigError(
                "KNNPer needs a classification task (loss='cross_entropy') and an nn.Sequential model, whose last layer is "
                f"the head; got loss={task.loss!r} and {type(task.skeleton).__name__}."
            )
        return super().init(task, population, seed, start)

    def predictor(self) -> NearestNeighbours:
        return NearestNeighbours(self.lam, self.neighbours)
