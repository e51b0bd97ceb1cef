"""FedProto: clients share mean features of each class, never a model.

"FedProto: Federated Prototype Learning across Heterogeneous Clients" (Yue Tan, Guodong Long, Lu Liu, Tianyi Zhou,
Qinghua Lu, Jing Jiang, Chengqi Zhang, 2022, https://arxiv.org/abs/2105.00243).

Symbols of Algorithm 1: C_i^(j), the client's mean features of class j; C̄^(j) → sums/shares, the common ones; λ → lam.
A client minimises its loss + λ · (the distance of its features from the common prototypes of their classes) and sends
its own prototypes; its model stays. C̄^(j) is the mean over all samples of class j that were met; a class not met keeps
the former. Features are what enters the last layer.

Equation 6 divides this mean by the number of clients once more, which no code does; the authors' code and PFLlib
average clients' prototypes without weights. The distance is the mean square over features, as in both. PFLlib collects
prototypes while the model moves; here, as printed, they are computed after the steps. A client predicts with its own
head; the paper also predicts by the nearest prototype. A client that never took part trains from the start, towards the
prototypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.algorithms.families import Trained, keep, own_or, unseen
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative
from coterie.base.tree import Params, Tree, row
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, MeanBy, Population, Up
from coterie.learning.task import Task

_PRESENT = 1e-9  # a class with a smaller share of all samples was not met


@dataclass(frozen=True)
class FedProtoState:
    sums: Tensor  # (classes, features): the mean over all samples of their features, by class
    shares: Tensor  # (classes,): the share of all samples


@guarded
@dataclass(frozen=True, kw_only=True)
class FedProto(Trained):
    """`lam` is λ, the weight of the distance from the common prototypes."""

    way = "shrunk"
    newcomers = "They are scored with a model that they train alone, towards the others' prototypes."

    lam: NotNegative = 1.0

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedProtoState:
        if population.classes is None or task.loss != "cross_entropy":
            raise ConfigError(
                "FedProto needs classes, and the loss cross_entropy. In a private run declare them public: "
                "federation.declare_public('classes')."
            )
        like = next(iter(start.values()))
        classes = len(population.classes)
        return FedProtoState(like.new_zeros(classes, population.width(task, start)), like.new_zeros(classes))

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def round(self, state: FedProtoState, cohort: Cohort) -> Exchange[FedProtoState]:
        down = {"sums": state.sums, "shares": state.shares}
        reply = yield Ask(
            self.train, cohort.clients, down, reduce=MeanBy(), updates={"sums": None, "shares": None}, known=down
        )
        if not len(reply.clients):
            return state
        new = row(reply.values, 0)
        met = new["shares"] > _PRESENT
        return FedProtoState(
            torch.where(met.unsqueeze(1), new["sums"], state.sums), torch.where(met, new["shares"], state.shares)
        )

    def train(self, ctx: Context, sums: Tensor, shares: Tensor) -> Up:
        model, loss = self._steps(ctx, FedProtoState(sums, shares))
        return Up(send=prototypes(ctx, model, len(shares)), weight=ctx.n, state=keep(model), info={"loss": loss})

    def _steps(self, ctx: Context, state: FedProtoState) -> tuple[Params, Tensor]:
        return self.local.fit(ctx, ctx.state["model"], extra=distance_to(state.sums, state.shares, self.lam))

    def personal(self, ctx: Context, state: FedProtoState) -> Params:
        return own_or(ctx, self._steps(ctx, state)[0])


def prototypes(ctx: Context, model: Params, classes: int) -> Tree:
    """The client's mean over samples of their features, by class, and each class's share."""
    of = F.one_hot(ctx.y, classes).to(ctx.mask.dtype) * (ctx.mask / ctx.mask.sum().clamp(min=1)).unsqueeze(1)
    return {"sums": of.T @ ctx.features(model), "shares": of.sum(0)}


def distance_to(sums: Tensor, shares: Tensor, weight: float) -> Callable[[Params, Context], Tensor]:
    """A loss term: how far a batch's features are from the prototypes of their classes, where these are known."""
    met = (shares > _PRESENT).to(sums.dtype)
    known = sums / shares.clamp(min=_PRESENT).unsqueeze(1)

    def distance(params: Params, batch: Context) -> Tensor:
        square = (batch.features(params) - known[batch.y]).square().mean(1)
        return weight * (square * met[batch.y] * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    return distance
