"""FedBN: federated averaging of everything except batch normalisation, which every client keeps.

"FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (Xiaoxiao Li, Meirui Jiang, Xiaofei Zhang,
Michael Kamp, Qi Dou, 2021, https://arxiv.org/abs/2102.07623), Algorithm 1: the server averages layer by layer and leaves out
the normalising layers. With `keep="statistics"` the layers' weights are averaged too and only the running means and
variances stay on the client: "Siloed Federated Learning for Multi-Centric Histopathology Datasets" (Mathieu Andreux, Jean
Ogier du Terrail, Constance Beguier, Eric W. Tramel, 2020, https://arxiv.org/abs/2008.07424).

A client that has never taken part has no layers of its own yet: it predicts with the common part and with normalising layers
trained once on its own data, the common part held fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coterie.algorithms.families import Trained
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, joined, named_like, names, row, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class FedBNState:
    common: Params


@guarded
@dataclass(frozen=True, kw_only=True)
class FedBN(Trained):
    """`keep` is what stays on the clients: "layers" (all of every BatchNorm layer), "statistics" (its running means and
    variances alone), or names of parts of the network."""

    way = "shrunk"
    carries_statistics = True
    keeps_optimiser = True

    keep: str | Sequence[str] = "layers"

    @classmethod
    def example(cls) -> FedBN:
        return cls(keep=("0", "1", "bias"))

    def __post_init__(self) -> None:
        if self.keep not in ("layers", "statistics"):
            object.__setattr__(self, "keep", names(self.keep, "FedBN", "keep"))

    def own(self, task: Task, params: Params) -> Params:
        """The part of a model that stays on the client."""
        if self.keep in ("layers", "statistics"):
            kept = task.normalising if self.keep == "layers" else task.statistics
            return {name: t for name, t in params.items() if name in kept}
        return named_like(params, self.keep)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedBNState:
        own = self.own(task, start)
        if not own:
            raise ConfigError(
                f"FedBN keeps normalising layers on the clients (keep={self.keep!r}); this network has none such. "
                f"Add nn.BatchNorm, or name parts of it: {', '.join(start)}."
            )
        if len(own) == len(start):
            raise ConfigError("FedBN keeps all of this network on the clients. Use Local, or keep less.")
        return FedBNState({name: t for name, t in start.items() if name not in own})

    def client(self, ctx: Context) -> Tree:
        own = {"own": self.own(ctx.task, ctx.initial), "taken part": torch.zeros((), dtype=torch.bool)}
        return own | self.local.first_memory(ctx, ctx.initial)

    def round(self, state: FedBNState, cohort: Cohort) -> Exchange[FedBNState]:
        reply = yield Ask(
            self.train,
            cohort.clients,
            {"common": state.common},
            reduce=MeanBy(),
            updates={"common": From("common")},
        )
        return FedBNState(row(reply.values["common"], 0)) if len(reply.clients) else state

    def train(self, ctx: Context, common: Params) -> Up:
        model, loss, memory = self.local.fit_on(ctx, self._whole(ctx, common))
        sent = {name: model[name] for name in common}
        kept = {"own": self.own(ctx.task, model), "taken part": torch.ones((), dtype=torch.bool), **memory}
        return Up(send={"common": sent}, weight=ctx.n, state=kept, info={"loss": loss})

    def _whole(self, ctx: Context, common: Params) -> Params:
        return joined(common, ctx.state["own"], ctx.initial)

    def personal(self, ctx: Context, state: FedBNState) -> Params:
        model = self._whole(ctx, state.common)
        learns = [name for name in ctx.state["own"] if name not in ctx.task.statistics]
        anything = learns or [name for name in model if name not in ctx.task.statistics]
        met, _ = self.local.fit(ctx, model, train=anything)
        fresh = model | {name: met[name] for name in ctx.state["own"]}
        met_before = ctx.state["taken part"]
        chosen: Params = tree_map(lambda mine, new: torch.where(met_before, mine, new), model, fresh)
        return chosen
