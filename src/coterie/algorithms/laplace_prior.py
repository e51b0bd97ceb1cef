"""A learned Laplace prior over clients' models: as `gaussian_prior.py`, with absolute in place of squared distances.

Algorithm 3 (L-2), for any network, of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy" (Kaan
Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023, https://arxiv.org/abs/2207.01771).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.gaussian_prior import GaussianPrior, LearnedPriorState
from coterie.algorithms.priors import prior_weight, towards
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, tree_map
from coterie.exchange.messages import Context


@guarded
@dataclass(frozen=True, kw_only=True)
class LaplacePrior(GaussianPrior):
    """The same with −log p(θ) = Σ|θ − μ|/b: most parameters stay exactly at μ. `scale` is b."""

    def steps(self, ctx: Context, theta: Params, mean: Params, scale: Params) -> tuple[Params, Tensor]:
        """Each local step is followed by the proximal step of ‖θ − μ‖₁/(nb)."""
        weight, step, losses = prior_weight(ctx, self.noise_variance), self.local.descent(), []
        for batch, lr in self.local.each(ctx):
            slope, loss = batch.grad_and_loss(theta)
            theta = step(theta, slope, lr)
            theta = tree_map(lambda t, m, b, lr=lr: towards(t, m, lr * weight / b), theta, mean, scale)
            losses.append(loss)
        return theta, losses[0]

    def spread(self, theta: Tensor, mean: Tensor, left: Tensor) -> Tensor:
        """What a client says of b: E|θ − μ|; exact where θ = μ, and far from it."""
        return ((theta - mean) ** 2 + 2 / math.pi * left).sqrt()

    def free(self, left: Tensor, scale: Tensor) -> Tensor:
        return torch.ones_like(left)

    def _renewed(self, state: LearnedPriorState, mean: Tree) -> Params:
        scale: Params = tree_map(lambda s: s.clamp(min=self.floor), mean["spread"])
        return scale

    def variance(self, scale: Tensor) -> Tensor:
        return 2 * scale**2
