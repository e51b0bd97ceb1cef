"""FedPAC: a common body whose features are aligned by class, and heads that are mixed for each client.

"Personalized Federated Learning with Feature Alignment and Classifier Collaboration" (Jian Xu, Xinyi Tong, Shao-Lun
Huang, 2023, https://arxiv.org/abs/2306.11867).

Symbols of Algorithm 1: θ̃ → body, φ̃_i → heads (row i), c → the prototypes of sums/shares, λ → lam, h_i → h, V_i →
spread. With the body received, a client computes h_i = (p_y μ_y by class) and V_i = (E‖f‖² − ‖h_i‖²)/n_i; takes its
steps on the head, the body held fixed; and then on the body, the head held fixed, with λ times the distance of its
features from the prototypes (FedProto's). The server averages bodies and prototypes by samples, and gives client i the
head Σ_j α_ij φ_j whose α_i minimises Σ_j α_ij² V_j + ‖h_i − Σ_j α_ij h_j‖² with shares α_i (equation 12's estimate),
over the clients of the round.

A client's model is the newest body with its mixed head; one that never took part has the mean of the heads. The
authors' code and PFLlib drop shares below 0.001 without scaling the others; here the exact shares count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from coterie.algorithms.families import Trained
from coterie.algorithms.fedproto import distance_to, prototypes
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative
from coterie.base.tree import Params, Tree, joined, repeat, take, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Population, Up, one_per
from coterie.learning.body_and_head import split
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task


@dataclass(frozen=True)
class FedPACState:
    body: Params
    heads: Params = field(metadata=one_per("client"))  # (N, …)
    met: Tensor = field(metadata=one_per("client"))  # (N,)
    mean: Params  # of the last heads received
    sums: Tensor
    shares: Tensor


@guarded
@dataclass(frozen=True, kw_only=True)
class FedPAC(Trained):
    """`lam` is λ; `head_local` are the head's steps (the paper: one epoch), by default as the body's."""

    way = "shrunk"
    individual = True

    lam: NotNegative = 1.0
    head_local: LocalSteps | None = None

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedPACState:
        body, head = split(start)
        if population.classes is None or task.loss != "cross_entropy" or not body:
            raise ConfigError("FedPAC needs classes, the loss cross_entropy and a network of several layers.")
        like, n, c = next(iter(start.values())), population.n_clients, len(population.classes)
        none, nobody = like.new_zeros(c, population.width(task, start)), torch.zeros(n, dtype=torch.bool)
        return FedPACState(body, repeat(head, n), nobody, head, none, like.new_zeros(c))

    def round(self, state: FedPACState, cohort: Cohort) -> Exchange[FedPACState]:
        reply = yield Ask(
            self.train,
            cohort.clients,
            {"body": state.body, "sums": state.sums, "shares": state.shares},
            {"head": self._heads(state, torch.from_numpy(cohort.clients))},
            updates={"body": From("body"), "head": From("head")},
            auxiliary=("own", "h", "spread"),
        )
        if not len(reply.clients):
            return state
        here, sent, weight = torch.from_numpy(reply.clients), reply.values, reply.weight.double()
        mean = _mixed(weight / weight.sum(), sent)
        mixed = _mixed(collaboration(sent["h"], sent["spread"]), sent["head"])
        heads = tree_map(lambda t, new: t.index_copy(0, here, new), state.heads, mixed)
        own, seen = mean["own"], mean["own"]["shares"] > 0
        sums = torch.where(seen.unsqueeze(1), own["sums"], state.sums)
        shares = torch.where(seen, own["shares"], state.shares)
        return FedPACState(mean["body"], heads, state.met.index_fill(0, here, True), mean["head"], sums, shares)

    def _heads(self, state: FedPACState, index: Tensor) -> Params:
        met = take(state.met, index)

        def chosen(own: Tensor, mean: Tensor) -> Tensor:
            return torch.where(met.reshape(*met.shape, *[1] * mean.dim()), own, mean)

        heads: Params = tree_map(chosen, take(state.heads, index), state.mean)
        return heads

    def train(self, ctx: Context, body: Params, sums: Tensor, shares: Tensor, head: Params) -> Up:
        model = joined(body, head, ctx.initial)
        h = prototypes(ctx, model, len(shares))["sums"]
        square = ctx.features(model).square().sum(1)
        spread = ((square * ctx.mask).sum() / ctx.n.clamp(min=1) - h.square().sum()).clamp(min=0) / ctx.n.clamp(min=1)
        model, _ = (self.head_local or self.local).fit(ctx, model, train=list(head))
        model, loss = self.local.fit(ctx, model, train=list(body), extra=distance_to(sums, shares, self.lam))
        parts = {"body": {name: model[name] for name in body}, "head": {name: model[name] for name in head}}
        send = parts | {"own": prototypes(ctx, model, len(shares)), "h": h, "spread": spread}
        return Up(send=send, weight=ctx.n, info={"loss": loss})

    def personal(self, ctx: Context, state: FedPACState) -> Params:
        return joined(state.body, self._heads(state, ctx.index), ctx.initial)


def _mixed(shares: Tensor, rows: Tree) -> Tree:
    """Weighted sums of rows; `shares` are one weight per row, or several such."""
    mixed: Tree = tree_map(lambda t: torch.tensordot(shares, t.double(), 1).to(t.dtype), rows)
    return mixed


def collaboration(h: Tensor, spread: Tensor) -> Tensor:
    """Row i: the shares α that minimise Σ_j α_j² V_j + ‖h_i − Σ_j α_j h_j‖².

    On the simplex this is ‖Bα‖² for a root B of diag(V) + the Gram matrix of the gaps h_i − h_j. Without the constraint on
    the sum, min ‖Bα‖² + (1 − Σα)² over α ≥ 0 has the same direction, and this is a least-squares problem."""
    rows, found = h.flatten(1).double(), []
    for one in rows:
        gap = one - rows
        values, vectors = torch.linalg.eigh(gap @ gap.T + torch.diag(spread.double()))
        root = (values.clamp(min=0).sqrt() * vectors).T / values.clamp(min=1e-30).mean().sqrt()
        alpha, _ = nnls(np.vstack([root.numpy(), np.ones(len(rows))]), np.append(np.zeros(len(rows)), 1.0))
        found.append(torch.from_numpy(alpha / alpha.sum()))
    return torch.stack(found)
