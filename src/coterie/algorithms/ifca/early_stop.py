"""When IFCA stops sending all k models (section 4.3, C-1s): once no client asked has changed its cluster for a while.

From then on a client is sent only its own cluster's model, which saves a factor k of the bytes down. Clients whose cluster
the server does not know still get all models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.algorithms.ifca.algorithm_2 import Algorithm2
from coterie.algorithms.ifca.cluster_models import IFCAState
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, joined, take, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Reply, SumBy, Up


@guarded
@dataclass(frozen=True)
class EarlyStop:
    """A client is sent only its own cluster's model once no client has changed cluster in its last `after` participations;
    `reopen_every=Q` sends all models again every Q rounds."""

    after: int
    reopen_every: int | None = None


@dataclass(frozen=True)
class StoppingRounds:
    """The rounds of Algorithm 2 with an early stop of the broadcast."""

    plain: Algorithm2
    stop: EarlyStop

    # ---- server ------------------------------------------------------------------------------------------------------

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        """A client whose cluster is settled is sent one model and skips line 6; the sums of both kinds are added."""
        known = self._known(state, cohort)
        replies: list[Reply] = []
        asked, settled = (cohort.clients[mask.numpy()] for mask in (known < 0, known >= 0))
        if len(asked) or not len(settled):  # a private run answers an empty cohort, too: with noise
            down = {"models": state.models, "shared": state.shared}
            replies.append((yield self._ask(Ask(self.train, asked, down), From("shared", groups="models"))))
        if len(settled):
            each = {"model": take(state.models, known[known >= 0])}  # the client has kept its cluster
            own = Ask(self.train_own, settled, {"shared": state.shared}, each)
            replies.append((yield self._ask(own, From("model", "shared"))))
        answered = [r for r in replies if len(r.clients)]
        if answered:
            total: Tree = tree_map(lambda *ts: torch.stack(ts).sum(0), *[r.values for r in answered])
            state = self.plain.update(state, total, torch.stack([r.weight for r in answered]).sum(0))
        return (yield from self._after(state, replies[0])) if len(asked) else state

    def _ask(self, ask: Ask, origin: From) -> Ask:
        """`optional`, because the other ask of the round may be answered."""
        sends = self.plain.option.sends
        updates = {sends: origin if sends == "model" else None}
        return replace(ask, reduce=SumBy(self.plain.clusters), updates=updates, auxiliary=("restless",), optional=True)

    def _known(self, state: IFCAState, cohort: Cohort) -> Tensor:
        """The cluster of every client of the cohort where the server knows it and need not broadcast, else −1."""
        reopens = self.stop.reopen_every is not None and cohort.round % self.stop.reopen_every == 0
        clusters = state.identity[torch.from_numpy(cohort.clients)]
        return clusters if state.closed and not reopens else torch.full_like(clusters, -1)

    def _after(self, state: IFCAState, reply: Reply) -> Exchange[IFCAState]:
        """Close the broadcast when no client is restless, reopen it when one is."""
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
        return {"cluster": torch.tensor(-1), "steady": torch.tensor(0)}

    def train(self, ctx: Context, models: Params, shared: Params) -> Up:
        """A client that got all models."""
        cluster = self.plain.choose(ctx, models, shared)
        return self._remembering(ctx, joined(take(models, cluster), shared, ctx.initial), cluster)

    def train_own(self, ctx: Context, model: Params, shared: Params) -> Up:
        """A client whose cluster is settled."""
        return self._remembering(ctx, joined(model, shared, ctx.initial), ctx.state["cluster"])

    def _remembering(self, ctx: Context, model: Params, cluster: Tensor) -> Up:
        steady = torch.where(ctx.state["cluster"] == cluster, ctx.state["steady"] + 1, 0)
        up = self.plain.work(ctx, model, cluster)
        also = {"restless": (steady < self.stop.after).long()}
        return replace(up, send=up.send | also, state={"cluster": cluster, "steady": steady})

    def report(self, ctx: Context) -> Up:
        """The client's cluster, sent once."""
        return Up(send={"cluster": ctx.state["cluster"]})
