"""When IFCA stops sending all k models (C-1s): once everybody asked has kept its cluster for a while.

From then on a client is sent only its own cluster's model, which saves a factor k of the bytes down. `reopen_every`
broadcasts all models again from time to time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.algorithms.ifca_state import IFCAState
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, Reply, Up
from coterie.tree import Tree


@dataclass(frozen=True)
class EarlyStop:
    """`after` participations without a change of cluster close the broadcast; every `reopen_every` rounds it opens."""

    after: int | None
    reopen_every: int | None

    # ---- server ------------------------------------------------------------------------------------------------------

    def known(self, state: IFCAState, cohort: Cohort) -> Tensor:
        """The cluster of every client of the cohort where the server knows it and need not broadcast, else −1."""
        reopens = self.reopen_every is not None and cohort.round % self.reopen_every == 0
        clusters = state.identity[torch.from_numpy(cohort.clients)]
        return clusters if state.closed and not reopens else torch.full_like(clusters, -1)

    def after_round(self, state: IFCAState, reply: Reply) -> Exchange[IFCAState]:
        """Close the broadcast when nobody is restless, reopen it when somebody is."""
        if not len(reply.clients) or float(reply.values["restless"].sum()) > 0:
            return replace(state, closed=False, identity=torch.full_like(state.identity, -1)) if state.closed else state
        answer = yield Ask(self.report, reply.clients, auxiliary=("cluster",))  # eight bytes per client, once
        if not len(answer.clients):
            return state
        identity = state.identity.clone()
        identity[torch.from_numpy(answer.clients)] = answer.values["cluster"]
        return replace(state, closed=True, identity=identity)

    # ---- client ------------------------------------------------------------------------------------------------------

    def client(self) -> Tree:
        """What a client remembers: its cluster, and in how many participations it has not changed."""
        return {} if self.after is None else {"cluster": torch.tensor(-1), "steady": torch.tensor(0)}

    def remember(self, ctx: Context, cluster: Tensor) -> tuple[Tree, Tree | None]:
        """What the client sends besides its update, and its new memory."""
        if self.after is None:
            return {}, None
        steady = torch.where(ctx.state["cluster"] == cluster, ctx.state["steady"] + 1, 0)
        return {"restless": (steady < self.after).long()}, {"cluster": cluster, "steady": steady}

    def report(self, ctx: Context) -> Up:
        """The client's cluster, sent once."""
        return Up(send={"cluster": ctx.state["cluster"]})
