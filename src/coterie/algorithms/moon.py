"""MOON: federated averaging whose clients keep their features near the common model's and away from their last own
model's.

"Model-Contrastive Federated Learning" (Qinbin Li, Bingsheng He, Dawn Song, 2021, https://arxiv.org/abs/2103.10622).

Symbols of Algorithm 1: w^t → model, w_i^{t−1} → last (the client's state), μ → mu, τ → temperature, and the features z,
z_glob and z_prev of a sample in the three models. A client's loss is ℓ_sup + μ ℓ_con, where ℓ_con = −log[e^{sim(z,
z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ})] with cosine similarity (equation 3). The server averages by
numbers of samples. At first w_i is the common start. Features are what enters the `head`, by default the last layer, as
the networks at hand have no projection head of their own (the paper adds one of two layers; PFLlib has none); they are
computed in evaluation mode. A network of one layer has no features that learn, and MOON is FedAvg there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from coterie.algorithms.families import Averaging
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative, Positive
from coterie.base.tree import Params, Tree, names
from coterie.exchange.messages import Context, Up


@guarded
@dataclass(frozen=True, kw_only=True)
class MOON(Averaging):
    """`mu` is the weight of the contrastive term and `temperature` is τ. The paper takes the best μ of 0.1, 1, 5 and 10."""

    way = "together"

    mu: NotNegative = 1.0
    temperature: Positive = 0.5
    head: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", names(self.head, "MOON", "head"))

    def client(self, ctx: Context) -> Tree:
        return {"last": ctx.initial}

    def train(self, ctx: Context, model: Params) -> Up:
        def contrast(params: Params, batch: Context) -> Tensor:
            z, near, far = (batch.features(p, self.head) for p in (params, model, ctx.state["last"]))
            gap = F.cosine_similarity(z, far) - F.cosine_similarity(z, near)
            each = F.softplus(gap / self.temperature)  # equation 3, one number per sample
            return self.mu * (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

        trained, loss = self.local.fit(ctx, model, extra=contrast)
        return Up(send={"model": trained}, weight=ctx.n, state={"last": trained}, info={"loss": loss})
