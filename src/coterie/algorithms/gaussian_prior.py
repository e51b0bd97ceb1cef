"""A learned Gaussian prior over clients' models; `laplace_prior.py` has the Laplace prior.

Algorithms 2 and 3 (L-1b, L-2), for any network, of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy" (Kaan
Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: θ_i → the client's state, μ → model, σ_θ (or b) → scale, σ_x² → noise_variance. A round: every client takes local
steps on its loss − log p(θ | μ, σ)/n, pulled *towards* μ (E12); the server renews μ and σ.

Departures, each with its reason:
- The server takes the best μ and σ for the clients' θ_i instead of a gradient step on each.
- Over θ and σ together the objective is unbounded at σ → 0 (E19), so σ maximises the marginal likelihood. Its data leave a
  client the variance v = 1/(1/σ² + its Fisher information, from the gradients of `probes` samples) in θ_i, and
  σ² = E(θ_i − μ)² + E v. Solved for σ² with 1 − v/σ² fixed, the free share of a parameter, this is MacKay's step
  σ² = E(θ_i − μ)²/E(1 − v/σ²), which has the fixed point of EM and does not depend on its start after some rounds, where EM
  hardly moves. σ changes by at most √10 in a round, and `floor` bounds it.
- A client that never took part starts from μ, and so does one in its first round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.algorithms.families import Trained, keep, own_or, unseen
from coterie.algorithms.priors import prior_weight
from coterie.base.annotations import guarded
from coterie.base.arguments import Positive
from coterie.base.tree import Params, Tree, row, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class LearnedPriorState:
    model: Params  # μ
    scale: Params  # σ or b: a number for every tensor, or for every single parameter


@guarded
@dataclass(frozen=True, kw_only=True)
class GaussianPrior(Trained):
    """`scale` is σ_θ: fixed, or where it starts if it is learned (`learn`), for all parameters, each layer's tensor
    or each single parameter (`per`). `noise_variance` is σ_x² of the loss "mse". The width of a network's
    parameters is learned and is too narrow for its predictions: tune a fixed one, `learn=False`, on validation rows."""

    way = "shrunk"

    scale: Positive = 0.1
    learn: bool = True
    per: Literal["all", "layer", "parameter"] = "layer"
    floor: Positive = 0.01
    noise_variance: Positive = 0.5
    probes: int = 8

    def init(self, task: Task, population: Population, seed: int, start: Params) -> LearnedPriorState:
        return LearnedPriorState(start, self._pooled(tree_map(lambda t: torch.full_like(t, self.scale), start)))

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def round(self, state: LearnedPriorState, cohort: Cohort) -> Exchange[LearnedPriorState]:
        updates = {"model": From("model")} | ({"spread": None, "free": None} if self.learn else {})
        down = {"model": state.model, "scale": state.scale}
        known = {"spread": state.scale, "free": state.scale} if self.learn else {}
        reply = yield Ask(self.train, cohort.clients, down, reduce=MeanBy(), updates=updates, known=known)
        if not len(reply.clients):
            return state
        mean = row(reply.values, 0)
        scale = self._renewed(state, mean) if self.learn else state.scale
        return LearnedPriorState(mean["model"], scale)

    def train(self, ctx: Context, model: Params, scale: Params) -> Up:
        theta, loss = self.steps(ctx, own_or(ctx, model), model, scale)
        send: Tree = {"model": theta}
        if self.learn:
            left = self._left_open(ctx, theta, scale)
            send["spread"] = self._pooled(tree_map(self.spread, theta, model, left))
            send["free"] = self._pooled(tree_map(self.free, left, _like(scale, theta)))
        return Up(send=send, state=keep(theta), info={"loss": loss})

    def personal(self, ctx: Context, state: LearnedPriorState) -> Params:
        return own_or(ctx, self.steps(ctx, state.model, state.model, state.scale)[0])

    # ---- the prior ---------------------------------------------------------------------------------------------------

    def steps(self, ctx: Context, theta: Params, mean: Params, scale: Params) -> tuple[Params, Tensor]:
        """Local steps on loss + ‖θ − μ‖²/(2nσ²): a pull of 1/(nσ²)."""
        weight = prior_weight(ctx, self.noise_variance)
        return self.local.fit(ctx, theta, anchor=mean, pull={name: weight / s**2 for name, s in scale.items()})

    def spread(self, theta: Tensor, mean: Tensor, left: Tensor) -> Tensor:
        """(θ − μ)²."""
        return (theta - mean) ** 2

    def free(self, left: Tensor, scale: Tensor) -> Tensor:
        """The share of a parameter's variance that the data have removed."""
        return 1 - left / scale**2

    def _renewed(self, state: LearnedPriorState, mean: Tree) -> Params:
        """σ around the new mean."""
        moved = self._pooled(tree_map(lambda new, old: (new - old) ** 2, mean["model"], state.model))

        def step(old: Tensor, spread: Tensor, free: Tensor, moved: Tensor) -> Tensor:
            ratio = (spread - moved).clamp(min=0) / (free.clamp(min=1e-4) * old**2)
            return (old**2 * ratio.clamp(0.1, 10)).clamp(min=self.floor**2).sqrt()

        scale: Params = tree_map(step, state.scale, mean["spread"], mean["free"], moved)
        return scale

    def variance(self, scale: Tensor) -> Tensor:
        return scale**2

    # ---- what both have ----------------------------------------------------------------------------------------------

    def _left_open(self, ctx: Context, theta: Params, scale: Params) -> Params:
        """The variance of every parameter given the client's data, with the diagonal of the Fisher information."""
        information = tree_map(torch.zeros_like, theta)
        for sample in ctx.batches(steps=self.probes, batch_size=1):
            slope = sample.grad(theta)
            information = tree_map(lambda f, g: f + g**2 / self.probes, information, slope)
        data = 1 / (prior_weight(ctx, self.noise_variance) ** 2 * ctx.n.clamp(min=1))
        left: Params = tree_map(lambda f, s: 1 / (1 / self.variance(s) + data * f), information, _like(scale, theta))
        return left

    def _pooled(self, tree: Params) -> Params:
        """Means over the parameters that share a scale."""
        if self.per == "parameter":
            return tree
        if self.per == "layer":
            return {name: t.mean() for name, t in tree.items()}
        mean = torch.stack([t.sum() for t in tree.values()]).sum() / sum(t.numel() for t in tree.values())
        return dict.fromkeys(tree, mean)


def _like(scale: Params, tree: Params) -> Params:
    return {name: scale[name].expand_as(t) for name, t in tree.items()}
