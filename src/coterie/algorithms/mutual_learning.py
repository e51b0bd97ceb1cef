"""Federated mutual learning: a travelling model and a personal one teach each other on every client.

"Federated Mutual Learning" (Tao Shen, Jie Zhang, Xinkang Jia, Fengda Zhang, Gang Huang, Pan Zhou, Kun Kuang, Fei Wu,
Chao Wu, 2020, https://arxiv.org/abs/2006.16765).

Algorithm 1 and equations 5 and 6: the personal model minimises α·f + (1 − α)·KL(p_meme ‖ p_own), the travelling "meme"
model β·f + (1 − β)·KL(p_own ‖ p_meme), in steps taken together; the server averages memes. α → alpha, β → beta. A
client that never took part uses the meme. α = 1 is Local, and β = 1 makes the meme FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.aggregation import Aggregator, Mean
from coterie.algorithms.fedavg import FedAvgState, average
from coterie.algorithms.priors import by_student, keep, loss_and_slope, own_or, require_predictions, unseen
from coterie.annotations import guarded
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Cohort, Context, Exchange, Population, Up
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.tree import Params, Tree


@guarded
@dataclass(frozen=True, kw_only=True)
class MutualLearning(Algorithm):
    """`alpha` and `beta` are the weights of the data in the personal and in the travelling model's loss."""

    way = "shrunk"

    local: LocalSteps = field(default_factory=LocalSGD, kw_only=False)
    alpha: float = 0.25
    beta: float = 0.25
    aggregate: Aggregator = field(default_factory=Mean)

    def __post_init__(self) -> None:
        if not (0 <= self.alpha <= 1 and 0 <= self.beta <= 1):
            raise ConfigError(f"MutualLearning needs alpha and beta in [0, 1]; got {self.alpha} and {self.beta}.")

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAvgState:
        require_predictions(task, self)
        return FedAvgState(start, {})

    def client(self, ctx: Context) -> Tree:
        return unseen(ctx.initial)

    def round(self, state: FedAvgState, cohort: Cohort) -> Exchange[FedAvgState]:
        mean = yield from average(self.train, state.model, cohort, self.aggregate)
        return state if mean is None else FedAvgState(mean, {})

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

    def cluster(self, ctx: Context, state: FedAvgState) -> Tensor:
        return ctx.index
