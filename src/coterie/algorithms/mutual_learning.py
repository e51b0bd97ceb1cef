"""Federated mutual learning: a travelling model and a personal one teach each other on every client.

"Federated Mutual Learning" (Tao Shen, Jie Zhang, Xinkang Jia, Fengda Zhang, Gang Huang, Pan Zhou, Kun Kuang, Fei Wu,
Chao Wu, 2020, https://arxiv.org/abs/2006.16765).

Algorithm 1 and equations 5 and 6: the personal model minimises α·f + (1 − α)·KL(p_meme ‖ p_own), the travelling "meme"
model β·f + (1 − β)·KL(p_own ‖ p_meme), in steps taken together; the server averages memes. α → alpha, β → beta. A
client that never took part uses the meme. α = 1 is Local, and β = 1 makes the meme FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.families import Averaging, FedAvgState, keep, own_or, unseen
from coterie.algorithms.priors import by_student, loss_and_slope, require_predictions
from coterie.base.annotations import guarded
from coterie.base.arguments import Share
from coterie.base.tree import Params, Tree
from coterie.exchange.messages import Context, Population, Up
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class MutualLearning(Averaging):
    """`alpha` and `beta` are the weights of the data in the personal and in the travelling model's loss."""

    way = "shrunk"

    alpha: Share = 0.25
    beta: Share = 0.25

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        require_predictions(task, self)
        return super().init(task, population, seed, start)

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def train(self, ctx: Context, model: Params) -> Up:
        own, meme, losses = ctx.state["model"], model, []
        step_own, step_meme = self.local.descent(), self.local.descent()
        for batch, lr in self.local.each(ctx):
            (z, back), (z_meme, back_meme) = batch.pullback(own), batch.pullback(meme)
            (loss, slope), (_, slope_meme) = loss_and_slope(batch, z), loss_and_slope(batch, z_meme)
            own = step_own(own, back(self.alpha * slope + (1 - self.alpha) * by_student(batch, z_meme, z)), lr)
            towards = by_student(batch, z, z_meme)
            meme = step_meme(meme, back_meme(self.beta * slope_meme + (1 - self.beta) * towards), lr)
            losses.append(loss)
        return Up(send={"model": meme}, weight=ctx.n, state=keep(own), info={"loss": losses[0]})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return own_or(ctx, state.model)
