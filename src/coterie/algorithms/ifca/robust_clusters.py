"""IFCA with liars: a robust rule in every cluster, and a start that a few liars cannot spoil.

`RobustRounds` are those of Algorithm 2 in which line 15 is a robust rule over the models of a cluster's members. The server
sees every client's model and cluster. A rule's number of liars is the number in the whole cohort, and each cluster gets its
proportion (`for_group`). Liars control a cluster in which they are the majority: clients claim their groups, so the server
does not know true sizes.

`RobustWarmStart` starts from the same probe as `WarmStart`:
1. Average linkage until 3k groups have at least two clients; single clients are ignored. Liars that agree form some groups.
2. Every group's start is the coordinate-wise median of its members' updates, clipped to the median length of all.
3. Two robust rounds train these models. Then every client sends its loss on each of them.
4. One by one, the model whose users lose least without it is dropped, until k are left. A client's loss counts at most as
   much as the median client's largest, so no client gains influence by claiming huge losses, and liars' models go first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.aggregation import Aggregator, Median, aggregated, for_group
from coterie.aggregation.linkage import cosine_distances, pairs_or_more
from coterie.algorithms.ifca.algorithm_2 import Algorithm2
from coterie.algorithms.ifca.cluster_models import IFCAState
from coterie.algorithms.ifca.warm_start import WarmStart
from coterie.base import randomness
from coterie.base.tree import Params, flat_vector, joined, like_vector, row, take
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Reply, Up

Array = npt.NDArray[np.float64]
_SPARE = 3  # start models per cluster, before they are joined
_ROUNDS = 2


@dataclass(frozen=True)
class RobustRounds:
    """The rounds of Algorithm 2 with the rule `aggregate` in every cluster."""

    plain: Algorithm2
    aggregate: Aggregator

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        """A cluster that is empty, or too small for the rule, keeps its model."""
        down = {"models": state.models, "shared": state.shared}
        updates = {"model": From("shared", groups="models")}
        reply = yield Ask(self.train_and_tell, cohort.clients, down, updates=updates, auxiliary=("cluster",))
        if not len(reply.clients):
            return state
        key, asked = cohort.key("aggregate"), len(cohort.clients)
        self.aggregate(torch.zeros(asked, 1), key=key)  # a rule that cannot work with this cohort raises its error here
        models = {name: t.clone() for name, t in state.models.items()}
        for j in range(len(next(iter(models.values())))):
            mine = (reply.values["cluster"] == j).nonzero().squeeze(-1)
            if not len(mine):
                continue
            rule = for_group(self.aggregate, len(mine), asked)
            new = aggregated(
                rule,
                take(reply.values["model"], mine),
                reply.weight[mine],
                asked,
                key=randomness.fold(key, j),
                start=row(state.models, j),
            )
            for name, t in (new or {}).items():
                models[name][j] = t
        return replace(state, models=models)

    def train_and_tell(self, ctx: Context, models: Params, shared: Params) -> Up:
        """The client's model and its cluster, which the server must know."""
        up = self.plain.train(ctx, models, shared)
        return replace(up, send=up.send | {"cluster": up.group})


@dataclass(frozen=True)
class RobustWarmStart(WarmStart):
    """`trial` makes robust rounds here."""

    def from_probes(self, state: IFCAState, reply: Reply, cohort: Cohort) -> Exchange[IFCAState]:
        first = row(state.models, 0)
        updates = flat_vector({name: reply.values["model"][name] - first[name] for name in first}, 1)
        label = torch.from_numpy(pairs_or_more(cosine_distances(updates), _SPARE * self.plain.clusters))
        clipped = _clipped(updates)
        middles = torch.stack([Median()(clipped[label == j]) for j in range(int(label.max()) + 1)])
        many = {name: t + first[name] for name, t in like_vector(middles, first, 1).items()}
        trained = replace(state, models=many, started=True)
        for _ in range(_ROUNDS):
            trained = yield from self.trial.round(trained, cohort)
        ask = Ask(self.all_losses, cohort.clients, {"models": trained.models}, auxiliary=("losses",))
        told = yield ask
        if not len(told.clients):
            return state
        kept = torch.tensor(fewest_regrets(told.values["losses"].double().numpy(), self.plain.clusters))
        models = {
            name: t.index_copy(0, torch.arange(len(kept)), trained.models[name][kept])
            for name, t in state.models.items()
        }
        return replace(state, models=models, started=True)

    def all_losses(self, ctx: Context, models: Params) -> Up:
        """The client's loss on every model."""
        part, count = self.plain.rows.to_train(ctx), len(next(iter(models.values())))
        losses = [part.loss(joined(row(models, j), {}, ctx.initial)) for j in range(count)]
        return Up(send={"losses": torch.stack(losses)})


def _clipped(updates: Tensor) -> Tensor:
    """The updates, clipped to the length of the median one."""
    norms = updates.double().norm(dim=1)
    scale = (norms.median() / norms.clamp(min=1e-300)).clamp(max=1)
    clipped: Tensor = (updates.double() * scale.unsqueeze(1)).to(updates.dtype)
    return clipped


def fewest_regrets(losses: Array, k: int) -> list[int]:
    """Steps 3 and 4: the k models that stay, given every client's loss (row) on every model (column).

    A client's regret is how much worse its best model among those that stay is than its best of all."""
    regret = losses - losses.min(1, keepdims=True)
    regret = np.minimum(regret, np.median(regret.max(1)))
    stay = list(range(losses.shape[1]))
    while len(stay) > k:
        without = [regret[:, [j for j in stay if j != gone]].min(1).sum() for gone in stay]
        stay.pop(int(np.argmin(without)))
    return stay
