"""IFCA: the iterative federated clustering algorithm, and the options around it.

"An Efficient Framework for Clustered Federated Learning" (Avishek Ghosh, Jichan Chung, Dong Yin, Kannan Ramchandran, 2020,
https://arxiv.org/abs/2006.04088).

`algorithm_2.py` has the paper's Algorithm 2 line by line. Around it, each in a separate file:
- **start**: `warm_start.py` starts from the clients' updates (default), `split_start.py` from a random split of the clients,
  as the authors' code does for Table 2; start="random" is the paper's start.
- **stop**: `early_stop.py` ends the broadcast of all models once clusters are settled.
- **aggregate**: `robust_clusters.py` replaces the mean of line 15 by a robust rule.
- **resample**: `resampling.py` uses fresh samples in each round, as the analysis does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.families import Trained
from coterie.algorithms.ifca.algorithm_2 import Algorithm2, GradientAveraging, ModelAveraging
from coterie.algorithms.ifca.cluster_models import IFCAState, first_models
from coterie.algorithms.ifca.early_stop import EarlyStop, StoppingRounds
from coterie.algorithms.ifca.resampling import AllRows, FreshRows
from coterie.algorithms.ifca.robust_clusters import RobustRounds, RobustWarmStart
from coterie.algorithms.ifca.split_start import FromSplit, SplitStart, equal_groups
from coterie.algorithms.ifca.warm_start import FromUpdates, WarmStart
from coterie.base.annotations import guarded
from coterie.base.arguments import whole_number
from coterie.base.settings import cluster_count
from coterie.base.tree import Params, Tree, joined, named_like, names, take
from coterie.errors import ConfigError
from coterie.exchange.messages import Cohort, Context, Exchange, Population
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class IFCA(Trained):
    """Clustered federated learning by alternating between clients' choices of a model and training of the models.

    clusters=None lets `fit` choose the number. `option` is "model" (II) or "gradient" (I), which divides by `normalise`.
    `samples_weighted` weighs clients by their number of samples. `shared` names parts of the network common to all
    clusters, such as ["0", "3"]. `start` is "updates", "split", "random", `FromUpdates(probe_steps=…)` or
    `FromSplit(rounds=…)`. `stop=EarlyStop(P)` sends a client only its own cluster's model once clusters are settled.
    `resample=T` uses disjoint parts of a client's data in each of T rounds. `aggregate`, such as `GeometricMedian()`,
    protects every cluster from liars; the server then sees each client's model and cluster."""

    way = "groups"

    clusters: int | None = None
    option: Literal["model", "gradient"] = "model"
    normalise: Literal["m", "participants", "cluster"] = "m"
    samples_weighted: bool = False
    shared: Sequence[str] = ()
    start: FromUpdates | FromSplit | Literal["updates", "split", "random"] = "updates"
    stop: EarlyStop | None = None
    resample: int | None = None
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", names(self.shared, "IFCA", "shared"))
        if self.option == "gradient" and self.normalise == "m" and self.samples_weighted:
            raise ConfigError(
                "IFCA cannot divide gradients weighted by samples by the number of clients. "
                "Use normalise='participants' or 'cluster', or samples_weighted=False."
            )
        if not self._additive and (self.option == "gradient" or self.shared or self.stop):
            raise ConfigError(
                f"IFCA with aggregate={type(self.aggregate).__name__} needs option='model' and takes neither shared nor "
                "stop. Leave them out, or use aggregate=Mean()."
            )
        if not self._additive and self._split is not None:
            raise ConfigError(
                f"IFCA with aggregate={type(self.aggregate).__name__} cannot start from a split, in which liars would train "
                "models that nobody checks. Use start='updates' or 'random', or aggregate=Mean()."
            )

    @classmethod
    def example(cls) -> IFCA:
        return cls(clusters=2, stop=EarlyStop(2))

    @staticmethod
    def former(given: dict[str, Any], name: str, value: Any) -> None:
        """Puts the value of a setting of the last release into those of today: `stop_after=P, reopen_every=Q` is
        `stop=EarlyStop(P, reopen_every=Q)`, and `probe_steps=n` is `start=FromUpdates(n)`."""
        stop = given.get("stop")
        if name == "probe_steps":  # a random start has no probe
            start = FromUpdates(probe_steps=value)
            given["start"] = "random" if given.get("start") == "random" else start
        elif name == "stop_after":
            reopen = None if stop is None else stop.reopen_every
            given["stop"] = None if value is None else EarlyStop(value, reopen_every=reopen)
        elif stop is not None:
            given["stop"] = replace(stop, reopen_every=value)
        elif value is not None:  # without `stop_after` nothing ever stopped
            whole_number(name, value)

    # ---- the parts ---------------------------------------------------------------------------------------------------

    @property
    def k(self) -> int:
        """The number of clusters, once it is known."""
        return cluster_count(self)

    @property
    def _additive(self) -> bool:
        return isinstance(self.aggregate, Mean)

    @property
    def _plain(self) -> Algorithm2:
        """Algorithm 2 alone."""
        option = ModelAveraging(self.local) if self.option == "model" else GradientAveraging(self.local, self.normalise)
        rows = AllRows() if self.resample is None else FreshRows(self.resample)
        return Algorithm2(self.k, option, rows, self.samples_weighted)

    @property
    def _rounds(self) -> Algorithm2 | StoppingRounds | RobustRounds:
        """All rounds but the start."""
        if not self._additive:
            return RobustRounds(self._plain, self.aggregate)
        return self._plain if self.stop is None else StoppingRounds(self._plain, self.stop)

    @property
    def _split(self) -> FromSplit | None:
        return FromSplit() if self.start == "split" else self.start if isinstance(self.start, FromSplit) else None

    @property
    def _start(self) -> WarmStart | SplitStart:
        if self._split is not None:
            return SplitStart(self._plain, self._split)
        setting = self.start if isinstance(self.start, FromUpdates) else FromUpdates()
        if self._additive:
            return WarmStart(self._plain, self._plain, setting)
        return RobustWarmStart(self._plain, self._rounds, setting)

    @property
    def helpers(self) -> dict[str, Any]:
        if self.clusters is None:
            return {}
        return {"rounds": self._rounds, "start": self._start, "plain": self._plain}

    @property
    def carries_statistics(self) -> bool:
        return self.option == "model" and self.resample is None

    def private(self) -> IFCA:
        """The start from updates and the report of settled clusters show single clients, and a private run does without.
        It starts from random models."""
        return replace(self, start="random", stop=None)

    # ---- the run -----------------------------------------------------------------------------------------------------

    def init(self, task: Task, population: Population, seed: int, start: Params) -> IFCAState:
        dtype = next(iter(start.values())).dtype
        draws = [start] + [task.init(seed * 1_000_003 + j, dtype) for j in range(1, self.k)]
        shared = named_like(start, self.shared)
        if self.shared and not shared:
            raise ConfigError(f"No parameter is named like {self.shared}; the names are {list(start)}.")
        own = first_models(draws, shared)
        if not own:
            raise ConfigError(f"All parameters are shared by {self.shared}; leave some to the clusters.")
        ready, clients = self.start == "random" or self.k == 1, population.n_clients
        split = self._split is not None and not ready
        group = equal_groups(clients, self.k, seed) if split else torch.full((clients,), -1)
        return IFCAState(own, shared, ready, group, False)

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        part = self._rounds if state.started else self._start
        return (yield from part.round(state, cohort))

    def client(self, ctx: Context) -> Tree:
        return self._rounds.client() if isinstance(self._rounds, StoppingRounds) else {}

    def personal(self, ctx: Context, state: IFCAState) -> Params:
        return joined(take(state.models, self.cluster(ctx, state)), state.shared, ctx.initial)

    def cluster(self, ctx: Context, state: IFCAState) -> Tensor:
        return replace(self._plain, rows=AllRows()).choose(ctx, state.models, state.shared)
