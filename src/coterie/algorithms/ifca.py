"""IFCA: the iterative federated clustering algorithm (Ghosh, Chung, Yin, Ramchandran).

Symbols: k → clusters, θ_j → models (row j), ĵ_i → a client's cluster, M_t → the cohort, m → number of clients, γ → local.lr,
τ → local.steps. Option I is option="gradient", option II is option="model".

Departures, each with its reason:
- **start="updates"** (default). The paper starts from k random models; a bad draw lets two groups share one model for good.
  Here every client takes its local steps once from *one* common model, and the server starts the k models from the k-means
  groups of these updates. Everybody is asked, whoever is in the first cohort (a thousand clients or a cohort, if that is
  more, of larger federations): a few clients may miss a group. It costs one round of uploads seen individually.
  start="random" is the paper's start.
- An empty cluster keeps its model (the text leaves it open).
- Option I divides by m as printed (normalise="m"); with partial participation that shrinks the step, so "participants" and
  "cluster" are offered (erratum EC-3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie import randomness
from coterie.aggregation.kmeans import kmeans_rows
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Ask, Cohort, Context, Exchange, Population, Reply, SumBy, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.settings import cluster_count, whole_number
from coterie.tree import Params, Tree, flat_vector, named_like, names, row, stack, take, tree_map

_STARTERS = 1000  # clients asked for the start: k-means needs a table of n × n numbers


@dataclass(frozen=True)
class IFCAState:
    models: Params  # (k, …): the part of the model each cluster has for itself
    shared: Params  # the part all clusters share (empty without weight sharing)
    started: bool
    identity: Tensor  # (m,) clusters the server knows once it stopped sending all models; −1: unknown
    closed: bool


@dataclass(frozen=True)
class IFCA(Algorithm):
    """clusters=None lets `fit` choose the number. `shared` names parts of the network common to all clusters, such as
    ["0", "3"]. `stop_after=P` sends a client only its own cluster's model once nobody has changed cluster in its last P
    participations; `reopen_every=Q` broadcasts all models again every Q rounds. `resample=T` uses disjoint parts of a
    client's data in each of T rounds, as the analysis does. `samples_weighted` weighs clients by their number of samples."""

    clusters: int | None = None
    option: Literal["model", "gradient"] = "model"
    local: LocalSGD = field(default_factory=LocalSGD)
    start: Literal["updates", "random"] = "updates"
    normalise: Literal["m", "participants", "cluster"] = "m"
    samples_weighted: bool = False
    shared: Sequence[str] = ()
    stop_after: int | None = None
    reopen_every: int | None = None
    resample: int | None = None

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
        for name in ("clusters", "stop_after", "reopen_every", "resample"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), owner=self)

    @property
    def k(self) -> int:
        return cluster_count(self)

    @property
    def _sends(self) -> str:
        return "model" if self.option == "model" else "grad"

    # ---- server ------------------------------------------------------------------------------------------------------

    def init(self, task: Task, population: Population, seed: int, start: Params) -> IFCAState:
        dtype = next(iter(start.values())).dtype
        draws = [start] + [task.init(seed * 1_000_003 + j, dtype) for j in range(1, self.k)]
        common = named_like(start, self.shared)
        if self.shared and not common:
            raise ConfigError(f"No parameter is named like {self.shared}; the names are {list(start)}.")
        own = stack([{name: t for name, t in d.items() if name not in common} for d in draws])
        if not own:
            raise ConfigError(f"All parameters are shared by {self.shared}; leave some to the clusters.")
        unknown = torch.full((population.n_clients,), -1)
        return IFCAState(own, common, self.start == "random" or self.k == 1, unknown, False)

    def round(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        if not state.started:
            return (yield from self._spread(state, cohort))
        closed = state.closed and not (self.reopen_every and cohort.round % self.reopen_every == 0)
        known = state.identity[torch.from_numpy(cohort.clients)] if closed else torch.empty(0)
        open_ = cohort.clients if not closed else cohort.clients[(known < 0).numpy()]
        replies: list[Reply] = []
        down = {"models": state.models, "shared": state.shared}
        if len(open_):  # step 1: broadcast all models; steps 2 and 3 happen in `train`
            replies.append((yield Ask(self.train, open_, down, reduce=SumBy(self.k))))
        if closed and bool((known >= 0).any()):
            mine = known[known >= 0]
            each = {"model": take(state.models, mine)}  # its cluster the client has kept
            who = cohort.clients[(known >= 0).numpy()]
            replies.append((yield Ask(self.train_own, who, {"shared": state.shared}, each, SumBy(self.k))))
        state = self._update(state, [r for r in replies if len(r.clients)])
        if self.stop_after is not None and replies and len(open_):
            state = yield from self._maybe_close(state, cohort, replies[0])
        return state

    def _update(self, state: IFCAState, replies: list[Reply]) -> IFCAState:
        """Step 4: averages (option II) or a gradient step (option I); the shared part from all participants."""
        if not replies:
            return state
        total: Tree = tree_map(lambda *ts: torch.stack(ts).sum(0), *[r.values[self._sends] for r in replies])
        weight = torch.stack([r.weight for r in replies]).sum(0)  # Σ s_ij, or Σ n_i s_ij
        everyone, n = float(weight.sum()), len(state.identity)

        def by_group(t: Tensor, per: Tensor) -> Tensor:
            return (t / per.reshape(-1, *[1] * (t.dim() - 1))).to(t.dtype)

        common = {name: total[name].sum(0) / everyone for name in state.shared}
        safe = torch.where(weight > 0, weight, 1.0)
        if self.option == "model":
            seen = weight > 0
            models = {
                name: torch.where(seen.reshape(-1, *[1] * (old.dim() - 1)), by_group(total[name], safe), old)
                for name, old in state.models.items()
            }
            return replace(state, models=models, shared=common)
        divisor = {"m": torch.full_like(safe, n), "participants": torch.full_like(safe, everyone), "cluster": safe}
        lr = self.local.lr
        models = {name: old - lr * by_group(total[name], divisor[self.normalise]) for name, old in state.models.items()}
        return replace(state, models=models, shared={k: state.shared[k] - lr * g for k, g in common.items()})

    def _spread(self, state: IFCAState, cohort: Cohort) -> Exchange[IFCAState]:
        """The start from updates: one common model, one individual ask to everybody, k-means, one mean a group."""
        if not len(cohort.clients):
            return state
        down = {"models": tree_map(lambda t: t[:1], state.models), "shared": state.shared}
        order = randomness.bits(cohort.key("who starts"), len(state.identity)).argsort().numpy()
        reply = yield Ask(self.probe, np.sort(order[: max(_STARTERS, len(cohort.clients))]), down)
        if not len(reply.clients):
            return state  # nobody answered; try again next round
        local = reply.values["model"]
        updates = {k: local[k] - state.models[k][:1] for k in state.models}
        found = min(self.k, len(reply.clients))  # with fewer clients than clusters some models keep their random start
        seed = int(cohort.key("start")) & 0x7FFFFFFF
        label = torch.from_numpy(kmeans_rows(flat_vector(updates, 1), found, seed=seed))
        models = {name: t.clone() for name, t in state.models.items()}
        for j in range(found):
            for name, t in models.items():
                t[j] = local[name][label == j].mean(0) if bool((label == j).any()) else t[j]
        return replace(state, models=models, shared={k: local[k].mean(0) for k in state.shared}, started=True)

    def _maybe_close(self, state: IFCAState, cohort: Cohort, reply: Reply) -> Exchange[IFCAState]:
        """C-1s: stop broadcasting when everybody asked has kept its cluster in its last `stop_after` participations."""
        if not len(reply.clients) or float(reply.values["restless"].sum()) > 0:
            return replace(state, closed=False, identity=torch.full_like(state.identity, -1)) if state.closed else state
        answer = yield Ask(self.report, reply.clients)  # eight bytes a client, once
        if not len(answer.clients):
            return state
        identity = state.identity.clone()
        identity[torch.from_numpy(answer.clients)] = answer.values["cluster"]
        return replace(state, closed=True, identity=identity)

    # ---- client ------------------------------------------------------------------------------------------------------

    def client(self, ctx: Context) -> Tree:
        if self.stop_after is None:
            return {}
        return {"cluster": torch.tensor(-1), "steady": torch.tensor(0)}

    def _merge(self, ctx: Context, model: Params, shared: Params) -> Params:
        return {name: shared[name] if name in shared else model[name] for name in ctx.initial}

    def _part(self, ctx: Context, which: int) -> Context:
        """The part of the data this step may use: all of it, or 1/(2T) of it in the resampling variant."""
        if self.resample is None:
            return ctx
        parts = 2 * self.resample
        position = torch.arange(ctx.mask.shape[0]) * parts // ctx.n.clamp(min=1).long()
        return replace(ctx, mask=ctx.mask * (position == 2 * (ctx.round % self.resample) + which))

    def choose(self, ctx: Context, models: Params, shared: Params) -> Tensor:
        """Step 2: the model of smallest loss; ties go to the lowest index."""
        part = self._part(ctx, 0)
        return torch.stack([part.loss(self._merge(ctx, row(models, j), shared)) for j in range(self.k)]).argmin()

    def probe(self, ctx: Context, models: Params, shared: Params) -> Up:
        model, loss = self.local.fit(ctx, self._merge(ctx, row(models, 0), shared))
        return Up(send={"model": model}, info={"loss": loss})

    def train(self, ctx: Context, models: Params, shared: Params) -> Up:
        cluster = self.choose(ctx, models, shared)
        return self._step(ctx, self._merge(ctx, take(models, cluster), shared), cluster)

    def train_own(self, ctx: Context, model: Params, shared: Params) -> Up:
        return self._step(ctx, self._merge(ctx, model, shared), ctx.state["cluster"])

    def _step(self, ctx: Context, model: Params, cluster: Tensor) -> Up:
        """Step 3: a gradient (option I) or local steps (option II)."""
        ctx_step = self._part(ctx, 1)
        if self.option == "gradient":
            batch = ctx_step.minibatch(self.local.batch_size)
            sent, loss = batch.grad(model), batch.loss(model)
        else:
            sent, loss = self.local.fit(ctx_step, model)
        weight: Any = ctx.n if self.samples_weighted else 1.0
        if self.stop_after is None:
            return Up(send={self._sends: sent}, weight=weight, group=cluster, info={"loss": loss})
        steady = torch.where(ctx.state["cluster"] == cluster, ctx.state["steady"] + 1, 0)
        restless = (steady < self.stop_after).long()
        return Up(
            send={self._sends: sent, "restless": restless},
            weight=weight,
            group=cluster,
            state={"cluster": cluster, "steady": steady},
            info={"loss": loss},
        )

    def report(self, ctx: Context) -> Up:
        return Up(send={"cluster": ctx.state["cluster"]})

    def personal(self, ctx: Context, state: IFCAState) -> Params:
        return self._merge(ctx, take(state.models, self.cluster(ctx, state)), state.shared)

    def cluster(self, ctx: Context, state: IFCAState) -> Tensor:
        return replace(self, resample=None).choose(ctx, state.models, state.shared)
