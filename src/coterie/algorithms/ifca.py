"""IFCA: the iterative federated clustering algorithm.

Algorithm 2 of
"An Efficient Framework for Clustered Federated Learning" (Avishek Ghosh, Jichan Chung, Dong Yin, Kannan Ramchandran, 2020,
https://arxiv.org/abs/2006.04088). `round` and `train` have its four steps in their order.

Symbols: k → clusters, θ_j → models (row j), ĵ_i → a client's cluster, M_t → the cohort, m → number of clients, γ → local.lr,
τ → local.steps. Option I is option="gradient", option II is option="model".

Departures, each with its reason:
- **start="updates"** (default) instead of random models; `ifca_start.py` says why. start="random" is the paper's start.
- **stop_after** ends the broadcast of all models once clusters are settled; `ifca_stop.py`.
- **aggregate**: a robust rule takes the mean's place in step 4; `ifca_robust.py`.
- An empty cluster keeps its model (the text leaves it open).
- Option I divides by m as printed (normalise="m"); with partial participation that shrinks the step, so "participants" and
  "cluster" are offered (erratum EC-3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.ifca_robust import FromRobustUpdates, robust_round
from coterie.algorithms.ifca_start import FromUpdates, first_models
from coterie.algorithms.ifca_state import IFCAState, merge
from coterie.algorithms.ifca_stop import EarlyStop
from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Ask, Cohort, Context, Exchange, From, Population, Reply, SumBy, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.settings import cluster_count, whole_number
from coterie.tree import Params, Tree, named_like, names, row, take, tree_map


@guarded
@dataclass(frozen=True)
class IFCA(Algorithm):
    """clusters=None lets `fit` choose the number. `shared` names parts of the network common to all clusters, such as
    ["0", "3"]. `stop_after=P` sends a client only its own cluster's model once nobody has changed cluster in its last P
    participations; `reopen_every=Q` broadcasts all models again every Q rounds. `resample=T` uses disjoint parts of a
    client's data in each of T rounds, as the analysis does. `samples_weighted` weighs clients by their number of samples.
    `probe_steps` full-batch steps of every client tell the start from updates who belongs together. `aggregate`, such as
    `GeometricMedian()`, protects every cluster from liars; the server then sees each client's model and cluster."""

    clusters: int | None = None
    option: Literal["model", "gradient"] = "model"
    local: LocalSteps = field(default_factory=LocalSGD)
    start: Literal["updates", "random"] = "updates"
    normalise: Literal["m", "participants", "cluster"] = "m"
    samples_weighted: bool = False
    shared: Sequence[str] = ()
    stop_after: int | None = None
    reopen_every: int | None = None
    resample: int | None = None
    probe_steps: int = 40
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", names(self.shared, "IFCA", "shared"))
        if self.option not in ("model", "gradient"):
            raise ConfigError(f"IFCA's option is 'model' (II) or 'gradient' (I); got {self.option!r}.")
        if self.start not in ("updates", "random"):
            raise ConfigError(f"IFCA starts from 'updates' or 'random' models; got {self.start!r}.")
        if self.normalise not in ("m", "participants", "cluster"):
            raise ConfigError(f"normalise is 'm', 'participants' or 'cluster'; got {self.normalise!r}.")
        if self.option == "gradient" and self.normalise == "m" and self.samples_weighted:
            raise ConfigError(
                "IFCA cannot divide gradients weighted by samples by the number of clients. "
                "Use normalise='participants' or 'cluster', or samples_weighted=False."
            )
        if not self._additive and (self.option == "gradient" or self.shared or self.stop_after or self.reopen_every):
            raise ConfigError(
                f"IFCA with aggregate={type(self.aggregate).__name__} needs option='model' and takes neither shared, "
                "stop_after nor reopen_every. Leave them out, or use aggregate=Mean()."
            )
        for name in ("clusters", "stop_after", "reopen_every", "resample", "probe_steps"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), owner=self)

    @property
    def k(self) -> int:
        return cluster_count(self)

    @property
    def _additive(self) -> bool:
        return isinstance(self.aggregate, Mean)

    @property
    def _sends(self) -> str:
        return "model" if self.option == "model" else "grad"

    @property
    def _stop(self) -> EarlyStop:
        return EarlyStop(self.stop_after, self.reopen_every)

    @property
    def _start(self) -> FromUpdates:
        plain = replace(self, stop_after=None)
        kind = FromUpdates if self._additive else FromRobustUpdates
        return kind(self.k, self.local, self.probe_steps, plain.round, lambda ctx: self._part(ctx, 1))

    @property
    def helpers(self) -> dict[str, Any]:
        start = {} if self.clusters is None else {"start": self._start}
        return start | {"stop": self._stop, "plain": replace(self, stop_after=None)}

    @property
    def carries_statistics(self) -> bool:
        return self.option == "model" and self.resample is None

    def private(self) -> IFCA:
        """The start from updates and the report of settled clusters show single clients; a private run does without."""
        return replace(self, start="random", stop_after=None, reopen_every=None)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> IFCAState:
        dtype = next(iter(start.values())).dtype
        draws = [start] + [task.init(seed * 1_000_003 + j, dtype) for j in range(1, self.k)]
        shared = named_like(start, self.shared)
        if self.shared and not shared:
            raise ConfigError(f"No parameter is named like {self.shared}; the names are {list(start)}.")
        own = first_models(draws, shared)
        if not own:
            raise ConfigError(f"All parameters are shared by {self.shared}; leave some to the clusters.")
        unknown = torch.full((population.n_clients,), -1)
        return IFCAState(own, shared, self.start == "random" or self.k == 1, unknown, False)

    # ---- Algorithm 2 -------------------------------------------------------------------------------------------------

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        if not state.started:
            return (yield from self._start.spread(state, cohort))
        if not self._additive:
            return (yield from robust_round(self.train_and_tell, self.aggregate, state, cohort))
        # Step 1: broadcast all k models, to a client whose cluster is settled only its own; steps 2 and 3 in `train`.
        known = self._stop.known(state, cohort)
        replies: list[Reply] = []
        asked, settled = (cohort.clients[mask.numpy()] for mask in (known < 0, known >= 0))
        if len(asked) or not len(settled):  # a private run answers an empty cohort, too: with noise
            down = {"models": state.models, "shared": state.shared}
            replies.append((yield self._ask(self.train, asked, down, {}, From("shared", groups="models"))))
        if len(settled):
            each = {"model": take(state.models, known[known >= 0])}  # its cluster the client has kept
            replies.append(
                (yield self._ask(self.train_own, settled, {"shared": state.shared}, each, From("model", "shared")))
            )
        state = self._average(state, [r for r in replies if len(r.clients)])  # step 4
        if self.stop_after is not None and len(asked):
            state = yield from self._stop.after_round(state, replies[0])
        return state

    def train(self, ctx: Context, models: Params, shared: Params) -> Up:
        """Steps 2 and 3 on a client that got all models."""
        cluster = self.choose(ctx, models, shared)
        return self._step(ctx, merge(take(models, cluster), shared, ctx.initial), cluster)

    def train_and_tell(self, ctx: Context, models: Params, shared: Params) -> Up:
        """Steps 2 and 3 for a server that aggregates robustly and must know the client's cluster."""
        up = self.train(ctx, models, shared)
        return replace(up, send=up.send | {"cluster": up.group})

    def train_own(self, ctx: Context, model: Params, shared: Params) -> Up:
        """Step 3 on a client whose cluster is settled."""
        return self._step(ctx, merge(model, shared, ctx.initial), ctx.state["cluster"])

    def choose(self, ctx: Context, models: Params, shared: Params) -> Tensor:
        """Step 2: the model of smallest loss; ties go to the lowest index."""
        part, count = self._part(ctx, 0), len(next(iter(models.values())))
        return torch.stack([part.loss(merge(row(models, j), shared, ctx.initial)) for j in range(count)]).argmin()

    def _step(self, ctx: Context, model: Params, cluster: Tensor) -> Up:
        """Step 3: a gradient (option I) or local steps (option II)."""
        ctx_step = self._part(ctx, 1)
        if self.option == "gradient":
            batch = ctx_step.minibatch(self.local.batch_size)
            sent, loss = batch.grad(model), batch.loss(model)
        else:
            sent, loss = self.local.fit(ctx_step, model)
        weight: Any = ctx.n if self.samples_weighted else 1.0
        also, memory = self._stop.remember(ctx, cluster)
        return Up(send={self._sends: sent, **also}, weight=weight, group=cluster, state=memory, info={"loss": loss})

    def _average(self, state: IFCAState, replies: list[Reply]) -> IFCAState:
        """Step 4: averages (option II) or a gradient step (option I); the shared part from all participants."""
        if not replies:
            return state
        total: Tree = tree_map(lambda *ts: torch.stack(ts).sum(0), *[r.values[self._sends] for r in replies])
        weight = torch.stack([r.weight for r in replies]).sum(0)  # Σ s_ij, or Σ n_i s_ij
        everyone, n = float(weight.sum()), len(state.identity)
        if not everyone:
            return state

        def by_group(t: Tensor, per: Tensor) -> Tensor:
            return (t / per.reshape(-1, *[1] * (t.dim() - 1))).to(t.dtype)

        shared = {name: total[name].sum(0) / everyone for name in state.shared}
        safe = torch.where(weight > 0, weight, 1.0)
        if self.option == "model":
            seen = weight > 0
            models = {
                name: torch.where(seen.reshape(-1, *[1] * (old.dim() - 1)), by_group(total[name], safe), old)
                for name, old in state.models.items()
            }
            return replace(state, models=models, shared=shared)
        divisor = {"m": torch.full_like(safe, n), "participants": torch.full_like(safe, everyone), "cluster": safe}
        lr = self.local.lr
        models = {name: old - lr * by_group(total[name], divisor[self.normalise]) for name, old in state.models.items()}
        return replace(state, models=models, shared={k: state.shared[k] - lr * g for k, g in shared.items()})

    # ---- what a client is asked, and what it keeps -------------------------------------------------------------------

    def _ask(self, phase: Any, clients: Any, down: Tree, each: Tree, origin: From) -> Ask:
        updates = {self._sends: origin if self.option == "model" else None}
        also = () if self.stop_after is None else ("restless",)
        return Ask(
            phase, clients, down, each, SumBy(self.k), updates, also, optional=True
        )  # the other ask may be answered

    def _part(self, ctx: Context, which: int) -> Context:
        """The part of the data this step may use: all of it, or 1/(2T) of it in the resampling variant."""
        if self.resample is None:
            return ctx
        parts = 2 * self.resample
        position = torch.arange(ctx.mask.shape[0]) * parts // ctx.n.clamp(min=1).long()
        return replace(ctx, mask=ctx.mask * (position == 2 * (ctx.round % self.resample) + which))

    def client(self, ctx: Context) -> Tree:
        return self._stop.client()

    def personal(self, ctx: Context, state: IFCAState) -> Params:
        return merge(take(state.models, self.cluster(ctx, state)), state.shared, ctx.initial)

    def cluster(self, ctx: Context, state: IFCAState) -> Tensor:
        return replace(self, resample=None).choose(ctx, state.models, state.shared)
