"""Ditto: a global model w by federated averaging, and one personal model v per client.

"Ditto: Fair and Robust Federated Learning Through Personalization" (Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith,
2021, https://arxiv.org/abs/2012.04221).

The personal model of client i minimises F_i(v) + (λ/2)‖v − w‖², with λ → lam. λ = 0 is training alone, and λ → ∞ is the
global model.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.families import Averaging, FedAvgState, keep, own_or, unseen
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative
from coterie.base.tree import Params, Tree
from coterie.exchange.messages import Context, Up


@guarded
@dataclass(frozen=True, kw_only=True)
class Ditto(Averaging):
    """`lam` is λ, how strongly a client's own model is pulled towards the common one."""

    way = "shrunk"
    carries_statistics = True

    lam: NotNegative = 1.0

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def train(self, ctx: Context, model: Params) -> Up:
        """The global model's local steps, and the personal model's towards w^t (the model just received), on the same
        batches: the global model is that of FedAvg, and does not depend on the personal models."""
        mine, loss = self.local.fit(ctx, ctx.state["model"], anchor=model, pull=self.lam)
        trained, _ = self.local.fit(ctx.rewound(), model)
        return Up(send={"model": trained}, weight=ctx.n, state=keep(mine), info={"loss": loss})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return own_or(ctx, state.model)
