"""SCAFFOLD: one model for all, whose clients correct their steps by control variates.

"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (Sai Praneeth Karimireddy, Satyen Kale, Mehryar
Mohri, Sashank J. Reddi, Sebastian U. Stich, Ananda Theertha Suresh, 2020, https://arxiv.org/abs/1910.06378).

Symbols of Algorithm 1: x → model, c → control, c_i → the client's state, K and η_l → local, η_g → server_lr. Clients
count alike, as printed. c_i is renewed by option II, (x − y_i)/(Kη_l) + c_i − c (line 12), or by option I, the
gradient at x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.algorithms.families import Trained
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, row, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task
from coterie.learning.update_rules import Momentum


@dataclass(frozen=True)
class ScaffoldState:
    model: Params
    control: Params
    clients: int


@guarded
@dataclass(frozen=True, kw_only=True)
class Scaffold(Trained):
    """`server_lr` is the server's step; `option` says how control variates are renewed."""

    way = "together"

    server_lr: float = 1.0
    option: Literal["I", "II"] = "II"

    def __post_init__(self) -> None:
        rule = self.local.rule
        if self.option == "II" and not (isinstance(rule, Momentum) and not rule.momentum):
            raise ConfigError("Scaffold's option II needs plain steps; got momentum or Adam. Use option='I'.")

    def init(self, task: Task, population: Population, seed: int, start: Params) -> ScaffoldState:
        return ScaffoldState(start, tree_map(torch.zeros_like, start), population.n_clients)

    def client(self, ctx: Context) -> Tree:
        return {"control": tree_map(torch.zeros_like, ctx.initial)}

    def round(self, state: ScaffoldState, cohort: Cohort) -> Exchange[ScaffoldState]:
        reply = yield Ask(
            self.train,
            cohort.clients,
            {"model": state.model, "control": state.control},
            reduce=MeanBy(),
            updates={"model": From("model"), "control": None},
        )
        if not len(reply.clients):
            return state
        mean, share = row(reply.values, 0), float(reply.count.sum()) / state.clients
        model = tree_map(lambda x, y: x + self.server_lr * (y - x), state.model, mean["model"])  # line 16
        control = tree_map(lambda c, d: c + share * d, state.control, mean["control"])  # line 17
        return ScaffoldState(model, control, state.clients)

    def train(self, ctx: Context, model: Params, control: Params) -> Up:
        old = ctx.state["control"]
        gap = tree_map(lambda c, own: c - own, control, old)
        trained, loss = self.local.fit(ctx, model, correct=gap)  # line 10
        if self.option == "I":
            new = ctx.grad(model)
        else:
            length = self._length(ctx)
            new = tree_map(lambda x, y, g: (x - y) / length - g, model, trained, gap)
        moved = tree_map(lambda a, b: a - b, new, old)
        return Up(send={"model": trained, "control": moved}, state={"control": new}, info={"loss": loss})

    def _length(self, ctx: Context) -> Tensor | float:
        """Kη_l: the sum of the learning rates of the client's steps."""
        lr, factor = self.local.lr * self.local.decay**ctx.round, self.local.schedule
        most = self.local.steps or (self.local.epochs or 1) * -(
            -len(ctx.mask) // (self.local.batch_size or len(ctx.mask))
        )
        rates = [lr if factor is None else lr * factor(ctx.round, s) for s in range(most)]
        if self.local.steps is not None:
            return sum(rates)
        taken = (self.local.epochs or 1) * torch.ceil(ctx.n / (self.local.batch_size or len(ctx.mask)))
        return (ctx.mask.new_tensor(rates) * (torch.arange(most) < taken)).sum()

    def personal(self, ctx: Context, state: ScaffoldState) -> Params:
        return state.model
