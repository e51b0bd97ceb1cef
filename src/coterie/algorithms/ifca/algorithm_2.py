"""Algorithm 2 (IFCA) and nothing else: broadcast, choose the model of least loss, train it, average by cluster.

"An Efficient Framework for Clustered Federated Learning" (Avishek Ghosh, Jichan Chung, Dong Yin, Kannan Ramchandran, 2020,
https://arxiv.org/abs/2006.04088).

Symbols: k → clusters, θ_j → models (row j), ĵ → a client's cluster, M_t → the cohort, m → the number of clients,
γ → local.lr, τ → local.steps. Weights that all clusters share (section 4.3) are `shared`; they are usually empty.

An empty cluster keeps its model; the text leaves that open. Line 14 divides by m, which shrinks the step when few clients
take part (erratum EC-3), so `normalise` can be the participants or the members of the cluster instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.algorithms.ifca.cluster_models import IFCAState, per_cluster
from coterie.algorithms.ifca.resampling import Rows
from coterie.base.tree import Params, Tree, joined, row, take
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, SumBy, Up
from coterie.learning.local_steps import LocalSteps


@dataclass(frozen=True)
class GradientAveraging:
    """Option I: clients send a gradient, and the server takes a step."""

    local: LocalSteps
    normalise: Literal["m", "participants", "cluster"] = "m"
    sends = "grad"

    def work(self, ctx: Context, model: Params) -> tuple[Params, Tensor]:
        batch = ctx.minibatch(self.local.batch_size)
        return batch.grad(model), batch.loss(model)  # line 9: g_i

    def update(self, state: IFCAState, total: Params, members: Tensor) -> IFCAState:
        everyone, lr = float(members.sum()), self.local.lr
        of_all = len(state.identity) if self.normalise == "m" else everyone
        per = members if self.normalise == "cluster" else torch.full_like(members, of_all)
        models = {name: old - lr * per_cluster(total[name], per) for name, old in state.models.items()}  # line 14
        shared = {name: old - lr * (total[name].sum(0) / everyone) for name, old in state.shared.items()}
        return replace(state, models=models, shared=shared)


@dataclass(frozen=True)
class ModelAveraging:
    """Option II: clients send a trained model, and the server takes the mean of each cluster."""

    local: LocalSteps
    sends = "model"

    def work(self, ctx: Context, model: Params) -> tuple[Params, Tensor]:
        return self.local.fit(ctx, model)  # line 11: LocalUpdate(θ_ĵ, γ, τ)

    def update(self, state: IFCAState, total: Params, members: Tensor) -> IFCAState:
        models = {name: per_cluster(total[name], members, old) for name, old in state.models.items()}  # line 15
        shared = {name: total[name].sum(0) / float(members.sum()) for name in state.shared}
        return replace(state, models=models, shared=shared)


@dataclass(frozen=True)
class Algorithm2:
    """`rows` are the samples by which a client chooses its cluster, and those on which it trains."""

    clusters: int
    option: GradientAveraging | ModelAveraging
    rows: Rows
    samples_weighted: bool = False

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        down = {"models": state.models, "shared": state.shared}
        origin = From("shared", groups="models") if self.option.sends == "model" else None
        ask = Ask(self.train, cohort.clients, down, reduce=SumBy(self.clusters), updates={self.option.sends: origin})
        reply = yield replace(ask, optional=True)  # lines 3 and 4: broadcast θ_j to the cohort M_t
        return self.update(state, reply.values, reply.weight) if len(reply.clients) else state

    def train(self, ctx: Context, models: Params, shared: Params) -> Up:
        cluster = self.choose(ctx, models, shared)
        return self.work(ctx, joined(take(models, cluster), shared, ctx.initial), cluster)

    def choose(self, ctx: Context, models: Params, shared: Params) -> Tensor:
        """Line 6: ĵ = argmin_j F_i(θ_j); ties go to the lowest index."""
        seen, count = self.rows.to_choose(ctx), len(next(iter(models.values())))
        losses = [seen.loss(joined(row(models, j), shared, ctx.initial)) for j in range(count)]
        return torch.stack(losses).argmin()

    def work(self, ctx: Context, model: Params, cluster: Tensor) -> Up:
        """Lines 7 to 11: the client sends its gradient or model; its cluster says to which sum it is added."""
        sent, loss = self.option.work(self.rows.to_train(ctx), model)
        weight = ctx.n if self.samples_weighted else 1.0
        return Up(send={self.option.sends: sent}, weight=weight, group=cluster, info={"loss": loss})

    def update(self, state: IFCAState, total: Tree, members: Tensor) -> IFCAState:
        """Lines 13 to 15, from Σ s_ij g_i or Σ s_ij θ̃_i, and Σ s_ij; the shared weights follow all participants."""
        return self.option.update(state, total[self.option.sends], members) if float(members.sum()) else state
