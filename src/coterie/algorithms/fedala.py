"""FedALA: a client starts each round from a mixture of its own and the common model, with learned weights per
parameter.

"FedALA: Adaptive Local Aggregation for Personalized Federated Learning" (Jianqing Zhang, Yang Hua, Hao Wang, Tao Song,
Zhengui Xue, Ruhui Ma, Haibing Guan, 2023, https://arxiv.org/abs/2212.01197).

Symbols of Algorithm 1: Θ^{t−1} → model, Θ_i^{t−1} → the client's own model, W_i^p → shares (in its state, 1 at first),
η and the steps of ALA → mix. A client that has trained before takes the common model's lower layers, and for the higher
ones, `head`, Θ_i + (Θ − Θ_i) ⊙ W_i (equation 5). Steps W_i ← W_i − η ∇_Θ̂ L ⊙ (Θ − Θ_i), clipped to [0, 1], learn the
weights (equation 6). Then it takes its local steps from there, and the server averages by numbers of samples. A
client's model is the mixture with the newest common model; a client that never took part uses the common model.

Differences: the paper learns W_i on s % of the rows, at a client's second time until the loss settles, and later for
one epoch; here `mix` says how often and on which batches, each time, and W_i is kept as in the paper. In PFLlib all
clients are initialised in every round, also those that are not sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from coterie.algorithms.families import Averaging, FedAvgState, keep, unseen
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, names, tree_map
from coterie.exchange.messages import Context, Up
from coterie.learning.body_and_head import split
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps


@guarded
@dataclass(frozen=True, kw_only=True)
class FedALA(Averaging):
    """`head` names the layers that are mixed, such as ["4"]; by default the last one. `mix` are the steps on their
    weights."""

    way = "shrunk"

    head: Sequence[str] = ()
    mix: LocalSteps = field(default_factory=lambda: LocalSGD(epochs=1, lr=1.0))

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", names(self.head, "FedALA", "head"))

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial) | {"shares": tree_map(torch.ones_like, split(ctx.initial, self.head)[1])}

    def train(self, ctx: Context, model: Params) -> Up:
        start, shares = self._start(ctx, model)
        trained, loss = self.local.fit(ctx, start)
        return Up({"model": trained}, ctx.n, state=keep(trained) | {"shares": shares}, info={"loss": loss})

    def _start(self, ctx: Context, model: Params) -> tuple[Params, Tree]:
        """Θ̂_i and W_i; for a client that has not trained yet, the common model and W_i as it is."""
        own, shares, seen = ctx.state["model"], ctx.state["shares"], ctx.state["seen"] > 0
        gap = {name: torch.where(seen, model[name] - own[name], 0) for name in shares}

        def mixed(shares: Params) -> Params:
            return model | {name: model[name] - (1 - w) * gap[name] for name, w in shares.items()}  # equation 5

        for batch, lr in self.mix.each(ctx):
            slope = batch.grad(mixed(shares))
            shares = {name: (w - lr * slope[name] * gap[name]).clamp(0, 1) for name, w in shares.items()}  # equation 6
        return mixed(shares), shares

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return self._start(ctx, state.model)[0]
