"""FedProx: FedAvg whose local steps are pulled towards the model received.

"Federated Optimization in Heterogeneous Networks" (Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet
Talwalkar, Virginia Smith, 2020, https://arxiv.org/abs/1812.06127).

Algorithm 2, line 5: a client minimises F_i(w) + (μ/2)‖w − w^t‖², with μ → mu; μ = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.fedavg import FedAvg
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative
from coterie.base.tree import Params
from coterie.exchange.messages import Context, Up


@guarded
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """`mu` is μ, the pull of local steps towards the model received; 0 is FedAvg."""

    way = "together"

    mu: NotNegative = 0.01

    def train(self, ctx: Context, model: Params) -> Up:
        trained, loss, memory = self.local.fit_on(ctx, model, anchor=model, pull=self.mu)
        return Up(send={"model": trained}, weight=ctx.n, state=memory or None, info={"loss": loss})
