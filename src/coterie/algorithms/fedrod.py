"""FedRoD: a body and a generic head trained for balanced classes, and on top a head of the client's own.

"On Bridging Generic and Personalized Federated Learning for Image Classification" (Hong-You Chen, Wei-Lun Chao, 2022,
https://arxiv.org/abs/2107.00778).

Symbols: θ and the generic head ψ → model, the personal head φ_m → own, f(x; θ) the features. Each step moves θ and ψ by
the balanced risk (balanced softmax: the logits plus the logarithm of the client's class counts, equation 8), and φ_m by
the usual risk of the sum of both heads' logits, where θ and ψ are held fixed (equation 9). The server averages θ and ψ
by numbers of samples. A client predicts with both heads. As heads are linear, their sum is one linear head, which is a
client's model here.

φ_m starts at 0, so that a client that never took part uses the generic model; PFLlib starts it as a copy of ψ. This is
the linear variant; the paper's hypernetwork, which makes φ_m from class counts, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.algorithms.families import Averaging, FedAvgState
from coterie.algorithms.priors import require_predictions
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Context, Population, Up
from coterie.learning.body_and_head import split
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class FedROD(Averaging):
    """The head is the network's last layer, which must be linear; `local` are the steps of all parts."""

    way = "shrunk"

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        require_predictions(task, self, ("cross_entropy",))
        last = task.skeleton.get_submodule(next(reversed(start)).rpartition(".")[0])
        if not isinstance(last, nn.Linear):
            raise ConfigError(
                f"FedROD adds up two linear heads; this network ends with {type(last).__name__}. Use nn.Linear."
            )
        return super().init(task, population, seed, start)

    def client(self, ctx: Context) -> Tree:
        return {"own": tree_map(torch.zeros_like, split(ctx.initial)[1])}

    def train(self, ctx: Context, model: Params) -> Up:
        own, losses = ctx.state["own"], []
        step, step_own = self.local.descent(), self.local.descent()
        for batch, lr in self.local.each(ctx):
            slope, loss = batch.grad_and_loss(_both(model, own))  # of φ_m: the sum's slope is that of either head
            z, back = batch.pullback(model)
            share = (batch.mask / batch.mask.sum().clamp(min=1)).unsqueeze(1)
            balanced = (z + _log_counts(ctx, z)).softmax(-1) - F.one_hot(batch.y, z.shape[-1])
            model = step(model, back(share * balanced), lr)
            own = step_own(own, {name: slope[name] for name in own}, lr)
            losses.append(loss)
        return Up(send={"model": model}, weight=ctx.n, state={"own": own}, info={"loss": losses[0]})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return _both(state.model, ctx.state["own"])


def _both(model: Params, own: Params) -> Params:
    return model | {name: model[name] + t for name, t in own.items()}


def _log_counts(ctx: Context, z: Tensor) -> Tensor:
    """The logarithm of how many samples of each class the client has; next to impossible where it has none."""
    counts = (F.one_hot(ctx.y, z.shape[-1]) * ctx.mask.unsqueeze(1)).sum(0)
    return counts.clamp(min=1e-12).log()
