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
round (n = N/G). `local_steps=s` clusters only at every s-th step and takes local steps, with the same momentum, in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from coterie.aggregation.gram import comparable
from coterie.aggregation.radius import Percentile, RadiusRule
from coterie.aggregation.threshold import threshold_centers
from coterie.algorithms.families import InGroups
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.arguments import BelowOne, Count
from coterie.base.tree import Params, finite_rows, repeat, row, take, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Reply, Up
from coterie.exchange.server_knowledge import Ints, Population, one_per
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task

_MEMBERS_UP_TO = 4096  # up to so many clients the N × N table of who averaged whose gradients is kept


@dataclass(frozen=True)
class FederatedClusteringState:
    models: Params = field(metadata=one_per("client"))  # (N, …)
    velocity: Params = field(metadata=one_per("client"))
    members: Tensor = field(metadata=one_per("client"))  # (N, N): j was in i's last ball
    label: Tensor = field(metadata=one_per("client"))  # (N,): groups of clients that listen to one another
    met: Tensor = field(metadata=one_per("client"))  # (N,): whose models have moved
    mean: Params  # of these models: what a client has whose own never moved


@guarded
@dataclass(frozen=True, kw_only=True)
class FederatedClustering(InGroups):
    """`momentum` is applied to v_i after clustering, as the author's experiments do, and to the gradient of a local step."""

    way = "groups"
    individual = True

    lr: float = 0.1
    radius: RadiusRule | float = field(default_factory=lambda: Percentile(20))
    subsets: int = 1
    batch_size: Count | None = None
    inner: int = 10
    local_steps: int = 1
    momentum: BelowOne = 0.0

    @property
    def local(self) -> LocalSGD:
        """The steps that a client alone would take in a round."""
        return LocalSGD(steps=1, lr=self.lr, batch_size=self.batch_size, momentum=0.0)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FederatedClusteringState:
        n = population.n_clients
        kept = n if n <= _MEMBERS_UP_TO else 0
        models = repeat(start, n)
        velocity = tree_map(torch.zeros_like, models) if self.momentum else {}
        members, nobody = torch.eye(kept, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
        return FederatedClusteringState(models, velocity, members, torch.arange(n), nobody, start)

    def round(self, state: FederatedClusteringState, cohort: Cohort) -> Exchange[FederatedClusteringState]:
        if (cohort.round + 1) % self.local_steps:
            own = {"model": _rows(state.models, cohort.clients)}
            if self.momentum:
                own["velocity"] = _rows(state.velocity, cohort.clients)
            reply = yield Ask(self.descend, cohort.clients, each=own, updates={"model": From("model")})
            return self._descended(state, reply) if len(reply.clients) else state
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
        models, velocity = _finite(state, models, velocity)
        label = state.label
        if len(members):
            mutual = (members & members.T).numpy()
            label = torch.from_numpy(connected_components(mutual, directed=False)[1].astype(np.int64))
        met = state.met.index_fill(0, who, True)
        return FederatedClusteringState(models, velocity, members, label, met, _mean(models, met, state.mean))

    def _descended(self, state: FederatedClusteringState, reply: Reply) -> FederatedClusteringState:
        """After a local step. The step of a client is −η times its velocity, so that nobody needs to send the velocity."""
        models, velocity = _put(state.models, reply), state.velocity
        if self.momentum:
            who = torch.from_numpy(reply.clients)
            velocity = {
                k: t.index_copy(0, who, (state.models[k][who] - models[k][who]) / self.lr) for k, t in velocity.items()
            }
        models, velocity = _finite(state, models, velocity)
        met = state.met.index_fill(0, torch.from_numpy(reply.clients), True)
        return replace(state, models=models, velocity=velocity, met=met, mean=_mean(models, met, state.mean))

    # ---- client ------------------------------------------------------------------------------------------------------

    def gradient(self, ctx: Context, model: Params, mine: Tensor) -> Up:
        batch = ctx.minibatch(self.batch_size)
        grad, loss = torch.func.grad_and_value(batch.loss)(model)
        return Up(send={"grad": grad}, info={"loss": torch.where(mine, loss, torch.nan)})

    def descend(self, ctx: Context, model: Params, velocity: Params | None = None) -> Up:
        model, loss = self.local.fit(ctx, model)
        if velocity is not None:
            model = {k: t - self.lr * self.momentum * velocity[k] for k, t in model.items()}
        return Up(send={"model": model}, info={"loss": loss})

    def cluster(self, ctx: Context, state: FederatedClusteringState) -> Tensor:
        label: Tensor = take(state.label, ctx.index)
        return label

    def personal(self, ctx: Context, state: FederatedClusteringState) -> Params:
        met = take(state.met, ctx.index) | ~state.met.any()
        model: Params = tree_map(lambda m, mean: torch.where(met, m, mean), take(state.models, ctx.index), state.mean)
        return model


def _rows(models: Params, clients: Ints) -> Params:
    rows: Params = take(models, torch.from_numpy(clients))
    return rows


def _mean(models: Params, met: Tensor, before: Params) -> Params:
    """The mean of the models that have moved; once all have, nobody needs it and it stays."""
    return before if bool(met.all()) else {k: t[met].mean(0) for k, t in models.items()}


def _finite(state: FederatedClusteringState, models: Params, velocity: Params) -> tuple[Params, Params]:
    """A client whose model or velocity would no longer be finite keeps its old ones."""
    good = finite_rows(models) & finite_rows(velocity)
    if bool(good.all()):
        return models, velocity
    return _where(good, models, state.models), _where(good, velocity, state.velocity)


def _where(good: Tensor, new: Params, old: Params) -> Params:
    """The new rows where they are good, else the old ones."""
    return {k: torch.where(good.reshape(-1, *[1] * (t.dim() - 1)), t, old[k]) for k, t in new.items()}


def _put(models: Params, reply: Reply) -> Params:
    where = torch.from_numpy(reply.clients)
    return {k: t.index_copy(0, where, reply.values["model"][k]) for k, t in models.items()}
