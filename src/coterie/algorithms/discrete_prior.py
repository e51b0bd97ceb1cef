"""A few possible models as the prior: every client has one of them, and a probability for each of them.

Algorithm 7 (L-7), for any network, of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy" (Kaan
Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: k → clusters, μ_l → models (row l), p_l → shares, w_il = softmax_l(log p_l − n f_i(μ_l)) → a client's weights.
The first round clusters models that clients trained alone (the print leaves the start open); with fewer clients than
models in a round, the next rounds do so too, until there are enough models. With start="random" the models start as random
networks and every round is a sum in which each client counts once; a private run and secure sums take this form.

Later rounds take EM steps: p_l = mean_i w_il, and clients train every μ_l with weight w_il·n_i (start="random": w_il).
All sums: the server sees no client. For linear models it is the exact EM step (Σ_i w_il X_iᵀX_i)⁻¹ Σ_i w_il X_iᵀY_i, in
gradient steps. (In the print new centres lie inside the hull of the old ones, so they contract to one point and nothing is
learnt after the first round, E11: `reproductions/printed/discrete_prior.py`.)

A client predicts with Σ_l w_il p_l(y|x).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.aggregation.update_kmeans import kmeans_rows
from coterie.algorithms.families import Trained
from coterie.algorithms.ifca.cluster_models import first_models
from coterie.algorithms.priors import prior_weight, require_predictions
from coterie.base.annotations import guarded
from coterie.base.arguments import Positive
from coterie.base.tree import Params, flat_vector, like_vector, repeat, row, stack, take, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Population, Reply, SumBy, Up
from coterie.learning.predictors import WEIGHTS, Mixture
from coterie.learning.task import Task


@dataclass(frozen=True)
class DiscretePriorState:
    models: Params  # (k, …)
    shares: Tensor
    found: int  # how many of the models come from clients; the others are the start


@guarded
@dataclass(frozen=True, kw_only=True)
class DiscretePrior(Trained):
    """`clusters` is k, and `start` says where its models come from: "alone" or "random". `noise_variance` is σ_x² of the
    loss "mse"."""

    way = "groups"

    clusters: int = 2
    noise_variance: Positive = 0.5
    start: Literal["alone", "random"] = "alone"

    def private(self) -> DiscretePrior:
        """The first round shows the models of single clients, and a private run does without."""
        return replace(self, start="random")

    def init(self, task: Task, population: Population, seed: int, start: Params) -> DiscretePriorState:
        require_predictions(task, self, ("cross_entropy", "mse"))
        like = next(iter(start.values()))
        shares = like.new_full((self.clusters,), 1 / self.clusters)
        if self.start == "random":
            draws = [start] + [task.init(seed * 1_000_003 + j, like.dtype) for j in range(1, self.clusters)]
            return DiscretePriorState(first_models(draws, {}), shares, self.clusters)
        return DiscretePriorState(repeat(start, self.clusters), shares, 0)

    def round(self, state: DiscretePriorState, cohort: Cohort) -> Exchange[DiscretePriorState]:
        if state.found < self.clusters:
            down = {"start": row(state.models, self.clusters - 1)}
            reply = yield Ask(self.alone, cohort.clients, down, updates={"model": From("start")})
            return self._clustered(state, reply, cohort) if len(reply.clients) else state
        updates = {"moved": None, "weights": None}
        down = {"models": state.models, "shares": state.shares}
        reply = yield Ask(self.train, cohort.clients, down, reduce=SumBy(), updates=updates)
        return self._summed(state, reply) if len(reply.clients) else state

    # ---- what clients do ---------------------------------------------------------------------------------------------

    def weights(self, ctx: Context, models: Params, shares: Tensor) -> Tensor:
        """w_i, in logarithms: the printed exponentials underflow."""
        fit = ctx.losses(models, self.clusters) / prior_weight(ctx, self.noise_variance)
        return (torch.log(shares) - fit).softmax(0)

    def alone(self, ctx: Context, start: Params) -> Up:
        """θ_i^(0): a model trained alone."""
        trained, loss = self.local.fit(ctx, start)
        return Up(send={"model": trained}, info={"loss": loss})

    def train(self, ctx: Context, models: Params, shares: Tensor) -> Up:
        """Every model's local steps on this client, weighted by the client's weight for the model."""
        weights = self.weights(ctx, models, shares)
        fits = [self.local.fit(ctx.rewound(), row(models, j)) for j in range(self.clusters)]
        trained = stack([model for model, _ in fits])
        share = weights if self.start == "random" else ctx.n * weights
        moved = tree_map(lambda new, old: (new - old) * share.reshape(-1, *[1] * (old.dim() - 1)), trained, models)
        loss = (weights * torch.stack([loss for _, loss in fits])).sum()
        apart = {} if self.start == "random" else {"client": weights}
        return Up(send={"moved": moved, "weights": {"share": share} | apart}, info={"loss": loss})

    # ---- what the server does ----------------------------------------------------------------------------------------

    def _summed(self, state: DiscretePriorState, reply: Reply) -> DiscretePriorState:
        moved, weights = row(reply.values["moved"], 0), row(reply.values["weights"], 0)
        total = weights["share"].clamp(min=1e-12)
        per = total.clamp(min=0.1 * float(total.mean()))  # a model that hardly anybody has moves slowly
        clients = weights.get("client", weights["share"]).clamp(min=1e-12)
        models = tree_map(lambda t, d: t + d / per.reshape(-1, *[1] * (t.dim() - 1)), state.models, moved)
        return DiscretePriorState(models, _positive(clients / clients.sum()), self.clusters)

    def _clustered(self, state: DiscretePriorState, reply: Reply, cohort: Cohort) -> DiscretePriorState:
        order = torch.from_numpy(np.argsort(reply.clients, kind="stable"))
        rows = flat_vector(take(reply.values["model"], order), 1).double()
        first = state.found  # models found before are kept
        new = min(self.clusters - first, len(rows))
        label = torch.from_numpy(kmeans_rows(rows, new, seed=int(cohort.key("models")) & 0x7FFFFFFF))
        member = (label[:, None] == torch.arange(-first, self.clusters - first)).double()
        count = member.sum(0)
        centres = (member.T @ rows) / count.clamp(min=1)[:, None]
        centres = torch.where(count[:, None] > 0, centres, flat_vector(state.models, 1).double())
        like, dtype = row(state.models, 0), state.shares.dtype
        models = tree_map(lambda t: t.to(dtype), like_vector(centres, like, 1))
        shares = _positive((count / count.sum()).to(dtype)) if new == self.clusters else state.shares
        return DiscretePriorState(models, shares, first + new)

    def personal(self, ctx: Context, state: DiscretePriorState) -> Params:
        return state.models | {WEIGHTS: self.weights(ctx, state.models, state.shares)}

    def predictor(self) -> Mixture:
        return Mixture()

    def cluster(self, ctx: Context, state: DiscretePriorState) -> Tensor:
        return self.weights(ctx, state.models, state.shares).argmax()


def _positive(shares: Tensor) -> Tensor:
    """Keep every model's share above zero, so that it can be chosen again."""
    least = shares.clamp(min=1e-3)
    return least / least.sum()
