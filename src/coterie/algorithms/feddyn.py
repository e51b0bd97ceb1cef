"""FedDyn: one model for all, whose clients' losses get linear and quadratic terms so that local and common optima
agree.

"Federated Learning Based on Dynamic Regularization" (Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew
Mattina, Paul N. Whatmough, Venkatesh Saligrama, 2021, https://arxiv.org/abs/2111.04263).

Symbols of Algorithm 1: θ → model, h → h, ∇L_k(θ_k) → slope (in the client's state, 0 at first), α → alpha, m → the
number of clients. A client minimises L_k(θ) − ⟨slope, θ⟩ + (α/2)‖θ − θ^{t−1}‖² and moves slope ← slope − α(θ_k −
θ^{t−1}). Server: h ← h − (α/m) Σ_k (θ_k − θ^{t−1}) over the clients met, then θ ← (their mean) − h/α. Clients count
alike, as printed. The gradient formula is exact where the minimum is reached; a client takes its local steps instead.

Public code departs: PFLlib's penalty is the norm, not its square, which pulls with constant force; the authors' code
evaluates the mean of all clients' models too, and divides α by each client's share of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.algorithms.families import Trained
from coterie.base.annotations import guarded
from coterie.base.arguments import Positive
from coterie.base.tree import Params, Tree, row, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class FedDynState:
    model: Params
    h: Params
    clients: int


@guarded
@dataclass(frozen=True, kw_only=True)
class FedDyn(Trained):
    """`alpha` is α, the strength of the regularisation; the paper takes 0.1, 0.01 and 0.001."""

    way = "together"

    alpha: Positive = 0.01

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedDynState:
        return FedDynState(start, tree_map(torch.zeros_like, start), population.n_clients)

    def client(self, ctx: Context) -> Tree:
        return {"slope": tree_map(torch.zeros_like, ctx.initial)}

    def round(self, state: FedDynState, cohort: Cohort) -> Exchange[FedDynState]:
        updates = {"model": From("model")}
        reply = yield Ask(self.train, cohort.clients, {"model": state.model}, reduce=MeanBy(), updates=updates)
        if not len(reply.clients):
            return state
        mean, share = row(reply.values["model"], 0), float(reply.count.sum()) / state.clients
        h = tree_map(lambda h, new, old: h - self.alpha * share * (new - old), state.h, mean, state.model)
        return FedDynState(tree_map(lambda new, h: new - h / self.alpha, mean, h), h, state.clients)

    def train(self, ctx: Context, model: Params) -> Up:
        slope = ctx.state["slope"]
        linear = tree_map(torch.neg, slope)
        trained, loss = self.local.fit(ctx, model, anchor=model, pull=self.alpha, correct=linear)
        moved = tree_map(lambda g, new, old: g - self.alpha * (new - old), slope, trained, model)
        return Up(send={"model": trained}, state={"slope": moved}, info={"loss": loss})

    def personal(self, ctx: Context, state: FedDynState) -> Params:
        return state.model
