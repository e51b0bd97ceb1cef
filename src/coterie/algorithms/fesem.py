"""FeSEM: k-means on the clients' models, between rounds of local training from the centre of one's cluster.

"Multi-Center Federated Learning: Clients Clustering for Better Personalization" (Guodong Long, Ming Xie, Tao Shen,
Tianyi Zhou, Xianzhi Wang, Jing Jiang, 2023, https://arxiv.org/abs/2005.01026).

Symbols of Algorithm 1: W̃^(k) → models (row k), r_i → label (in the client's state), W_i the client's model. A client
trains from the centre of its cluster to W_i; E-step: r_i = argmin_k ‖W_i − W̃^(k)‖²; M-step: W̃^(k) = the mean of the
W_i with r_i = k, by numbers of samples. The client makes its own E-step, so that the server needs sums only.

All centres begin at the common start, and then a client's first cluster is drawn at random, as k-means starts with a
random partition: centres at different random networks would keep every client at its first one, because they are
farther apart than local steps go. Later a client takes its first cluster by the loss, and one that never took part has
that model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.families import InGroups, Trained
from coterie.base.annotations import guarded
from coterie.base.settings import cluster_count
from coterie.base.tree import Params, Tree, repeat, take
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class FeSEMState:
    models: Params  # (k, …)


@guarded
@dataclass(frozen=True, kw_only=True)
class FeSEM(InGroups, Trained):
    """clusters=None lets `fit` choose the number."""

    way = "groups"

    clusters: int | None = None

    @property
    def k(self) -> int:
        return cluster_count(self)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FeSEMState:
        return FeSEMState(repeat(start, self.k))

    def client(self, ctx: Context) -> Tree:
        return {"label": torch.full((), -1, dtype=torch.int64)}

    def round(self, state: FeSEMState, cohort: Cohort) -> Exchange[FeSEMState]:
        updates = {"model": From(groups="models")}
        reply = yield Ask(self.train, cohort.clients, {"models": state.models}, reduce=MeanBy(self.k), updates=updates)
        return FeSEMState(reply.or_keep("model", state.models))

    def train(self, ctx: Context, models: Params) -> Up:
        chance = (ctx.uniform("first cluster", 1)[0] * self.k).long().clamp(max=self.k - 1)
        equal = torch.stack([(t == t[:1]).all() for t in models.values()]).all()
        first = torch.where(equal, chance, self._best(ctx, models))
        label = torch.where(ctx.state["label"] < 0, first, ctx.state["label"])
        model, loss = self.local.fit(ctx, take(models, label))
        far = torch.stack([(t - model[name]).square().flatten(1).sum(1) for name, t in models.items()]).sum(0)
        label = torch.where(equal, label, far.argmin())  # E-step
        return Up(send={"model": model}, weight=ctx.n, group=label, state={"label": label}, info={"loss": loss})

    def _best(self, ctx: Context, models: Params) -> Tensor:
        return ctx.losses(models, self.k).argmin()

    def cluster(self, ctx: Context, state: FeSEMState) -> Tensor:
        known = ctx.state["label"]
        return torch.where(known < 0, self._best(ctx, state.models), known)
