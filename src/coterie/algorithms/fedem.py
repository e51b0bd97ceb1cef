"""FedEM: every client's data are a mixture, in its own proportions, of the same few distributions.

"Federated Multi-Task Learning under a Mixture of Distributions" (Othmane Marfoq, Giovanni Neglia, Aurélien Bellet,
Laetitia Kameni, Richard Vidal, 2021, https://arxiv.org/abs/2108.10252).

Symbols of Algorithm 1: M → clusters, θ_m → models (row m), π_i → the client's state, q(z_j = m) → shares. E-step
(line 7): q_j(m) ∝ π_im exp(−ℓ(θ_m; sample j)); M-steps: π_im = mean_j q_j(m) (line 8), and local steps on Σ_j q_j(m)
ℓ(θ_m; j)/n (line 9). The server averages each component by sample counts. A client predicts with Σ_m π_im p_m(y|x).
π_i is renewed by `e_steps` E-steps with the newest models when a client's model is asked for, so that a client that
never took part has its own. M = 1 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.families import Trained
from coterie.algorithms.ifca.cluster_models import first_models
from coterie.algorithms.priors import require_predictions
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, row, stack
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.local_steps import LocalSteps
from coterie.learning.predictors import WEIGHTS, Mixture
from coterie.learning.task import Task


@dataclass(frozen=True)
class FedEMState:
    models: Params  # (M, …)


@guarded
@dataclass(frozen=True, kw_only=True)
class FedEM(Trained):
    """`clusters` distributions, common to all; a client renews its proportions by `e_steps` E-steps."""

    way = "groups"

    clusters: int = 2
    e_steps: int = 10

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedEMState:
        require_predictions(task, self, ("cross_entropy", "mse"))
        return FedEMState(components(task, seed, start, self.clusters))

    def client(self, ctx: Context) -> Tree:
        return {"shares": ctx.n * 0 + ctx.mask.new_full((self.clusters,), 1 / self.clusters)}

    def round(self, state: FedEMState, cohort: Cohort) -> Exchange[FedEMState]:
        updates = {"models": From("models")}
        reply = yield Ask(self.train, cohort.clients, {"models": state.models}, reduce=MeanBy(), updates=updates)
        return FedEMState(row(reply.values["models"], 0)) if len(reply.clients) else state

    def train(self, ctx: Context, models: Params) -> Up:
        start = [row(models, m) for m in range(self.clusters)]

        def joint(of: Context) -> Tensor:
            return log_joint(of, start, ctx.state["shares"])

        here = joint(ctx)
        shares, loss = mean_over(ctx, here.softmax(0)), -mean_over(ctx, torch.logsumexp(here, 0))
        moved = m_steps(self.local, ctx, start, joint)
        return Up({"models": moved}, ctx.n, state={"shares": shares}, info={"loss": loss})

    def personal(self, ctx: Context, state: FedEMState) -> Params:
        models, shares = [row(state.models, m) for m in range(self.clusters)], ctx.state["shares"]
        fits = log_joint(ctx, models, torch.ones_like(shares))
        return state.models | {WEIGHTS: renewed(ctx, fits, shares, self.e_steps)}

    def predictor(self) -> Mixture:
        return Mixture()

    def cluster(self, ctx: Context, state: FedEMState) -> Tensor:
        return self.personal(ctx, state)[WEIGHTS].argmax()


def components(task: Task, seed: int, start: Params, count: int) -> Params:
    """The start and further random models, stacked."""
    dtype = next(iter(start.values())).dtype
    return first_models([start] + [task.init(seed * 1_000_003 + m, dtype) for m in range(1, count)], {})


def m_steps(local: LocalSteps, ctx: Context, start: list[Params], joint: Callable[[Context], Tensor]) -> Params:
    """Local steps of every component, whose samples have the weights softmax(joint)."""
    moving, steps = start, [local.descent() for _ in start]
    for batch, lr in local.each(ctx):
        q = joint(batch).softmax(0) * batch.mask / batch.mask.sum().clamp(min=1)
        slopes = [_weighted_slope(batch, model, q[m]) for m, model in enumerate(moving)]
        moving = [step(model, slope, lr) for step, model, slope in zip(steps, moving, slopes, strict=True)]
    models: Params = stack(moving)
    return models


def renewed(ctx: Context, fits: Tensor, shares: Tensor, steps: int) -> Tensor:
    """π_i after some E-steps with fixed models of these log-likelihoods, (M, samples); the likelihood never falls."""
    for _ in range(steps):
        shares = mean_over(ctx, (torch.log(shares).unsqueeze(1) + fits).softmax(0))
    return shares


def log_joint(ctx: Context, models: list[Params], shares: Tensor) -> Tensor:
    """log π_m − ℓ(θ_m; sample j), (M, samples)."""
    losses = torch.stack([ctx.task.sample_losses(ctx.outputs(model), ctx.y) for model in models])
    return torch.log(shares).unsqueeze(1) - losses


def mean_over(ctx: Context, values: Tensor) -> Tensor:
    """Mean over a client's samples, the last dimension."""
    return (values * ctx.mask).sum(-1) / ctx.mask.sum().clamp(min=1)


def _weighted_slope(batch: Context, model: Params, weight: Tensor) -> Params:
    """The gradient of Σ_j weight_j ℓ(model; j)."""
    slope: Params = torch.func.grad(lambda p: (batch.task.sample_losses(batch.outputs(p), batch.y) * weight).sum())(
        model
    )
    return slope
