"""QuPeD: personal models, quantised if wanted, that learn from a common model by distillation.

"QuPeD: Quantized Personalization via Distillation with Applications to Federated Learning" (Kaan Ozkara, Navjot Singh,
Deepesh Data, Suhas Diggavi, 2021, https://arxiv.org/abs/2107.13892).

Algorithm 2: a client minimises (1 − λ_p) f_i(x) + λ_p KL(p_w ‖ p_x) over its own model x and its copy w of the common
one, in turns; the common model learns through the second term only. λ_p → lam. A client that never took part uses the
common model. Clients count by their samples, as in FedAvg; the paper gives them equal weights.

`bits=b` keeps every tensor of a personal model at its own 2^b values (the centres c_i): after each step weights are
moved towards their nearest centre by at most lr·`pull` (the proximal step of Algorithm 1 with R(x, c) = min ‖z − x‖₁),
and centres become the means of their weights once a round. The soft quantiser of the paper inside the loss is left
out. The model in use has centres only; the history shows its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.families import Averaging, FedAvgState, keep, own_or, unseen
from coterie.algorithms.priors import (
    by_student,
    by_teacher,
    loss_and_slope,
    require_predictions,
    towards,
)
from coterie.base.annotations import guarded
from coterie.base.arguments import Bits, NotNegative, Share
from coterie.base.tree import Params, Tree, tree_map
from coterie.exchange.messages import Context, Population, Up
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class QuPeD(Averaging):
    """`lam` is the weight of distillation; `bits` quantises personal models, by steps of at most lr·`pull`."""

    way = "shrunk"

    lam: Share = 0.25
    bits: Bits | None = None
    pull: NotNegative = 0.01

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        require_predictions(task, self)
        return super().init(task, population, seed, start)

    def client(self, ctx: Context) -> Tree:
        centres = {} if self.bits is None else {"centres": _quantiles(ctx.initial, 2**self.bits)}
        return unseen(ctx.initial) | centres

    def train(self, ctx: Context, model: Params) -> Up:
        own, common, losses = ctx.state["model"], model, []
        step_own, step_common = self.local.descent(), self.local.descent()
        centres = ctx.state.get("centres")
        for batch, lr in self.local.each(ctx):
            (z, back), (z_common, back_common) = batch.pullback(own), batch.pullback(common)
            loss, slope = loss_and_slope(batch, z)
            own = step_own(own, back((1 - self.lam) * slope + self.lam * by_student(batch, z_common, z)), lr)
            if centres is not None:
                own = tree_map(lambda w, c, s=lr * self.pull: towards(w, nearest(w, c)[0], s), own, centres)
            taught = by_teacher(batch, z_common, batch.outputs(own))
            common = step_common(common, back_common(self.lam * taught), lr)
            losses.append(loss)
        kept, info = keep(own), {"loss": losses[0]}
        if centres is not None:
            kept["centres"] = tree_map(_means, own, centres)
            info["model_bytes"] = torch.full_like(ctx.n, self.personal_bytes(own))
        return Up(send={"model": common}, weight=ctx.n, state=kept, info=info)

    def personal_bytes(self, model: Params) -> float:
        """What a client's own model takes: an index of `bits` bits for every weight, and the centres."""
        if self.bits is None:
            return float(sum(t.numel() * t.element_size() for t in model.values()))
        return float(sum(t.numel() * self.bits / 8 + 2**self.bits * t.element_size() for t in model.values()))

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        model = own_or(ctx, state.model)
        if self.bits is None:
            return model
        seen, common = ctx.state["seen"] > 0, _quantiles(state.model, 2**self.bits)
        centres = tree_map(lambda mine, theirs: torch.where(seen, mine, theirs), ctx.state["centres"], common)
        quantised: Params = tree_map(lambda w, c: nearest(w, c)[0], model, centres)
        return quantised


def nearest(weights: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of every weight, and which it is. Centres are in ascending order."""
    which = ((centres[:-1] + centres[1:]) / 2 < weights.unsqueeze(-1)).sum(-1)
    return centres[which.flatten()].reshape(weights.shape), which


def _means(weights: Tensor, centres: Tensor) -> Tensor:
    """Every centre as the mean of its weights; one without any stays. The order is kept: their cells do not overlap."""
    member = (nearest(weights, centres)[1].reshape(-1, 1) == torch.arange(centres.shape[0])).to(weights.dtype)
    count = member.sum(0)
    mean = (member * weights.reshape(-1, 1)).sum(0) / count.clamp(min=1)
    return torch.where(count > 0, mean, centres)


def _quantiles(model: Params, levels: int) -> Params:
    """Centres at the middles of equal shares of a tensor's sorted values."""

    def of(t: Tensor) -> Tensor:
        place = ((torch.arange(levels) + 0.5) / levels * t.numel()).long()
        return t.flatten().sort().values[place]

    return {name: of(t) for name, t in model.items()}
