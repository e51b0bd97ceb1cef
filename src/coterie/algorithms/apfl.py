"""APFL: every client mixes the common model with its own model, and learns the proportion.

"Adaptive Personalized Federated Learning" (Yuyang Deng, Mohammad Mahdi Kamani, Mehrdad Mahdavi, 2020,
https://arxiv.org/abs/2003.13461).

Symbols of Algorithm 1: w → the common model, v_i and α_i → the client's state, v̄_i = α_i v_i + (1 − α_i) w_i → the
model it uses. Each step: w_i ← w_i − η∇f_i(w_i), v_i ← v_i − η∇_v f_i(v̄_i), where ∇_v = α_i ∇f_i(v̄_i); with `adapt`,
the first step of a round also moves α_i ← α_i − η⟨v_i − w_i, ∇f_i(v̄_i)⟩ (equation 11), kept in [0, 1]. α = 0 is
FedAvg and α = 1 is Local. A client that never took part uses the common model. Clients count by their samples, as in
FedAvg; the paper gives them equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.families import Averaging, FedAvgState, keep, own_or, unseen
from coterie.base.annotations import guarded
from coterie.base.arguments import Share
from coterie.base.tree import Params, Tree, tree_map
from coterie.exchange.messages import Context, Up


@guarded
@dataclass(frozen=True, kw_only=True)
class APFL(Averaging):
    """`alpha` is the share of a client's own model, at the start if it adapts."""

    way = "shrunk"

    alpha: Share = 0.5
    adapt: bool = True

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial) | {"alpha": torch.full_like(ctx.n, self.alpha)}

    def train(self, ctx: Context, model: Params) -> Up:
        own, alpha, common, total, first = ctx.state["model"], ctx.state["alpha"], model, ctx.n * 0, True
        step_own, step_common = self.local.descent(), self.local.descent()
        for batch, lr in self.local.each(ctx):
            slope, loss = batch.grad_and_loss(_mix(alpha, own, common))
            if first and self.adapt:
                along = torch.stack([((own[name] - common[name]) * g).sum() for name, g in slope.items()]).sum()
            common = step_common(common, batch.grad(common), lr)
            own = step_own(own, tree_map(lambda g, a=alpha: a * g, slope), lr)
            if first and self.adapt:
                alpha = (alpha - lr * along).clamp(0, 1)
            total, first = loss if first else total, False
        return Up({"model": common}, ctx.n, state=keep(own) | {"alpha": alpha}, info={"loss": total})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return _mix(ctx.state["alpha"], own_or(ctx, state.model), state.model)


def _mix(alpha: Tensor, own: Params, common: Params) -> Params:
    mixed: Params = tree_map(lambda v, w: alpha * v + (1 - alpha) * w, own, common)
    return mixed
