"""Where IFCA's k models start: from the clients' first updates.

The paper draws k random models, and after a bad draw two groups share one model for ever. `WarmStart` uses the clients'
updates instead. Every client takes full-batch steps from *one* common model (the probe), and the server groups the updates
by average linkage on their cosine distance. Groups of very different sizes are found, where k-means halves the largest.

Two cuts of the tree are candidates: at k groups, and at k groups of at least two clients, because an odd client can take a
group for itself. The k-means groups are a third, for updates that differ in length and not in direction. Where clients
differ much in size, the two cuts of the largest half and quarter are candidates too: updates from a handful of rows are
mostly noise. Candidates that differ are each trained for four ordinary rounds, and the one with the smallest loss over all
rows is kept. All clients are asked, not only the first cohort (in larger federations a thousand clients, or a cohort if that
is more), because a small sample may miss a group. The probe's uploads are seen individually, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.aggregation.linkage import cosine_distances, cut, cut_without_loners, relabelled
from coterie.aggregation.update_kmeans import kmeans_rows
from coterie.algorithms.ifca.algorithm_2 import Algorithm2
from coterie.algorithms.ifca.cluster_models import IFCAState
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.tree import Params, flat_vector, joined, row, stack, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Reply, SumBy, Up

_STARTERS = 1000  # clients asked for the start: the tree needs a table of n × n numbers
_TRIAL_ROUNDS = 4  # after two rounds the k-means halves of a large group sometimes still have the smaller loss
_UNEQUAL = 4  # how many times the lower quartile of the sizes the upper one must be for size to matter
_SHARES = (1.0, 0.5, 0.25)  # of the clients, the largest, whose updates are grouped then


class Rounds(Protocol):
    """What advances IFCA's state by a round."""

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]: ...


@guarded
@dataclass(frozen=True)
class FromUpdates:
    """Start from updates: `probe_steps` full-batch steps of every client tell which clients belong together."""

    probe_steps: int = 40


@dataclass(frozen=True)
class WarmStart:
    """The first round of a run that starts from updates. `trial` makes the trial rounds, those of `plain` or others."""

    plain: Algorithm2
    trial: Rounds
    setting: FromUpdates

    # ---- server ------------------------------------------------------------------------------------------------------

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        """The state with its k models started; as it was when no client answers, so that the next round tries again."""
        if not len(cohort.clients):
            return state
        down = {"model": tree_map(lambda t: t[0], state.models), "shared": state.shared}
        order = randomness.bits(cohort.key("who starts"), len(state.identity)).argsort().numpy()
        asked = np.sort(order[: max(_STARTERS, len(cohort.clients))])
        reply = yield Ask(self.probe, asked, down, updates={"model": From("model", "shared")}, auxiliary=("rows",))
        if not len(reply.clients):
            return state
        return (yield from self.from_probes(state, reply, replace(cohort, clients=reply.clients)))

    def from_probes(self, state: IFCAState, reply: Reply, cohort: Cohort) -> Exchange[IFCAState]:
        """The start from what the clients of the cohort answered."""
        local = reply.values["model"]
        updates = flat_vector({name: local[name] - state.models[name][:1] for name in state.models}, 1)
        starts = [
            self._started(state, local, label) for label in self._candidates(updates, reply.values["rows"], cohort)
        ]
        return starts[0] if len(starts) == 1 else (yield from self._better(starts, cohort))

    def _candidates(self, updates: Tensor, rows: Tensor, cohort: Cohort) -> list[Tensor]:
        """Different groupings of the clients that answered; −1 for a client that a grouping leaves out."""
        n = len(updates)
        k = min(self.plain.clusters, n)  # with fewer clients than clusters some models keep their random start
        distance = cosine_distances(updates)
        sizes = rows.double().numpy()
        by_size = np.argsort(-sizes, kind="stable")
        unequal = np.quantile(sizes, 0.75) >= _UNEQUAL * np.quantile(sizes, 0.25)
        found: dict[bytes, Tensor] = {}
        by_length = relabelled(kmeans_rows(updates, k, seed=int(cohort.key("start")) & 0x7FFFFFFF))
        for share in _SHARES if unequal else (1.0,):
            members = np.sort(by_size[: max(int(np.ceil(share * n)), k)])
            for grouping in (cut, cut_without_loners):
                label = np.full(n, -1)
                label[members] = grouping(distance[np.ix_(members, members)], k)
                found.setdefault(label.tobytes(), torch.from_numpy(label))
        found.setdefault(by_length.tobytes(), torch.from_numpy(by_length))
        return list(found.values())

    def _started(self, state: IFCAState, local: Params, label: Tensor) -> IFCAState:
        """Every group's model is the mean of its members' models."""
        models = {name: t.clone() for name, t in state.models.items()}
        for j in range(int(label.max()) + 1):
            for name, t in models.items():
                t[j] = local[name][label == j].mean(0)
        shared = {name: local[name].mean(0) for name in state.shared}
        return replace(state, models=models, shared=shared, started=True)

    def _better(self, starts: list[IFCAState], cohort: Cohort) -> Exchange[IFCAState]:
        """The start whose models fit the clients best after four rounds, as it was before them.

        Keeping these rounds would give a run with a doubtful start more training than one with a clear start."""
        ends = []
        for trained in starts:
            for _ in range(_TRIAL_ROUNDS):
                trained = yield from self.trial.round(trained, cohort)
            ends.append(trained)
        down = {"models": stack([end.models for end in ends]), "shared": stack([end.shared for end in ends])}
        reply = yield Ask(self.best_losses, cohort.clients, down, reduce=SumBy(), auxiliary=("losses",))
        return starts[int(reply.values["losses"][0].argmin())] if len(reply.clients) else starts[0]

    # ---- client ------------------------------------------------------------------------------------------------------

    def probe(self, ctx: Context, model: Params, shared: Params) -> Up:
        """Full-batch steps from the common model: mini-batches would add noise to the direction."""
        local = self.plain.option.local
        count = max(self.setting.probe_steps, local.steps or 0)
        steps = local.but(steps=count, epochs=None, batch_size=None)
        part = self.plain.rows.to_train(ctx)
        trained, loss = steps.fit(part, joined(model, shared, ctx.initial))
        return Up(send={"model": trained, "rows": part.mask.sum()}, info={"loss": loss})

    def best_losses(self, ctx: Context, models: Params, shared: Params) -> Up:
        """For each start, the summed loss of the client's best model over the rows it may use. One question for all starts,
        so that they are judged by the same clients, also if answers are lost."""
        part, (starts, count) = self.plain.rows.to_train(ctx), next(iter(models.values())).shape[:2]
        best = [
            torch.stack(
                [part.loss(joined(row(row(models, s), j), row(shared, s), ctx.initial)) for j in range(count)]
            ).min()
            for s in range(starts)
        ]
        return Up(send={"losses": torch.stack(best) * part.mask.sum()})
