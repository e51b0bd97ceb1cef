"""FedRep: a common body, and a separate head per client.

"Exploiting Shared Representations for Personalized Federated Learning" (Liam Collins, Hamed Hassani, Aryan Mokhtari,
Sanjay Shakkottai, 2021, https://arxiv.org/abs/2102.07078).

Symbols of Algorithm 1: φ → the body, h_i → the head, in the client's state. A client takes its steps on the head with
the body fixed (lines 6–8), then on the body with the head fixed (line 9); the server averages bodies. A client's model
is the newest body with its head trained once more on it; a client that never took part gets its model in the same way. A
network of one layer is all head: then every client trains alone. Clients count by their samples, as in FedAvg; the paper
counts them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.algorithms.families import Trained
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, joined, names, row
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.body_and_head import split
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task


@dataclass(frozen=True)
class FedRepState:
    body: Params


@guarded
@dataclass(frozen=True, kw_only=True)
class FedRep(Trained):
    """`head` names parts of the network, such as ["4"]; by default its last layer. `head_local` are the head's steps; by
    default as the body's."""

    way = "shrunk"
    carries_statistics = True

    head: Sequence[str] = ()
    head_local: LocalSteps | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", names(self.head, "FedRep", "head"))

    def own(self, params: Params) -> Params:
        """The head's part of a model."""
        return split(params, self.head)[1]

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedRepState:
        return FedRepState(split(start, self.head)[0])

    def client(self, ctx: Context) -> Tree:
        return {"head": self.own(ctx.initial)}

    def round(self, state: FedRepState, cohort: Cohort) -> Exchange[FedRepState]:
        updates = {"body": From("body")} if state.body else {}
        reply = yield Ask(self.train, cohort.clients, {"body": state.body}, reduce=MeanBy(), updates=updates)
        return FedRepState(row(reply.values["body"], 0)) if len(reply.clients) and state.body else state

    def train(self, ctx: Context, body: Params) -> Up:
        model = self._with_head(ctx, body)
        if not body:
            return Up(send={}, state={"head": model}, info={"loss": ctx.loss(model)})
        model, loss = self.local.fit(ctx, model, train=list(body))
        sent = {name: model[name] for name in body}
        return Up(send={"body": sent}, weight=ctx.n, state={"head": self.own(model)}, info={"loss": loss})

    def _with_head(self, ctx: Context, body: Params) -> Params:
        """The body with the client's head, after the head's steps."""
        head = ctx.state["head"]
        return (self.head_local or self.local).fit(ctx, joined(body, head, ctx.initial), train=list(head))[0]

    def personal(self, ctx: Context, state: FedRepState) -> Params:
        return self._with_head(ctx, state.body)
