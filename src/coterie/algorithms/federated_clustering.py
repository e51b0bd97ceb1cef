"""Federated-Clustering: every client has its own model and averages, at that model, the gradients that agree with its own.

Chapter 2, Algorithm 2 of
"Collaborative Learning: Aligning Goals and Outcomes" (Mariel Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

Symbols: x_{i,t} → models (row i), g_j(x_i) → a reply to `gradient`, η → lr, M → inner, τ → radius, |B| → batch_size.
Step 1: every client j computes its gradient at every client's model x_i. Step 2: v_i = Threshold-Clustering of these
gradients around i's own. Step 3: x_i ← x_i − η v_i. No clusters are declared. Malicious clients far away have no influence.
A liar's own model may diverge, because no other gradients are averaged into it. It then stays at its last finite value, and
the others continue.

**Cost per round** with N clients in subsets of n: N·n gradient evaluations, N·n models down and N·n gradients up. The server
holds one model's gradients at a time (N × P numbers), never N × N × P. One pass evaluates one model per subset at all its
members at once, so there are n batched passes, not N² calls. `subsets=G` splits the clients at random into G subsets in each
round (n = N/G). `local_steps=s` clusters only at every s-th step and takes plain local steps in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from coterie import randomness
from coterie.aggregation.gram import comparable
from coterie.aggregation.radius import Percentile, RadiusRule
from coterie.aggregation.threshold import threshold_centers
from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.exchange.messages import (
    Algorithm,
    Ask,
    Cohort,
    Context,
    Exchange,
    From,
    Ints,
    Population,
    Reply,
    Up,
    one_per,
)
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.settings import whole_number
from coterie.tree import Params, finite_rows, repeat, row, take, tree_map

_MEMBERS_UP_TO = 4096  # up to so many clients the N × N table of who averaged whose gradients is kept


@dataclass(frozen=True)
class FederatedClusteringState:
    models: Params = field(metadata=one_per("client"))  # (N, …)
    velocity: Params = field(metadata=one_per("client"))
    members: Tensor = field(metadata=one_per("client"))  # (N, N): j was in i's last ball
    label: Tensor = field(metadata=one_per("client"))  # (N,): groups of clients that listen to one another


@guarded
@dataclass(frozen=True, kw_only=True)
class FederatedClustering(Algorithm):
    """`momentum` is applied to v_i after clustering, as the author's experiments do."""

    way = "groups"
    individual = True

    lr: float = 0.1
    radius: RadiusRule | float = field(default_factory=lambda: Percentile(20))
    subsets: int = 1
    batch_size: int | None = None
    inner: int = 10
    local_steps: int = 1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, owner=self)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"FederatedClustering needs momentum in [0, 1); got {self.momentum}.")

    @property
    def local(self) -> LocalSGD:
        """The steps that a client alone would take in a round."""
        return LocalSGD(steps=1, lr=self.lr, batch_size=self.batch_size, momentum=0.0)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FederatedClusteringState:
        n = population.n_clients
        kept = n if n <= _MEMBERS_UP_TO else 0
        models = repeat(start, n)
        velocity = tree_map(torch.zeros_like, models) if self.momentum else {}
        return FederatedClusteringState(models, velocity, torch.eye(kept, dtype=torch.bool), torch.arange(n))

    def round(self, state: FederatedClusteringState, cohort: Cohort) -> Exchange[FederatedClusteringState]:
        if (cohort.round + 1) % self.local_steps:
            own = {"model": _rows(state.models, cohort.clients)}
            reply = yield Ask(self.descend, cohort.clients, each=own, updates={"model": From("model")})
            return state if not len(reply.clients) else replace(state, models=_put(state.models, reply))
        subsets = self._subsets(cohort)
        direction: dict[int, Any] = {}
        members = state.members.clone()
        for s in range(max((len(g) for g in subsets), default=0)):
            served = [g for g in subsets if len(g) > s]
            reply = yield self._ask(state, served, s)
            near = comparable(reply.values["grad"]).tolist() if len(reply.clients) else []
            place = {int(c): i for i, c in enumerate(reply.clients) if near[i]}
            served = [g for g in served if int(g[s]) in place]  # where the owner did not answer its model stays
            present = [[int(j) for j in group if int(j) in place] for group in served]
            problems = []
            for group, here in zip(served, present, strict=True):
                points = take(reply.values["grad"], torch.tensor([place[j] for j in here]))
                problems.append((points, row(points, here.index(int(group[s])))))
            centers = threshold_centers(problems, self.radius, self.inner)  # step 2
            for group, here, (center, inside) in zip(served, present, centers, strict=True):
                i = int(group[s])
                direction[i] = center
                if len(members):
                    members[i] = False
                    members[i, torch.tensor(here)[inside]] = True
        return self._step(state, direction, members)

    def _subsets(self, cohort: Cohort) -> list[Ints]:
        """Random subsets of sizes that differ by at most one."""
        order = randomness.bits(cohort.key("groups"), len(cohort.clients)).argsort().numpy()
        return [np.sort(part) for part in np.array_split(cohort.clients[order], self.subsets) if len(part)]

    def _ask(self, state: FederatedClusteringState, served: list[Ints], s: int) -> Ask:
        """Step 1 for the s-th member of every group: all its group compute their gradient at its model."""
        asked = np.concatenate(served)
        owner = np.concatenate([np.full(len(g), g[s]) for g in served])
        mine = torch.from_numpy(owner == asked)
        if len(served) == 1:
            i = int(owner[0])
            model = {"model": row(state.models, i)}
            return Ask(self.gradient, asked, model, {"mine": mine}, updates={"grad": None}, owner=i, optional=True)
        each = {"model": _rows(state.models, owner), "mine": mine}
        return Ask(self.gradient, asked, each=each, updates={"grad": None}, optional=True)

    def _step(
        self, state: FederatedClusteringState, direction: dict[int, Any], members: Tensor
    ) -> FederatedClusteringState:
        """Step 3. A model that would no longer be finite stays as it is."""
        if not direction:
            return state
        who = torch.tensor(sorted(direction))
        v = {k: torch.stack([direction[int(i)][k] for i in who]) for k in state.models}
        velocity = state.velocity
        if self.momentum:
            velocity = {k: t.clone() for k, t in velocity.items()}
            for k in v:
                v[k] = self.momentum * velocity[k][who] + v[k]
                velocity[k][who] = v[k]
        models = {k: t.index_add(0, who, v[k].to(t.dtype), alpha=-self.lr) for k, t in state.models.items()}
        good = finite_rows(models) & finite_rows(velocity)
        if not bool(good.all()):
            models, velocity = _where(good, models, state.models), _where(good, velocity, state.velocity)
        label = state.label
        if len(members):
            mutual = (members & members.T).numpy()
            label = torch.from_numpy(connected_components(mutual, directed=False)[1].astype(np.int64))
        return FederatedClusteringState(models, velocity, members, label)

    # ---- client ------------------------------------------------------------------------------------------------------

    def gradient(self, ctx: Context, model: Params, mine: Tensor) -> Up:
        batch = ctx.minibatch(self.batch_size)
        grad, loss = torch.func.grad_and_value(batch.loss)(model)
        return Up(send={"grad": grad}, info={"loss": torch.where(mine, loss, torch.nan)})

    def descend(self, ctx: Context, model: Params) -> Up:
        model, loss = self.local.fit(ctx, model)
        return Up(send={"model": model}, info={"loss": loss})

    def personal(self, ctx: Context, state: FederatedClusteringState) -> Params:
        model: Params = take(state.models, ctx.index)
        return model

    def cluster(self, ctx: Context, state: FederatedClusteringState) -> Tensor:
        return state.label.index_select(0, ctx.index.reshape(1)).reshape(())


def _rows(models: Params, clients: Ints) -> Params:
    rows: Params = take(models, torch.from_numpy(clients))
    return rows


def _where(good: Tensor, new: Params, old: Params) -> Params:
    """The new rows where they are good, else the old ones."""
    return {k: torch.where(good.reshape(-1, *[1] * (t.dim() - 1)), t, old[k]) for k, t in new.items()}


def _put(models: Params, reply: Reply) -> Params:
    where = torch.from_numpy(reply.clients)
    return {k: t.index_copy(0, where, reply.values["model"][k]) for k, t in models.items()}
