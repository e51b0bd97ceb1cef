"""Per-FedAvg: one common model that is good after a step on a client's own data.

"Personalized Federated Learning: A Meta-Learning Approach" (Alireza Fallah, Aryan Mokhtari, Asuman Ozdaglar, 2020,
https://arxiv.org/abs/2002.07948).

Symbols of Algorithm 1: w → the common model, α → alpha, β → local.lr, τ → local.steps. Each step (lines 6–8), on
batches D, D', D'': u = w − α∇f(w; D), then w ← w − β(I − α∇²f(w; D''))∇f(u; D'). order="first" leaves the Hessian out
(FO), "hessian" multiplies by it exactly, where the paper's HF takes a difference of gradients. A client's model is w
after `adapt` steps of α. Clients count by their samples, as in FedAvg; the paper counts them alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from coterie.algorithms.families import Averaging, FedAvgState
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative
from coterie.base.tree import Params, tree_map
from coterie.exchange.messages import Context, Up


@guarded
@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Averaging):
    """`alpha` is the step a client takes from the common model, `adapt` times; `order="hessian"` uses second derivatives."""

    way = "shrunk"

    alpha: NotNegative = 0.01
    order: Literal["first", "hessian"] = "first"
    adapt: int = 1

    def train(self, ctx: Context, model: Params) -> Up:
        step, losses = self.local.descent(), []
        walks = (self.local.each(ctx) for _ in range(3 if self.order == "hessian" else 2))
        for (inner, lr), (outer, _), *third in zip(*walks, strict=True):
            slope, loss = outer.grad_and_loss(inner.descend(model, self.alpha))
            if third:
                curved = hessian_times(third[0][0], model, slope)
                slope = tree_map(lambda g, h: g - self.alpha * h, slope, curved)
            model = step(model, slope, lr)
            losses.append(loss)
        return Up(send={"model": model}, weight=ctx.n, info={"loss": losses[0]})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        model = state.model
        for _ in range(self.adapt):
            model = ctx.descend(model, self.alpha)
        return model

    def cluster(self, ctx: Context, state: FedAvgState) -> torch.Tensor:
        return torch.zeros((), dtype=torch.int64)  # all adapt the same model


def hessian_times(ctx: Context, model: Params, vector: Params) -> Params:
    """∇²f(model)·vector, exactly, by differentiating ⟨∇f, vector⟩."""

    def along(params: Params) -> torch.Tensor:
        slope = torch.func.grad(ctx.loss)(params)
        return torch.stack([(g * vector[name]).sum() for name, g in slope.items()]).sum()

    product: Params = torch.func.grad(along)(model)
    return product
