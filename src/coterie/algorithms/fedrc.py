"""FedRC: clusters that tell changed concepts from changed labels or features, by dividing out each cluster's labels.

"FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering" (Yongxin Guo,
Xiaoying Tang, Tao Lin, 2024, https://arxiv.org/abs/2301.12379).

Symbols: Θ_k → models (row k), ω_i;k → shares (the client's state), γ_i,j;k the responsibilities of a sample, and C_y;k
→ mass with rows that sum to 1: the labels of cluster k. E-step: γ_i,j;k ∝ ω_i;k exp(−f(Θ_k; sample j)) / C_{y_j;k};
then ω_i;k = mean_j γ_i,j;k and C_y;k is renewed from all γ. M-step: local steps on Σ_j γ_i,j;k f(Θ_k; j)/n, averaged by
sample counts. Without C this is FedEM, which puts clients with the same labels together; dividing by C leaves that out,
so that only contradicting concepts are apart. A client uses the model of its largest share, renewed by `e_steps`
E-steps with the newest models, so that a client that never took part has one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.algorithms.families import InGroups, Trained
from coterie.algorithms.fedem import components, log_joint, m_steps, mean_over, renewed
from coterie.algorithms.priors import require_predictions
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, row
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task

_RAREST = 1e-6  # a label's share in a cluster counts as at least this


@dataclass(frozen=True)
class FedRCState:
    models: Params  # (K, …)
    mass: Tensor  # (K, classes): the mean over all samples of γ, by label


@guarded
@dataclass(frozen=True, kw_only=True)
class FedRC(InGroups, Trained):
    """`clusters` models; a client renews its shares by `e_steps` E-steps."""

    way = "groups"

    clusters: int = 2
    e_steps: int = 10

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedRCState:
        require_predictions(task, self, ("cross_entropy",))
        if population.classes is None:
            raise ConfigError("FedRC needs the classes. Declare them public: federation.declare_public('classes').")
        k, c = self.clusters, len(population.classes)
        return FedRCState(components(task, seed, start, k), next(iter(start.values())).new_full((k, c), 1 / (k * c)))

    def client(self, ctx: Context) -> Tree:
        return {"shares": ctx.n * 0 + ctx.mask.new_full((self.clusters,), 1 / self.clusters)}

    def round(self, state: FedRCState, cohort: Cohort) -> Exchange[FedRCState]:
        down = {"models": state.models, "mass": state.mass}
        updates, known = {"models": From("models"), "mass": None}, {"mass": state.mass}
        reply = yield Ask(self.train, cohort.clients, down, reduce=MeanBy(), updates=updates, known=known)
        return FedRCState(**row(reply.values, 0)) if len(reply.clients) else state

    def train(self, ctx: Context, models: Params, mass: Tensor) -> Up:
        start, labels = [row(models, m) for m in range(self.clusters)], _log_labels(mass)

        def joint(of: Context) -> Tensor:
            return log_joint(of, start, ctx.state["shares"]) - labels[:, of.y]

        gamma = joint(ctx).softmax(0)
        seen = gamma * ctx.mask / ctx.mask.sum().clamp(min=1)
        send = {
            "models": m_steps(self.local, ctx, start, joint),
            "mass": seen @ F.one_hot(ctx.y, mass.shape[1]).to(seen.dtype),
        }
        loss = mean_over(ctx, (gamma * -log_joint(ctx, start, torch.ones_like(gamma[:, 0]))).sum(0))
        return Up(send, ctx.n, state={"shares": mean_over(ctx, gamma)}, info={"loss": loss})

    def cluster(self, ctx: Context, state: FedRCState) -> Tensor:
        models, shares = [row(state.models, m) for m in range(self.clusters)], ctx.state["shares"]
        fits = log_joint(ctx, models, torch.ones_like(shares)) - _log_labels(state.mass)[:, ctx.y]
        return renewed(ctx, fits, shares, self.e_steps).argmax()


def _log_labels(mass: Tensor) -> Tensor:
    """log C_y;k."""
    mass = mass.clamp(min=0)
    return (mass / mass.sum(1, keepdim=True).clamp(min=_RAREST)).clamp(min=_RAREST).log()
