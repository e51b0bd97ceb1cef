"""Momentum-Clustering: clients send momenta, the server clusters them around K centres, and every client follows its centre.

Chapter 2, Algorithm 4 of
"Collaborative Learning: Aligning Goals and Outcomes" (Mariel Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

The server uses Threshold-Clustering. It sends and receives N messages per round, not N².

Symbols: m_{i,t} → a client's momentum, α → alpha, v_{k,t} → centers, η → lr, M → inner. Choices the text leaves open (gaps
GAP/EC-18): m_{i,0} = 0, or with `warm=True` the first gradient, which removes the bias (1−α)^t. Centres start by k-means++
on the first momenta. A client belongs to the nearest centre. A centre without clients is seeded again at the momentum
farthest from all centres. A centre with an empty ball is seeded again by k-means++ too: it would stay where it is for ever
and lead its clients along a gradient nobody has any more (the proof starts every round within σ of the true means). A
momentum so long that no distance to it can be computed is left out of the round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.aggregation.gram import comparable, gram, pairwise
from coterie.aggregation.radius import Percentile, RadiusRule
from coterie.aggregation.threshold import threshold_clustering
from coterie.aggregation.update_kmeans import plusplus
from coterie.algorithms.families import CentresState, FollowingCentres
from coterie.base.annotations import guarded
from coterie.base.arguments import Part
from coterie.base.tree import Tree, flat_vector, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, Up


@guarded
@dataclass(frozen=True, kw_only=True)
class MomentumClustering(FollowingCentres):
    """`alpha` is the weight of a new gradient in a momentum; `radius` a rule or a number; `inner`: rounds of clustering."""

    alpha: Part = 0.1
    radius: RadiusRule | float | None = None
    inner: int = 10
    warm: bool = True

    def client(self, ctx: Context) -> Tree:
        return {"model": ctx.initial, "momentum": tree_map(torch.zeros_like, ctx.initial), "seen": torch.tensor(0.0)}

    def round(self, state: CentresState, cohort: Cohort) -> Exchange[CentresState]:
        reply = yield Ask(self.momentum, cohort.clients, updates={"momentum": None})
        if not len(reply.clients):
            return state
        points = flat_vector(reply.values["momentum"], 1)
        near = comparable(points)
        clients, points = reply.clients[near.numpy()], points[near]
        if not len(clients):
            return state
        start = state.centers if len(state.centers) else self._seed(points, cohort)
        rule = self.radius if self.radius is not None else Percentile(100 / self.k)
        found = threshold_clustering(points, start, rule, self.inner, history=False)
        if bool((stale := ~found.members.any(1)).any()):
            start = torch.where(stale.unsqueeze(1), self._seed(points, cohort), start)
            found = threshold_clustering(points, start, rule, self.inner, history=False)
        centers: Tensor = found.centers
        centers, nearest = self._assign(points, centers)
        return (yield from self.follow(state, clients, centers, nearest))

    def _assign(self, points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest centre of every client; empty centres move, one by one, to the momentum farthest from all."""
        for _ in range(self.k + 1):
            distance = torch.cdist(points.double(), centers.double())  # squares of huge float32 numbers would overflow
            nearest, lonely = distance.argmin(1), distance.min(1).values
            empty = torch.bincount(nearest, minlength=self.k) == 0
            if len(points) < self.k or not bool(empty.any()) or not float(lonely.max()) > 0:
                break
            centers = centers.index_copy(0, empty.nonzero()[:1, 0], points[lonely.argmax()].unsqueeze(0))
        return centers, nearest

    def _seed(self, points: Tensor, cohort: Cohort) -> Tensor:
        if len(points) < self.k:
            return points[torch.arange(self.k) % len(points)]
        seed = int(cohort.key("seeds")) & 0x7FFFFFFF
        return points[torch.from_numpy(plusplus(pairwise(gram(points)).numpy(), self.k, seed=seed))]

    def momentum(self, ctx: Context) -> Up:
        batch = ctx.minibatch(self.batch_size)
        g = batch.grad(ctx.state["model"])
        alpha = torch.full((), self.alpha, dtype=ctx.mask.dtype)  # not torch's default float32
        a = torch.where((ctx.state["seen"] == 0) & self.warm, 1.0, alpha)
        m = tree_map(lambda new, old: a * new + (1 - a) * old, g, ctx.state["momentum"])
        state = {"model": ctx.state["model"], "momentum": m, "seen": torch.ones_like(ctx.state["seen"])}
        return Up(send={"momentum": m}, state=state, info={"loss": batch.loss(ctx.state["model"])})
