"""FedBABU: clients train the body alone under a random head that nobody changes, and fine-tune at the end.

"FedBABU: Towards Enhanced Representation for Federated Image Classification" (Jaehoon Oh, Sangmook Kim, Se-Young Yun,
2022, https://arxiv.org/abs/2106.06042).

Algorithm 1: a client trains the extractor θ_ext with the head θ_cls at its first values (the head's learning rate is
0), and the server averages extractors by numbers of samples. Evaluation: the common model, fine-tuned by the client on
its own data; `tune` are these steps and `part` says what they move. The paper fine-tunes everything, and finds the head
alone nearly as good and the body alone worse. Since nothing personal is kept during training, a client that never took
part is treated like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.algorithms.families import CommonState, SharingPart
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, names
from coterie.errors import ConfigError
from coterie.exchange.messages import Context, Population, Up
from coterie.learning.body_and_head import split
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class FedBABU(SharingPart):
    """`head` names parts of the network; by default its last layer. `tune` are the steps at the end; by default as in
    training, with the `part` that they move: "all", "head" or "body"."""

    way = "shrunk"
    keeps_optimiser = False

    head: Sequence[str] = ()
    tune: LocalSteps | None = None
    part: Literal["all", "head", "body"] = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", names(self.head, "FedBABU", "head"))

    def own(self, task: Task, params: Params) -> Params:
        return split(params, self.head)[1]

    def init(self, task: Task, population: Population, seed: int, start: Params) -> CommonState:
        state = super().init(task, population, seed, start)
        if not state.common:
            raise ConfigError(
                f"FedBABU trains a network's body, and all of this network is its head ({', '.join(start)}). "
                "Use a network of two layers or more, or FedAvg."
            )
        return state

    def client(self, ctx: Context) -> Tree:
        return {}

    def train(self, ctx: Context, common: Params) -> Up:
        model, loss = self.local.fit(ctx, ctx.initial | common, train=list(common))
        return Up(send={"common": {name: model[name] for name in common}}, weight=ctx.n, info={"loss": loss})

    def personal(self, ctx: Context, state: CommonState) -> Params:
        model = ctx.initial | state.common
        moved = {"all": list(model), "head": [n for n in model if n not in state.common], "body": list(state.common)}
        return (self.tune or self.local).fit(ctx, model, train=moved[self.part])[0]
