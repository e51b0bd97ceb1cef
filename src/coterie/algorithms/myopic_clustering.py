"""Myopic-Clustering, which fails by design: it is here for the examples of failure and as a warning.

Chapter 2, Algorithm 1 of
"Collaborative Learning: Aligning Goals and Outcomes" (Mariel Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

The server clusters the clients' *current* gradients, and every client follows its cluster's mean. Once gradients vanish they
say nothing about who belongs together, and wrong partitions become permanent.

The text leaves the partition rule open. Here it is exact k-means by trying every partition up to ten clients, else Lloyd's
k-means. `aggregate` takes the mean's place. A cluster that is too small for a robust rule does not move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.aggregation import Aggregator, Mean, aggregated
from coterie.aggregation.update_kmeans import kmeans_rows
from coterie.algorithms.families import CentresState, FollowingCentres
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.tree import Tree, flat_vector
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, Up

_EXACT_UP_TO = 10


def partitions(n: int, k: int) -> Iterator[list[int]]:
    """All ways to put n clients into at most k groups, as labels in order of first use."""

    def extend(labels: list[int]) -> Iterator[list[int]]:
        if len(labels) == n:
            yield labels
            return
        for j in range(min(max(labels, default=-1) + 2, k)):
            yield from extend([*labels, j])

    yield from extend([])


def best_partition(points: Tensor, k: int, seed: int) -> Tensor:
    """k-means labels: exact for few points."""
    if len(points) > _EXACT_UP_TO:
        return torch.from_numpy(kmeans_rows(points, k, seed=seed))
    best, label = float("inf"), torch.zeros(len(points), dtype=torch.int64)
    for candidate in partitions(len(points), k):
        trial = torch.tensor(candidate)
        spread = sum(
            float(((points[trial == j] - points[trial == j].mean(0)) ** 2).sum()) for j in range(max(candidate) + 1)
        )
        if spread < best * (1 - 1e-9):  # relative: gradients become arbitrarily small
            best, label = spread, trial
    return label


@guarded
@dataclass(frozen=True, kw_only=True)
class MyopicClustering(FollowingCentres):
    """Meant to fail. clusters=None lets `fit` choose the number; `batch_size=None` takes full gradients."""

    aggregate: Aggregator = field(default_factory=Mean)

    def client(self, ctx: Context) -> Tree:
        return {"model": ctx.initial}

    def round(self, state: CentresState, cohort: Cohort) -> Exchange[CentresState]:
        reply = yield Ask(self.gradient, cohort.clients, updates={"grad": None})
        if not len(reply.clients):
            return state
        points = flat_vector(reply.values["grad"], 1)
        found = best_partition(points, min(self.k, len(points)), int(cohort.key("k-means")) & 0x7FFFFFFF)
        centers = torch.stack([self._center(points[found == j], cohort, j) for j in range(int(found.max()) + 1)])
        return (yield from self.follow(state, reply.clients, centers, found))

    def _center(self, points: Tensor, cohort: Cohort, j: int) -> Tensor:
        """Where cluster j goes: nowhere when a robust rule finds it too small."""
        key = randomness.fold(cohort.key("aggregate"), j)
        center = aggregated(self.aggregate, points, torch.ones(len(points)), len(cohort.clients), key=key)
        return torch.zeros_like(points[0]) if center is None else center

    def gradient(self, ctx: Context) -> Up:
        batch = ctx.minibatch(self.batch_size)
        model = ctx.state["model"]
        return Up(send={"grad": batch.grad(model)}, info={"loss": batch.loss(model)})
