"""kNN-Per (Marfoq, Neglia, Kameni, Vidal 2022): a global model plus a memory of the client's own samples.

p(y|x) = λ p_knn(y|x) + (1−λ) p_glob(y|x), where p_knn weighs the k nearest local samples by exp(−distance) between the
penultimate-layer features φ of the global model. λ weighs the *local* part. Probabilities are clipped before the log.
(The dissertation cites it through another paper: erratum EC-17.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.fedavg import FedAvg, FedAvgState
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Cohort, Context, Exchange, Population
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.tree import Params

_SMALLEST = 1e-6


def features(module: nn.Module, params: Params, x: Tensor) -> Tensor:
    """Values before the last layer of a Sequential."""
    assert isinstance(module, nn.Sequential)
    body = module[:-1]
    kept = {name: params[name] for name, _ in body.named_parameters()}
    values: Tensor = functional_call(body, kept, (x,))
    return values.flatten(1)


def mixture(
    near: Tensor, far_outputs: Tensor, memory: Tensor, labels: Tensor, mask: Tensor, k: int, lam: float
) -> Tensor:
    """Log-probabilities for samples with features `near`, from a memory of features and labels (padding masked)."""
    square = (near**2).sum(1, keepdim=True) + (memory**2).sum(1) - 2 * near @ memory.T
    distance = square.clamp(min=0).sqrt()
    distance = torch.where(mask.bool(), distance, torch.inf)
    closest, which = distance.topk(min(k, memory.shape[0]), dim=1, largest=False)
    closest = closest - closest[:, :1]  # the nearest has weight one: no underflow when all are far
    weight = torch.exp(-closest)
    votes = F.one_hot(labels, far_outputs.shape[-1]).to(near.dtype)[which]
    local = (weight.unsqueeze(-1) * votes).sum(1) / weight.sum(1, keepdim=True)
    return torch.log((lam * local + (1 - lam) * far_outputs.softmax(-1)).clamp(min=_SMALLEST))


class KNNModel(nn.Module):
    """A client's predictor: the global network and the client's memory; outputs are log-probabilities."""

    memory: Tensor
    labels: Tensor

    def __init__(self, network: nn.Module, memory: Tensor, labels: Tensor, k: int, lam: float) -> None:
        super().__init__()
        self.network = network
        self.k, self.lam = k, lam
        self.register_buffer("memory", memory)
        self.register_buffer("labels", labels)

    def forward(self, x: Tensor) -> Tensor:
        near = features(self.network, dict(self.network.named_parameters()), x)
        mask = torch.ones(len(self.memory))
        return mixture(near, self.network(x), self.memory, self.labels, mask, self.k, self.lam)


@dataclass(frozen=True)
class KNNPer(Algorithm):
    """`neighbours` is k; the published settings are lam=0.5 (rotations) and 0.9 (private labels)."""

    lam: float = 0.5
    neighbours: int = 10
    local: LocalSGD = field(default_factory=LocalSGD)
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        if not 0 <= self.lam <= 1 or self.neighbours < 1:
            raise ConfigError(f"KNNPer needs lam in [0, 1] and neighbours ≥ 1; got {self.lam} and {self.neighbours}.")

    @property
    def _average(self) -> FedAvg:
        return FedAvg(self.local, aggregate=self.aggregate)

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

    def predict(self, ctx: Context, state: FedAvgState, x: Tensor) -> Tensor:
        module = ctx.task.skeleton
        memory, near = (features(module, state.model, data) for data in (ctx.x, x))
        return mixture(near, ctx.task.outputs(state.model, x), memory, ctx.y, ctx.mask, self.neighbours, self.lam)

    def module(self, network: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        """The predictor of a client with these training rows (used by Result.model)."""
        with torch.no_grad():
            memory = features(network, dict(network.named_parameters()), x)
        return KNNModel(network, memory, y, self.neighbours, self.lam)

    def cluster(self, ctx: Context, state: FedAvgState) -> Tensor:
        return ctx.index
