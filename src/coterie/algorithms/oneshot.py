"""One-shot clustering: cluster the clients' own solutions once, then train inside the clusters.

Section 4.1, Algorithm 1 of
"An Efficient Framework for Clustered Federated Learning" (Avishek Ghosh, Jichan Chung, Dong Yin, Kannan Ramchandran, 2020,
https://arxiv.org/abs/2006.04088).

Step 1: every client sends its empirical risk minimiser. Step 2: the server runs k-means on them (k-means++ seeds, ten
restarts). Step 3: federated averaging inside each estimated cluster. The partition is never changed again.

Caveats: errors of step 2 are never repaired. Two networks that compute the same function can have very different weights
(hidden units permuted). So cluster convex models, or name the last layer with `on` after a start shared by everyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from coterie.aggregation.update_kmeans import kmeans_rows
from coterie.algorithms.families import PartitionedOnce, PartitionState
from coterie.base.annotations import guarded
from coterie.base.settings import cluster_count
from coterie.base.tree import Params, flat_vector, named_like, names, row
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps


@guarded
@dataclass(frozen=True, kw_only=True)
class OneShot(PartitionedOnce):
    """`solve` is how a client finds its own minimiser in step 1; `on` restricts step 2 to these parts of the network."""

    way = "groups"

    clusters: int | None = None
    solve: LocalSteps = field(default_factory=lambda: LocalSGD(steps=200, lr=0.1, batch_size=None))
    on: Sequence[str] = ()

    @classmethod
    def example(cls) -> OneShot:
        return cls(clusters=2, solve=LocalSGD(steps=20, lr=0.1, batch_size=None))

    def __post_init__(self) -> None:
        object.__setattr__(self, "on", names(self.on, "OneShot", "on"))

    @property
    def k(self) -> int:
        return cluster_count(self)

    def partition(self, state: PartitionState, cohort: Cohort) -> Exchange[PartitionState]:
        """Steps 1 and 2."""
        everyone = np.arange(len(state.label))
        reply = yield Ask(self.minimise, everyone, {"model": row(state.models, 0)}, updates={"model": From("model")})
        if not len(reply.clients):
            return state
        solution: Params = reply.values["model"]
        chosen = named_like(solution, self.on) if self.on else solution
        if not chosen:
            raise ConfigError(f"No parameter is named like {self.on}; the names are {list(solution)}.")
        seed = int(cohort.key("k-means")) & 0x7FFFFFFF
        k = min(self.k, len(reply.clients))
        found = torch.from_numpy(kmeans_rows(flat_vector(chosen, 1), k, seed=seed, rank=None))
        label = state.label.clone()
        label[torch.from_numpy(reply.clients)] = found
        models = {
            name: torch.stack([t[found == j].mean(0) if bool((found == j).any()) else t[0] for j in range(self.k)])
            for name, t in solution.items()
        }
        return PartitionState(models, label)

    def minimise(self, ctx: Context, model: Params) -> Up:
        model, loss = self.solve.fit(ctx, model)
        return Up(send={"model": model}, info={"loss": loss})
