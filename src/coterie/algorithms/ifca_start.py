"""Where IFCA's k models start.

The paper draws k random models; a bad draw lets two groups share one model for good. `FromUpdates` takes the clients' word
instead: every client takes its local steps once from *one* common model, and the k models start from the k-means groups of
these updates. Everybody is asked, whoever is in the first cohort (a thousand clients or a cohort, if that is more, of larger
federations), because a few clients may miss a group. It costs one round of uploads, which the server sees individually.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from coterie import randomness
from coterie.aggregation.kmeans import kmeans_rows
from coterie.algorithms.ifca_state import IFCAState, merge
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.tree import Params, flat_vector, tree_map

_STARTERS = 1000  # clients asked for the start: k-means needs a table of n × n numbers


@dataclass(frozen=True)
class FromUpdates:
    """One common model, one individual ask to everybody, k-means of the updates, one mean per group."""

    clusters: int
    local: LocalSGD

    def spread(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        """The state with its k models started; as it was when nobody answers, so that the next round tries again."""
        if not len(cohort.clients):
            return state
        down = {"model": tree_map(lambda t: t[0], state.models), "shared": state.shared}
        order = randomness.bits(cohort.key("who starts"), len(state.identity)).argsort().numpy()
        asked = np.sort(order[: max(_STARTERS, len(cohort.clients))])
        reply = yield Ask(self.probe, asked, down, updates={"model": From("model", "shared")})
        if not len(reply.clients):
            return state
        local = reply.values["model"]
        updates = {name: local[name] - state.models[name][:1] for name in state.models}
        found = min(self.clusters, len(reply.clients))  # with fewer clients some models keep their random start
        seed = int(cohort.key("start")) & 0x7FFFFFFF
        label = torch.from_numpy(kmeans_rows(flat_vector(updates, 1), found, seed=seed))
        models = {name: t.clone() for name, t in state.models.items()}
        for j in range(found):
            for name, t in models.items():
                t[j] = local[name][label == j].mean(0) if bool((label == j).any()) else t[j]
        shared = {name: local[name].mean(0) for name in state.shared}
        return replace(state, models=models, shared=shared, started=True)

    def probe(self, ctx: Context, model: Params, shared: Params) -> Up:
        """A client's local steps from the common model."""
        trained, loss = self.local.fit(ctx, merge(model, shared, ctx.initial))
        return Up(send={"model": trained}, info={"loss": loss})


def first_models(draws: list[Params], shared: Params) -> Params:
    """The clusters' own parts of k whole models, stacked; empty when everything is shared."""
    return {name: torch.stack([d[name] for d in draws]) for name in draws[0] if name not in shared}
