"""CFL: clustered federated learning by splitting clusters in two.

"Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under Privacy Constraints" (Felix Sattler,
Klaus-Robert Müller, Wojciech Samek, 2019, https://arxiv.org/abs/1910.01991).

(a) Federated averaging inside every current cluster gives one update ΔW_i per client. (b) A cluster splits when its mean
update is short, ‖mean ΔW‖ < ε₁, while some client's update is still long, max‖ΔW_i‖ > ε₂. (c) It splits into the two parts
between which the largest cosine similarity of updates is smallest. (d) Splits continue recursively, and clusters are never
merged. The label of every client is kept under its own index, so later splits act on the right clients. `aggregate` takes
the mean's place in (a). A cluster that has too few members in a round for a robust rule keeps its model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from coterie.aggregation import Aggregator, Mean, aggregated
from coterie.algorithms.families import InGroups, Trained
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative, Positive
from coterie.base.tree import Params, flat_vector, repeat, row, take, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, Ints, Population, Up, one_per
from coterie.learning.task import Task

Linkage = Literal["single", "complete"]
_MOST_CLIENTS = 20_000  # every pair of them is compared: 3.2 GB of distances


@dataclass(frozen=True)
class CFLState:
    models: Params = field(metadata=one_per("label"))  # (clusters so far, …)
    label: Tensor = field(metadata=one_per("client"))  # (m,)
    scale: Tensor  # the median length of the first updates; 0 before


def bipartition(updates: Tensor, rule: Linkage = "single") -> npt.NDArray[np.bool_]:
    """The two parts with the smallest similarity between them: single linkage on −cosine cut at two clusters is exactly the
    split that minimises the largest cross similarity; "complete" is what the public code does."""
    unit = torch.nn.functional.normalize(updates.double(), dim=1)
    distance = (1 - unit @ unit.T).clamp(min=0).numpy()
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform((distance + distance.T) / 2, checks=False), rule)
    part: npt.NDArray[np.bool_] = fcluster(tree, 2, "maxclust") == 1
    return part


@guarded
@dataclass(frozen=True, kw_only=True)
class CFL(InGroups, Trained):
    """`quiet` is ε₁ and `loud` ε₂, absolute norms of model updates; `first` rounds pass before the first split. `relative`
    makes both shares of the clients' median update in the first round, such as quiet=0.1 and loud=0.3: how long updates are
    depends on model, step and data, and with the published norms many runs never split (then `notes` says so)."""

    way = "groups"
    individual = True

    quiet: Positive = 0.4
    loud: NotNegative = 1.6
    first: int = 20
    linkage: Linkage = "single"
    most: int = 64
    aggregate: Aggregator = field(default_factory=Mean)
    relative: bool = False

    @classmethod
    def example(cls) -> CFL:
        return cls(quiet=100.0, loud=1e-6, first=1)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> CFLState:
        if population.n_clients > _MOST_CLIENTS:
            raise ConfigError(
                f"CFL compares every pair of clients, so it takes at most {_MOST_CLIENTS:,}; got {population.n_clients:,}. "
                "Use IFCA, whose cost does not depend on how many clients there are."
            )
        label = torch.zeros(population.n_clients, dtype=torch.int64)
        return CFLState(repeat(start, 1), label, torch.zeros((), dtype=torch.float64))

    def notes(self, state: CFLState) -> list[str]:
        """A note if no cluster was ever split."""
        if len(next(iter(state.models.values()))) > 1:
            return []
        how = (
            "shares of the first round's updates"
            if self.relative
            else "absolute norms; relative=True makes them shares"
        )
        return [
            f"CFL never split the clients: no cluster had a mean update below quiet={self.quiet} and a member's above "
            f"loud={self.loud} after {self.first} rounds. All share one model. (The thresholds are {how}.)"
        ]

    def round(self, state: CFLState, cohort: Cohort) -> Exchange[CFLState]:
        reply = yield self._ask(state, cohort.clients)
        if not len(reply.clients):
            return state
        update = reply.values["update"]
        label = state.label[torch.from_numpy(reply.clients)]
        rows = flat_vector(update, 1)
        scale = state.scale if bool(state.scale > 0) else rows.double().norm(dim=1).median()
        models, labels = [], state.label.clone()
        children: list[Params] = []
        count = len(next(iter(state.models.values())))
        for c in range(count):
            mine = label == c
            model = row(state.models, c)
            if not bool(mine.any()):
                models.append(model)
                continue
            here, key = tree_map(lambda t, m=mine: t[m], update), randomness.fold(cohort.key("aggregate"), c)
            mean = aggregated(self.aggregate, here, reply.weight[mine], len(cohort.clients), key=key)
            if mean is None:
                models.append(model)
                continue
            model = tree_map(lambda a, b: a + b, model, mean)
            models.append(model)
            if (
                cohort.round >= self.first
                and count + len(children) < self.most
                and self._stuck(rows[mine], mean, scale)
            ):
                members, part = yield from self._split(state, c, reply.clients[mine.numpy()], rows[mine])
                labels[torch.from_numpy(members[part])] = count + len(children)
                children.append(model)
        stacked = {k: torch.stack([m[k] for m in models + children]) for k in models[0]}
        return CFLState(stacked, labels, scale)

    def _ask(self, state: CFLState, clients: Ints) -> Ask:
        own = take(state.models, state.label[torch.from_numpy(clients)])
        return Ask(self.train, clients, each={"model": own}, updates={"update": None})

    def _stuck(self, rows: Tensor, mean: Params, scale: Tensor) -> bool:
        """Condition (b)."""
        if len(rows) <= 2:
            return False
        unit = scale if self.relative else 1.0
        return bool(flat_vector(mean).norm() < self.quiet * unit) and bool(rows.norm(dim=1).max() > self.loud * unit)

    def _split(self, state: CFLState, c: int, here: Ints, rows: Tensor) -> Exchange[tuple[Ints, npt.NDArray[np.bool_]]]:
        """All members of the cluster and which of them leave; members outside this round's cohort are asked now."""
        away = np.setdiff1d(np.flatnonzero((state.label == c).numpy()), here)
        if len(away):
            reply = yield replace(self._ask(state, away), optional=True)
            if len(reply.clients):
                here = np.concatenate([here, reply.clients])
                rows = torch.cat([rows, flat_vector(reply.values["update"], 1)])
        return here, bipartition(rows, self.linkage)

    def train(self, ctx: Context, model: Params) -> Up:
        trained, loss = self.local.fit(ctx, model)
        update = tree_map(lambda new, old: new - old, trained, model)
        return Up(send={"update": update}, weight=ctx.n, info={"loss": loss})
