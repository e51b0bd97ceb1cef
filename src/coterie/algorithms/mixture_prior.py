"""A Gaussian mixture as the prior over clients' models: soft clusters of clients with a spread each.

Algorithm 4 (L-3) of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy" (Kaan
Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: θ_i → the client's state, p_l → shares, μ_l → means (row l), σ_l² → variances, d → number of parameters. A
round: client i computes r = softmax_l(log p_l − (d/2) log σ_l² − ‖θ_i−μ_l‖²/(2σ_l²)) and takes local steps on its loss
with the pull Σ_l r_l (θ_i−μ_l)/σ_l² (signs, p_l and powers corrected: E14), r held fixed for the round as an E-step;
the server clusters the θ_i, p_l = |S_l|/|S|, and sends all three (the print leaves out σ). `floor` bounds σ, as the
objective has no minimum (E19). Clusters found take the places of the nearest means, so that a cohort with clients of some
clusters only leaves the others alone. The server sees every client's model. One cluster is `GaussianPrior` with one
scale for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coterie.aggregation.update_kmeans import kmeans_rows
from coterie.algorithms.families import Trained, keep, own_or, unseen
from coterie.algorithms.priors import blend, log_shares, prior_weight
from coterie.base.annotations import guarded
from coterie.base.arguments import Positive
from coterie.base.tree import Params, Tree, flat_vector, like_vector, repeat, row, take, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Population, Up
from coterie.learning.task import Task

_FARTHEST = 1e150  # a distance whose square overflows counts as this one


@dataclass(frozen=True)
class MixturePriorState:
    means: Params  # (k, …)
    variances: Tensor
    shares: Tensor


@guarded
@dataclass(frozen=True, kw_only=True)
class MixturePrior(Trained):
    """`clusters` groups whose deviations start at `scale` and never fall below `floor`. `noise_variance` is σ_x² of a
    regression."""

    way = "groups"
    individual = True

    clusters: int = 2
    scale: Positive = 0.1
    floor: Positive = 0.1
    noise_variance: Positive = 0.5

    def private(self) -> MixturePrior:
        raise ConfigError(
            "MixturePrior has no additive form, since its server clusters the models of single clients. Use "
            "DiscretePrior, FedEM or IFCA, whose rounds are sums, or train without privacy."
        )

    def init(self, task: Task, population: Population, seed: int, start: Params) -> MixturePriorState:
        like = next(iter(start.values()))
        variances, shares = like.new_full((self.clusters,), self.scale**2), like.new_full((self.clusters,), 1.0)
        return MixturePriorState(repeat(start, self.clusters), variances, shares / self.clusters)

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def round(self, state: MixturePriorState, cohort: Cohort) -> Exchange[MixturePriorState]:
        down = {"means": state.means, "variances": state.variances, "shares": state.shares}
        down["start"] = blend(state.means, state.shares)
        reply = yield Ask(self.train, cohort.clients, down, updates={"model": From("start")})
        if not len(reply.clients):
            return state
        order = torch.from_numpy(np.argsort(reply.clients, kind="stable"))
        models = flat_vector(take(reply.values["model"], order), 1).double()
        label = kmeans_rows(models, min(self.clusters, len(models)), seed=int(cohort.key("clusters")) & 0x7FFFFFFF)
        return self._clustered(state, models, torch.from_numpy(label))

    def _clustered(self, state: MixturePriorState, models: Tensor, label: Tensor) -> MixturePriorState:
        """Shares, means and variances of the clusters found; a cluster nobody is in keeps its own."""
        means = flat_vector(state.means, 1).double()
        variances, shares = state.variances.clone(), torch.zeros_like(state.shares)
        groups = [models[label == j] for j in np.unique(label.numpy()).tolist()]
        apart = torch.cdist(torch.stack([g.mean(0) for g in groups]), means)
        _, places = linear_sum_assignment(apart.nan_to_num(_FARTHEST).clamp(max=_FARTHEST).numpy())
        for j, members in zip(places.tolist(), groups, strict=True):
            means[j] = members.mean(0)
            variances[j] = ((members - means[j]) ** 2).mean().clamp(min=self.floor**2)
            shares[j] = len(members) / len(models)
        smallest = 1 / (10 * self.clusters * len(models))  # nothing is impossible
        shares = shares.clamp(min=smallest) / shares.clamp(min=smallest).sum()
        like = row(state.means, 0)
        stacked = tree_map(lambda t: t.to(state.variances.dtype), like_vector(means, like, 1))
        return MixturePriorState(stacked, variances, shares)

    def train(self, ctx: Context, means: Params, variances: Tensor, shares: Tensor, start: Params) -> Up:
        theta, loss = self._steps(ctx, MixturePriorState(means, variances, shares))
        return Up(send={"model": theta}, state=keep(theta), info={"loss": loss})

    def _steps(self, ctx: Context, state: MixturePriorState) -> tuple[Params, Tensor]:
        theta = own_or(ctx, blend(state.means, state.shares))
        anchor, pull = self.pull(theta, state)
        return self.local.fit(ctx, theta, anchor=anchor, pull=pull * prior_weight(ctx, self.noise_variance))

    def pull(self, theta: Params, state: MixturePriorState) -> tuple[Params, Tensor]:
        """Σ_l r_l (θ−μ_l)/σ_l² as one pull: towards the means weighted by r_l/σ_l², with strength Σ_l r_l/σ_l²."""
        strength = responsibilities(theta, state) / state.variances
        return blend(state.means, strength / strength.sum()), strength.sum()

    def personal(self, ctx: Context, state: MixturePriorState) -> Params:
        return own_or(ctx, self._steps(ctx, state)[0])

    def cluster(self, ctx: Context, state: MixturePriorState) -> Tensor:
        return responsibilities(self.personal(ctx, state), state).argmax()


def responsibilities(theta: Params, state: MixturePriorState) -> Tensor:
    return log_shares(theta, state.means, state.variances, state.shares).softmax(0)
