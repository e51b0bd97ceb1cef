"""Predictors that are more than a model's weights, such as a memory of the client's own samples.

An algorithm whose clients predict in such a way returns one from its hook `predictor()`. A saved result keeps the
predictor's name and settings, and a loaded result builds it again from `PREDICTORS`.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Share
from coterie.base.tree import Params
from coterie.errors import ConfigError
from coterie.learning.batched.network_traits import filled
from coterie.learning.body_and_head import features

if TYPE_CHECKING:
    from coterie.learning.task import Task

_SMALLEST = 1e-6  # probabilities are clipped here before the logarithm


class Predictor(Protocol):
    """A frozen dataclass of settings. It predicts from a model's weights and the client's own training samples."""

    def outputs(self, task: Task, params: Params, x: Tensor, samples: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Outputs for the rows of `x`. `samples` are the client's features, labels and mask (0 for padding)."""

    def fill(self, network: nn.Module, params: Params) -> nn.Module:
        """A fresh network with a client's parameters in it."""

    def module(self, network: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        """The same as a module, for a client with these training samples."""


@guarded
@dataclass(frozen=True)
class NearestNeighbours:
    """p(y|x) = `lam` · (vote of the `neighbours` nearest own samples) + (1 − `lam`) · (the network's probability).

    Distances are between the network's values before its last layer. A sample at distance d votes with weight exp(−d).
    Outputs are log-probabilities. The network must be an `nn.Sequential`."""

    lam: Share
    neighbours: Count

    def outputs(self, task: Task, params: Params, x: Tensor, samples: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        own, labels, mask = samples
        memory, near = (features(task.judge(own), params, data) for data in (own, x))
        return self.mixture(near, task.outputs(params, x), memory, labels, mask)

    def fill(self, network: nn.Module, params: Params) -> nn.Module:
        return filled(network, params)

    def module(self, network: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        with torch.no_grad():
            memory = features(network, dict(network.named_parameters()), x)
        return KNNModel(network, memory, y, self)

    def mixture(self, near: Tensor, network_outputs: Tensor, memory: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities for rows with features `near`, from a memory of features and labels."""
        square = (near**2).sum(1, keepdim=True) + (memory**2).sum(1) - 2 * near @ memory.T
        distance = square.clamp(min=0).sqrt()
        distance = torch.where(mask.bool(), distance, torch.inf)
        closest, which = distance.topk(min(self.neighbours, memory.shape[0]), dim=1, largest=False)
        closest = closest - closest[:, :1]  # the nearest has weight one: no underflow when all are far
        weight = torch.exp(-closest)
        votes = F.one_hot(labels, network_outputs.shape[-1]).to(near.dtype)[which]
        own = (weight.unsqueeze(-1) * votes).sum(1) / weight.sum(1, keepdim=True)
        return torch.log((self.lam * own + (1 - self.lam) * network_outputs.softmax(-1)).clamp(min=_SMALLEST))


class KNNModel(nn.Module):
    """A network with a memory of samples; outputs are log-probabilities."""

    memory: Tensor
    labels: Tensor

    def __init__(self, network: nn.Module, memory: Tensor, labels: Tensor, rule: NearestNeighbours) -> None:
        super().__init__()
        self.network, self.rule = network, rule
        self.register_buffer("memory", memory)
        self.register_buffer("labels", labels)

    def forward(self, x: Tensor) -> Tensor:
        near = features(self.network, dict(self.network.named_parameters()), x)
        mask = torch.ones(len(self.memory))
        return self.rule.mixture(near, self.network(x), self.memory, self.labels, mask)


WEIGHTS = "mixture.weights"
"""The entry of a mixture's parameters that holds the networks' shares; the others hold the networks, stacked."""


@dataclass(frozen=True)
class Mixture:
    """Σ_m π_m p_m(y|x): the mean prediction of several networks, with the client's own weights π.

    Outputs are log-probabilities, or the mean number where networks have one output."""

    def outputs(self, task: Task, params: Params, x: Tensor, samples: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        weights = params[WEIGHTS]
        each = [task.outputs(one_of(params, m), x) for m in range(weights.shape[0])]
        return self.mixed(torch.stack(each), weights)

    def mixed(self, each: Tensor, weights: Tensor) -> Tensor:
        """One output from those of the networks, stacked."""
        share = weights.reshape(-1, *[1] * (each.dim() - 1))
        if each.dim() > 2 and each.shape[-1] > 1:
            return torch.log((share * each.softmax(-1)).sum(0).clamp(min=_SMALLEST))
        return (share * each).sum(0)

    def fill(self, network: nn.Module, params: Params) -> nn.Module:
        networks = [filled(copy.deepcopy(network), one_of(params, m)) for m in range(len(params[WEIGHTS]))]
        return MixtureModel(networks, params[WEIGHTS].clone(), self)

    def module(self, network: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        return network


def one_of(params: Params, m: int) -> Params:
    """One network of a mixture's parameters."""
    return {name: t[m] for name, t in params.items() if name != WEIGHTS}


class MixtureModel(nn.Module):
    """Several networks and their weights."""

    weights: Tensor

    def __init__(self, networks: list[nn.Module], weights: Tensor, rule: Mixture) -> None:
        super().__init__()
        self.networks, self.rule = nn.ModuleList(networks), rule
        self.register_buffer("weights", weights)

    def forward(self, x: Tensor) -> Tensor:
        return self.rule.mixed(torch.stack([network(x) for network in self.networks]), self.weights)


PREDICTORS: dict[str, type[Any]] = {
    "mixture": Mixture,
    "nearest_neighbours": NearestNeighbours,
}


def describe(predictor: Any) -> dict[str, Any]:
    """A predictor as plain values, for a file."""
    kind = type(predictor)
    name = next((name for name, known in PREDICTORS.items() if known is kind), kind.__name__)
    return {"name": name, "settings": asdict(predictor)}


def build(described: dict[str, Any]) -> Predictor:
    """The predictor that `describe` described."""
    name = described["name"]
    if name not in PREDICTORS:
        raise ConfigError(
            f"These clients predict with {name!r}, and coterie.learning.predictors.PREDICTORS has no such name. "
            "Add your class to that dictionary first."
        )
    predictor: Predictor = PREDICTORS[name](**described["settings"])
    return predictor
