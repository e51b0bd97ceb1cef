"""pFedMe: personal models near a common one, by Moreau envelopes. A fixed Gaussian prior N(w, I/λ).

"Personalized Federated Learning with Moreau Envelopes" (Canh T. Dinh, Nguyen H. Tran, Tuan Dung Nguyen, 2020,
https://arxiv.org/abs/2006.08848).

Symbols of Algorithm 1: w → the common model, θ_i → the client's state, λ → lam, K → inner, R and the batches → local,
whose learning rate is that of the inner steps; η → lr (default: the same), β → beta. For each of R batches a client
takes K steps on f_i(θ; batch) + (λ/2)‖θ − w_i‖² (line 6), then w_i ← w_i − ηλ(w_i − θ_i) (line 8). A client's model is
θ_i after its steps towards the newest w, so a client that never took part has one too. λ → 0 is Local; λ → ∞ is FedAvg
with η.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.families import Trained, keep, own_or, unseen
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative, Positive
from coterie.base.tree import Params, Tree, row, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class PFedMeState:
    model: Params


@guarded
@dataclass(frozen=True, kw_only=True)
class PFedMe(Trained):
    """`lam` is λ, `inner` the steps K on a batch, `lr` is η (default: that of `local`), `beta` the server's step."""

    way = "shrunk"

    lam: NotNegative = 0.5
    inner: int = 3
    lr: NotNegative | None = None
    beta: Positive = 1.0

    def init(self, task: Task, population: Population, seed: int, start: Params) -> PFedMeState:
        return PFedMeState(start)

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def round(self, state: PFedMeState, cohort: Cohort) -> Exchange[PFedMeState]:
        updates = {"model": From("model")}
        reply = yield Ask(self.train, cohort.clients, {"model": state.model}, reduce=MeanBy(), updates=updates)
        if not len(reply.clients):
            return state
        mean = row(reply.values["model"], 0)
        return PFedMeState(tree_map(lambda w, new: w + self.beta * (new - w), state.model, mean))  # line 14

    def train(self, ctx: Context, model: Params) -> Up:
        theta, common, loss = self._steps(ctx, model)
        return Up(send={"model": common}, state=keep(theta), info={"loss": loss})

    def _steps(self, ctx: Context, model: Params) -> tuple[Params, Params, Tensor]:
        """θ_i and w_i after R batches, and the mean loss met."""
        theta, common, total, count = own_or(ctx, model), model, torch.zeros_like(ctx.n), torch.zeros_like(ctx.n)
        inner = self.local.but(steps=self.inner, epochs=None, batch_size=None, decay=1.0, schedule=None)
        for batch, lr in self.local.each(ctx):
            theta, loss = inner.fit(batch, theta, anchor=common, pull=self.lam, lr=lr)
            on = (batch.n > 0).to(total.dtype)
            outer = (self.lr if self.lr is not None else lr) * self.lam * on
            common = tree_map(lambda w, t, s=outer: w - s * (w - t), common, theta)
            total, count = total + on * loss, count + on
        return theta, common, total / count.clamp(min=1)

    def personal(self, ctx: Context, state: PFedMeState) -> Params:
        return self._steps(ctx, state.model)[0]
