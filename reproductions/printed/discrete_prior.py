"""Algorithm 7 of Ozkara et al. as printed: the server clusters the clients' posterior means.

They lie inside the hull of the models, so the new models contract to one point, and nothing is learnt after the first round
(E11).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from coterie.algorithms.discrete_prior import DiscretePrior, DiscretePriorState
from coterie.algorithms.priors import blend
from coterie.base.tree import Params
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Up


@dataclass(frozen=True, kw_only=True)
class PrintedDiscretePrior(DiscretePrior):
    """The same start; then clients send Σ_l w_il μ_l."""

    def round(self, state: DiscretePriorState, cohort: Cohort) -> Exchange[DiscretePriorState]:
        if state.found < self.clusters:
            return (yield from super().round(state, cohort))
        down = {"models": state.models, "shares": state.shares, "start": blend(state.models, state.shares)}
        reply = yield Ask(self.choose, cohort.clients, down, updates={"model": From("start")})
        return self._clustered(replace(state, found=0), reply, cohort) if len(reply.clients) else state

    def choose(self, ctx: Context, models: Params, shares: Tensor, start: Params) -> Up:
        """The posterior mean of the models."""
        mean = blend(models, self.weights(ctx, models, shares))
        return Up(send={"model": mean}, info={"loss": ctx.loss(mean)})
