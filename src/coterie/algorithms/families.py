"""What families of algorithms share: local steps, models by group, one averaged model, a client's own model or a part of it,
centres.

A robust `aggregate` replaces the mean. The server then needs every client's model (an individual ask) instead of their sum.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.aggregation import Aggregator, Mean, aggregated
from coterie.base.arguments import Count
from coterie.base.settings import cluster_count
from coterie.base.tree import Params, Tree, joined, like_vector, repeat, row, take, tree_map
from coterie.exchange.messages import Algorithm, Ask, Cohort, Context, Exchange, From, MeanBy, SumBy, Up
from coterie.exchange.server_knowledge import Ints, Population, one_per
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task


class InGroups(Algorithm):
    """Row j of the state's `models` is the model of group j, and `label` says in which group each client is; −1 stands for
    a client that was not met, which takes the model of smallest loss."""

    def personal(self, ctx: Context, state: Any) -> Params:
        model: Params = take(state.models, self.cluster(ctx, state))
        return model

    def cluster(self, ctx: Context, state: Any) -> Tensor:
        label: Tensor = take(state.label, ctx.index)
        if bool((state.label >= 0).all()):
            return label
        return torch.where(label >= 0, label, ctx.losses(state.models, len(next(iter(state.models.values())))).argmin())


@dataclass(frozen=True, kw_only=True)
class Trained(Algorithm):
    """Clients train by local steps. Clients with models of their own are groups of one."""

    local: LocalSteps = field(default_factory=LocalSGD, kw_only=False)

    def cluster(self, ctx: Context, state: Any) -> Tensor:
        return ctx.index if self.way in ("alone", "shrunk") else super().cluster(ctx, state)


# ---- one averaged model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedAvgState:
    model: Params
    velocity: Params


@dataclass(frozen=True, kw_only=True)
class Averaging(Trained):
    """The server averages one model; by default all clients use it."""

    aggregate: Aggregator = field(default_factory=Mean)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        return FedAvgState(start, {})

    def round(self, state: FedAvgState, cohort: Cohort) -> Exchange[FedAvgState]:
        mean = yield from self.average(state, cohort)
        return state if mean is None else FedAvgState(mean, {})

    def average(self, state: FedAvgState, cohort: Cohort) -> Exchange[Params | None]:
        """The clients' models after `train` aggregated to one model, or None if no client answered (for a robust rule: too
        few). All rules except the mean need to see each model."""
        down, updates = {"model": state.model}, {"model": From("model")}
        if isinstance(self.aggregate, Mean):
            reply = yield Ask(self.train, cohort.clients, down, reduce=MeanBy(), updates=updates)
            return row(reply.values["model"], 0) if len(reply.clients) else None
        reply = yield Ask(self.train, cohort.clients, down, updates=updates)
        if not len(reply.clients):
            return None
        key, sent = cohort.key("aggregate"), reply.values["model"]
        return aggregated(self.aggregate, sent, reply.weight, len(cohort.clients), key=key, start=state.model)

    def train(self, ctx: Context, model: Params) -> Up:
        model, loss, memory = self.local.fit_on(ctx, model)
        return Up(send={"model": model}, weight=ctx.n, state=memory or None, info={"loss": loss})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return state.model


# ---- a client's own model --------------------------------------------------------------------------------------------


def unseen(model: Params) -> Tree:
    """The state of a client with a personal model that was not sampled yet."""
    return {"model": model, "seen": next(iter(model.values())).new_zeros(())}


def keep(model: Params) -> Tree:
    return {"model": model, "seen": next(iter(model.values())).new_ones(())}


def own_or(ctx: Context, other: Params) -> Params:
    """The client's own model, or `other` if it has none yet."""
    seen = ctx.state["seen"] > 0
    chosen: Params = tree_map(lambda mine, theirs: torch.where(seen, mine, theirs), ctx.state["model"], other)
    return chosen


# ---- a part of the model that is common, and a part that stays on the client ------------------------------------------


@dataclass(frozen=True)
class CommonState:
    common: Params


@dataclass(frozen=True, kw_only=True)
class SharingPart(Trained):
    """Clients train the whole model; the server averages the common part of it, and `own` stays on each client."""

    way = "shrunk"
    carries_statistics = True
    keeps_optimiser = True

    @abstractmethod
    def own(self, task: Task, params: Params) -> Params:
        """The part of a model that stays on the client."""

    def init(self, task: Task, population: Population, seed: int, start: Params) -> CommonState:
        own = self.own(task, start)
        return CommonState({name: t for name, t in start.items() if name not in own})

    def client(self, ctx: Context) -> Tree:
        own = {"own": self.own(ctx.task, ctx.initial), "taken part": torch.zeros((), dtype=torch.bool)}
        return own | self.local.first_memory(ctx, ctx.initial)

    def round(self, state: CommonState, cohort: Cohort) -> Exchange[CommonState]:
        updates = {"common": From("common")} if state.common else {}
        reply = yield Ask(self.train, cohort.clients, {"common": state.common}, reduce=MeanBy(), updates=updates)
        return CommonState(row(reply.values["common"], 0)) if len(reply.clients) and state.common else state

    def train(self, ctx: Context, common: Params) -> Up:
        model, loss, memory = self.local.fit_on(ctx, self.whole(ctx, common))
        sent = {"common": {name: model[name] for name in common}} if common else {}
        kept = {"own": self.own(ctx.task, model), "taken part": torch.ones((), dtype=torch.bool), **memory}
        return Up(send=sent, weight=ctx.n, state=kept, info={"loss": loss})

    def whole(self, ctx: Context, common: Params) -> Params:
        """The common part with the client's own."""
        return joined(common, ctx.state["own"], ctx.initial)

    def personal(self, ctx: Context, state: CommonState) -> Params:
        """A client that never took part trains its own part once on its data, the common part held fixed."""
        model = self.whole(ctx, state.common)
        learns = [name for name in ctx.state["own"] if name not in ctx.task.statistics]
        anything = learns or [name for name in model if name not in ctx.task.statistics]
        met, _ = self.local.fit(ctx, model, train=anything)
        fresh = model | {name: met[name] for name in ctx.state["own"]}
        met_before = ctx.state["taken part"]
        chosen: Params = tree_map(lambda mine, new: torch.where(met_before, mine, new), model, fresh)
        return chosen


# ---- groups found once, before training --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionState:
    models: Params = field(metadata=one_per("label"))  # (groups, …)
    label: Tensor = field(metadata=one_per("client"))  # (N,); −1 before the partition and for a client that missed it


@dataclass(frozen=True, kw_only=True)
class PartitionedOnce(InGroups, Trained):
    """Before the first round all clients are asked once for what groups them; then every group averages its own model."""

    way = "groups"
    individual = True

    @property
    def k(self) -> int:
        """How many models there are before the partition."""
        return 1

    @abstractmethod
    def partition(self, state: PartitionState, cohort: Cohort) -> Exchange[PartitionState]:
        """The groups of all clients, whoever takes part in this round."""

    def init(self, task: Task, population: Population, seed: int, start: Params) -> PartitionState:
        return PartitionState(repeat(start, self.k), torch.full((population.n_clients,), -1))

    def round(self, state: PartitionState, cohort: Cohort) -> Exchange[PartitionState]:
        if not len(cohort.clients):
            return state
        if bool((state.label < 0).all()):
            state = yield from self.partition(state, cohort)
        label = state.label[torch.from_numpy(cohort.clients)]
        who = cohort.clients[(label >= 0).numpy()]
        mine = label[label >= 0]
        each, by_group = {"model": take(state.models, mine), "cluster": mine}, MeanBy(_rows(state.models))
        reply = yield Ask(self.train, who, each=each, reduce=by_group, updates={"model": From("model")})
        return replace(state, models=reply.or_keep("model", state.models))

    def train(self, ctx: Context, model: Params, cluster: Tensor) -> Up:
        model, loss = self.local.fit(ctx, model)
        return Up(send={"model": model}, weight=ctx.n, group=cluster, info={"loss": loss})


def _rows(models: Params) -> int:
    return len(next(iter(models.values())))


# ---- clients that follow the centre of their cluster -----------------------------------------------------------------


@dataclass(frozen=True)
class CentresState:
    centers: Tensor = field(metadata=one_per("nobody"))  # (K, P); K = 0 before the first round
    label: Tensor = field(metadata=one_per("client"))  # (N,), −1 for a client never seen
    start: Params
    moved: Params  # the sum of all clients' ways from the start


@dataclass(frozen=True, kw_only=True)
class FollowingCentres(InGroups):
    """Every client has its own model, and takes a step of `lr` along the centre of its cluster."""

    way = "groups"
    individual = True

    clusters: int | None = None
    lr: float = 0.1
    batch_size: Count | None = None

    @property
    def local(self) -> LocalSGD:
        return LocalSGD(steps=1, lr=self.lr, batch_size=self.batch_size)

    @property
    def k(self) -> int:
        return cluster_count(self)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> CentresState:
        empty = next(iter(start.values())).new_zeros((0, sum(t.numel() for t in start.values())))
        unknown = torch.full((population.n_clients,), -1)
        return CentresState(empty, unknown, start, tree_map(torch.zeros_like, start))

    def follow(self, state: CentresState, clients: Ints, centers: Tensor, nearest: Tensor) -> Exchange[CentresState]:
        """The end of a round: `nearest` is the centre of each of these clients."""
        own = like_vector(centers[nearest], state.start, 1)
        yield Ask(self.apply, clients, each={"direction": own}, reduce=SumBy())
        label = state.label.index_copy(0, torch.from_numpy(clients), nearest)
        moved = {k: t - self.lr * own[k].sum(0) for k, t in state.moved.items()}
        return replace(state, centers=centers, label=label, moved=moved)

    def apply(self, ctx: Context, direction: Params) -> Up:
        model = tree_map(lambda x, v: x - self.lr * v, ctx.state["model"], direction)
        return Up(send={}, state=ctx.state | {"model": model})

    def cluster(self, ctx: Context, state: CentresState) -> Tensor:
        label: Tensor = take(state.label, ctx.index)
        return label

    def personal(self, ctx: Context, state: CentresState) -> Params:
        """The client's own model; for a client never seen, the mean model of the others, which the server knows."""
        seen, never = (state.label >= 0).sum().clamp(min=1), self.cluster(ctx, state) < 0

        def chosen(mine: Tensor, start: Tensor, moved: Tensor) -> Tensor:
            return torch.where(never, start + moved / seen, mine)

        model: Params = tree_map(chosen, ctx.state["model"], state.start, state.moved)
        return model
