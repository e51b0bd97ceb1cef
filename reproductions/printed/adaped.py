"""DP-AdaPeD as printed (Ozkara et al., section 3.5, L-6). Its accounting is wrong (E17), so it earns no receipt.

In every step ∂f_KD/∂μ and ∂/∂ψ are clipped to `clips`, and noise of deviations `noises` is added on the client.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.adaped import AdaPeD
from coterie.algorithms.priors import by_student, by_teacher, distillation, loss_and_slope
from coterie.base.tree import Params, like_vector, tree_map
from coterie.exchange.messages import Context, Up
from coterie.learning.update_rules import clipped


@dataclass(frozen=True)
class PrintedAdaPeD(AdaPeD):
    """AdaPeD whose clients clip and noise both derivatives in every step; the pairs are of μ and of ψ."""

    clips: tuple[float, float] = (1.0, 1.0)
    noises: tuple[float, float] = (0.0, 0.0)

    def train(self, ctx: Context, model: Params, psi: Tensor) -> Up:
        """Steps 2 to 5 of `AdaPeD.train`, with what steps 3 and 4 use clipped and noised."""
        theta, mu, width, losses = self._caught_up(ctx), model, psi, []
        step_theta, step_mu = self.local.descent(), self.local.descent()
        for batch, lr in self.local.each(ctx):
            (z, back), (z_mu, back_mu) = batch.pullback(theta), batch.pullback(mu)
            loss, slope = loss_and_slope(batch, z)
            theta = step_theta(theta, back(slope + by_student(batch, z_mu, z) / (2 * width)), lr)
            z = batch.outputs(theta)
            h = back_mu(by_teacher(batch, z_mu, z) / (2 * width))
            mu = step_mu(mu, self._noised(batch, h, 0), self._shared(lr))
            kappa = 1 / (2 * width) - distillation(batch, batch.outputs(mu), z) / (2 * width**2)
            kappa = self._noised(batch, {"kappa": kappa}, 1)["kappa"]
            moved = (width - self.psi_lr * kappa).clamp(min=self.psi_floor)
            width = torch.where(batch.n > 0, moved, width)
            losses.append(loss)
        state = {"model": theta, "shared": model, "psi": psi + 0 * ctx.n, "round": ctx.n * 0 + ctx.round}
        return Up({"model": mu, "psi": width}, state=state, info={"loss": losses[0], "psi": width})

    def _noised(self, batch: Context, slope: Params, which: int) -> Params:
        bounded = dict(zip(slope, clipped(list(slope.values()), self.clips[which], 0), strict=True))
        if not self.noises[which]:
            return bounded
        count = sum(t.numel() for t in slope.values())
        noise = like_vector(batch.normal(f"adaped {which}", count), slope)
        noised: Params = tree_map(lambda g, e: g + self.noises[which] * e, bounded, noise)
        return noised
