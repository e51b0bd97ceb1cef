"""FedSoft: a client's data are a mixture of clusters, and its model is pulled to all their centres.

"FedSoft: Soft Clustered Federated Learning with Proximal Local Updating" (Yichen Ruan, Carlee Joe-Wong, 2022,
https://arxiv.org/abs/2112.06053).

Symbols of Algorithm 1: c_s → centres (row s), w_k → the client's state, u_ks → importance, σ → floor, λ → lam. A client
finds, for each of its samples, the centre with the smallest loss; u_ks is the share of centre s, at least σ. It takes
local steps on f_k(w) + (λ/2) Σ_s u_ks ‖w − c_s‖². Centre s becomes the mean of the w_k with weights u_ks n_k: every
client counts in every group.

Difference: the paper draws K clients per centre with probabilities proportional to u_ks n_k and averages them plainly;
here the cohort is that of `fit`, and the mean has these weights, which is what those draws estimate. u_ks is renewed
whenever a client takes part (the paper: every τ rounds). Local steps start at the centre of the largest importance; a
client that never took part takes them when its model is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from coterie.algorithms.families import Trained, keep, own_or, unseen
from coterie.algorithms.fedem import components, log_joint, mean_over
from coterie.algorithms.priors import blend
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative, Positive
from coterie.base.tree import Params, Tree, row, take
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class FedSoftState:
    centres: Params  # (clusters, …)


@guarded
@dataclass(frozen=True, kw_only=True)
class FedSoft(Trained):
    """`clusters` centres; `lam` is λ, the strength of the pull to them, and `floor` the least importance σ of each."""

    way = "groups"
    individual = True  # no private form: a client counts in several groups

    clusters: int = 2
    lam: NotNegative = 0.1
    floor: Positive = 1e-4

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedSoftState:
        return FedSoftState(components(task, seed, start, self.clusters))

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def round(self, state: FedSoftState, cohort: Cohort) -> Exchange[FedSoftState]:
        reply = yield Ask(
            self.train,
            cohort.clients,
            {"centres": state.centres},
            reduce=MeanBy(self.clusters, soft=True),
            updates={"model": From(groups="centres")},
        )
        return FedSoftState(reply.or_keep("model", state.centres))

    def train(self, ctx: Context, centres: Params) -> Up:
        u = self.importance(ctx, centres)
        model, loss = self._steps(ctx, centres, u)
        return Up({"model": model}, weight=u * ctx.n, group=u.argmax(), state=keep(model), info={"loss": loss})

    def importance(self, ctx: Context, centres: Params) -> Tensor:
        """u_k: the share of samples that each centre fits best, at least `floor`."""
        fits = log_joint(ctx, [row(centres, s) for s in range(self.clusters)], ctx.mask.new_ones(self.clusters))
        return mean_over(ctx, F.one_hot(fits.argmax(0), self.clusters).to(fits.dtype).T).clamp(min=self.floor)

    def _steps(self, ctx: Context, centres: Params, u: Tensor) -> tuple[Params, Tensor]:
        """Σ_s u_s ‖w − c_s‖² pulls as strongly as ‖w − c‖² Σ_s u_s, with c the centres' mean."""
        return self.local.fit(
            ctx, take(centres, u.argmax()), anchor=blend(centres, u / u.sum()), pull=self.lam * u.sum()
        )

    def personal(self, ctx: Context, state: FedSoftState) -> Params:
        return own_or(ctx, self._steps(ctx, state.centres, self.importance(ctx, state.centres))[0])

    def cluster(self, ctx: Context, state: FedSoftState) -> Tensor:
        return self.importance(ctx, state.centres).argmax()
