"""Clients that come after training: what a run gives them, though it never learned from them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.base.tree import Params, Tree, tree_map
from coterie.data.client_rows import as_numbers
from coterie.data.federation import Federation
from coterie.engines.base import Env, fresh_states
from coterie.errors import ConfigError, DataError
from coterie.exchange.messages import Algorithm, Cohort, Context, Exchange, Population
from coterie.learning.local_steps import LocalSteps
from coterie.learning.predictors import Predictor
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.training.evaluation import Evaluation


@dataclass(frozen=True)
class Later(Algorithm):
    """The algorithm of a run for clients whose places come after those of its `known` clients. `tune` are steps that each
    of them takes on its own training rows, from the model that the run gives it."""

    base: Algorithm
    known: int
    tune: LocalSteps | None = None

    def _placed(self, ctx: Context) -> Context:
        return replace(ctx, index=ctx.index + self.known)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> Any:
        return self.base.init(task, population, seed, start)

    def round(self, state: Any, cohort: Cohort) -> Exchange[Any]:
        raise ConfigError("Clients that come later take no part in rounds; they are only evaluated.")

    def client(self, ctx: Context) -> Tree:
        return self.base.client(self._placed(ctx))

    def personal(self, ctx: Context, state: Any) -> Params:
        model = self.base.personal(self._placed(ctx), state)
        return model if self.tune is None else self.tune.fit(ctx, model)[0]

    def cluster(self, ctx: Context, state: Any) -> Tensor:
        if self.base.way in ("alone", "shrunk"):
            return torch.full_like(ctx.index, -1)
        return self.base.cluster(self._placed(ctx), state)

    def predictor(self) -> Predictor | None:
        return self.base.predictor()


def evaluation_of(live: Evaluation, federation: Federation, tune: LocalSteps | None = None) -> Evaluation:
    """The evaluation of new clients by a run that is in memory. Nothing in the run changes."""
    if live.algorithm.exactly is not None:
        raise ConfigError(
            f"{type(live.algorithm).__name__} works with its {live.algorithm.exactly} clients only, and has no model for "
            "others. Use another algorithm for clients that come later."
        )
    if tune is not None and live.algorithm.predictor() is not None:
        raise ConfigError(
            f"Clients of {type(live.algorithm).__name__} predict with more than one network, which `tune` cannot train. "
            "Leave tune out: they are personalised by the algorithm's own rule."
        )
    known = live.federation
    if (federation.kind, federation.classes) != (known.kind, known.classes) or known.x.shape[1:] != federation.x.shape[
        1:
    ]:
        raise DataError(
            f"New clients need the columns and classes of the run; it has rows of shape {tuple(known.x.shape[1:])} and "
            f"classes {known.classes}, and they have {tuple(federation.x.shape[1:])} and {federation.classes}. "
            "Prepare them alike (classes=federation.classes)."
        )
    live.task.check(federation)
    old = live.env
    env = Env(old.task, federation, old.initial, old.seed, states=fresh_states(live.engine, federation))
    algorithm = Later(live.algorithm, len(known), tune)
    return Evaluation(
        algorithm, federation, live.task, _with_rows(live, federation), replace(env, round=old.round), live.engine
    )


def _with_rows(live: Evaluation, federation: Federation) -> Any:
    """The server's state with rows for new clients behind those of its own: as before the first round, and in no group."""
    algorithm, state = live.algorithm, live.state
    sample = as_numbers(federation.x.new_zeros(1, *federation.x.shape[1:]))
    population = Population(len(federation), federation.n_train, federation.clusters, federation.classes, sample)
    fresh = algorithm.init(live.task, population, live.env.seed, live.env.initial)
    oracle = algorithm.reads_clusters

    def behind(old: Tensor, new: Tensor) -> Tensor:
        if old.shape[1:] != new.shape[1:]:  # a table of all pairs of clients, which no model depends on
            return old
        return torch.cat([old, new if oracle or old.is_floating_point() or old.dtype == torch.bool else new * 0 - 1])

    grown = {
        f.name: tree_map(behind, getattr(state, f.name), getattr(fresh, f.name))
        for f in fields(state)
        if f.metadata.get("rows") == "client"
    }
    return replace(state, **grown)


class Place(int):
    """Where a newcomer belongs: the number of its group (−1 where the method has none). `model` is the network that it
    should use."""

    model: nn.Module

    def __new__(cls, group: int, model: nn.Module) -> Place:
        place = super().__new__(cls, group)
        place.model = model
        return place

    def __repr__(self) -> str:
        return f"Place({int(self)})"


def assigned(live: Evaluation, x: Any, y: Any, tune: LocalSteps | None) -> Place:
    """The place of one client with these rows, whose labels are written as the run's federation writes them."""
    fed = live.federation
    alone = Federation.from_arrays(
        {"newcomer": (x, y)}, test_fraction=0.0, kind=fed.kind, classes=fed.classes, one_class="allow",
        dtype=_dtype(fed),
    )  # fmt: skip
    found = evaluation_of(live, alone, tune)
    return Place(int(found.clusters()[0]), found.module(0))


def _dtype(federation: Federation) -> Any:
    return {torch.float64: "float64", torch.int64: "int64"}.get(federation.x.dtype, "float32")


def kept_apart(
    federation: Federation, share: float, seed: int, privacy: Privacy | None
) -> tuple[Federation, Federation]:
    """The federation without a share of its clients, and these clients, drawn by the seed alone."""
    if privacy is not None:
        raise ConfigError(
            "A private run keeps no newcomers apart, because their scores are not part of its promise; got newcomers and "
            "privacy. Train on federation.subset(…), and pass the other clients to result.evaluate_new(…)."
        )
    if len(federation) < 2:
        raise ConfigError("A run that keeps newcomers apart needs two clients or more; got 1. Leave newcomers out.")
    count = min(max(round(share * len(federation)), 1), len(federation) - 1)
    order = np.random.default_rng([seed, 11]).permutation(len(federation))
    apart, rest = np.sort(order[:count]), np.sort(order[count:])
    return federation.subset(federation.clients[rest]), federation.subset(federation.clients[apart])
