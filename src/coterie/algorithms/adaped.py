"""AdaPeD: adaptive personalisation by distillation, with a prior on models' predictions whose width ψ is learned.

Algorithms 5 and 6 (L-4, L-5) of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy" (Kaan
Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023, https://arxiv.org/abs/2207.01771).

A client minimises f_i(θ) + f_KD(θ, μ)/(2ψ) + ½ log(2ψ), where f_KD is the mean of KL(p_μ ‖ p_θ) over its samples.
Symbols: θ_i → the client's state, μ → model, ψ → psi, τ → local.steps (a round is a synchronisation), η1 → local.lr,
η2 → shared_lr (default: the same), η3 → psi_lr. Clients send what they have *after* the update (E15), one message
[μ_i, ψ_i]. `psi_floor` keeps the weight 1/(2ψ) bounded and the objective bounded below. ψ → ∞ is Local. At the floor of
0.5 distillation weighs as much as the client's own loss, so a step is up to twice as long: choose the rate for that.

A client that missed rounds has continued alone from the μ and ψ it last received (Algorithm 6). It takes up to `catch_up`
rounds of steps when it is next sampled or its model is needed. `catch_up=0` is Algorithm 5; if all clients take part in
every round, it gives the same result in less time.

DP-AdaPeD as printed (L-6) clips and noises every step. Its accounting is wrong (E17): `fit(…, privacy=…)` replaces it, and
`reproductions/printed/adaped.py` has it for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.algorithms.families import Trained
from coterie.algorithms.priors import by_student, by_teacher, distillation, loss_and_slope, require_predictions
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative, Positive
from coterie.base.tree import Params, Tree, row, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Population, Up
from coterie.learning.task import Task


@dataclass(frozen=True)
class AdaPeDState:
    model: Params
    psi: Tensor


@guarded
@dataclass(frozen=True, kw_only=True)
class AdaPeD(Trained):
    """`psi` is where ψ starts and `psi_floor` where it stops; a client catches up on
    at most `catch_up` missed rounds."""

    way = "shrunk"

    psi: Positive = 4.0
    psi_floor: Positive = 0.5
    shared_lr: NotNegative | None = None
    psi_lr: NotNegative = 0.03
    catch_up: int = 1

    def __post_init__(self) -> None:
        if self.psi_floor > self.psi:
            raise ConfigError(f"AdaPeD needs psi_floor ≤ psi; got {self.psi_floor} and {self.psi}.")
        if self.shared_lr and getattr(self.local, "lr", 1.0) == 0:
            raise ConfigError("AdaPeD needs a local lr above 0 beside shared_lr, which follows its schedule; got 0.")

    def init(self, task: Task, population: Population, seed: int, start: Params) -> AdaPeDState:
        require_predictions(task, self)
        return AdaPeDState(start, next(iter(start.values())).new_tensor(self.psi))

    def client(self, ctx: Context) -> Tree:
        start = torch.full_like(ctx.n, self.psi)
        return {"model": ctx.initial, "shared": ctx.initial, "psi": start, "round": torch.full_like(ctx.n, -1)}

    def round(self, state: AdaPeDState, cohort: Cohort) -> Exchange[AdaPeDState]:
        reply = yield Ask(
            self.train,
            cohort.clients,
            {"model": state.model, "psi": state.psi},
            reduce=MeanBy(),
            updates={"model": From("model"), "psi": From("psi")},
        )
        if not len(reply.clients):
            return state
        return AdaPeDState(row(reply.values["model"], 0), reply.values["psi"][0].clamp(min=self.psi_floor))

    def train(self, ctx: Context, model: Params, psi: Tensor) -> Up:
        """Algorithm 5, steps 2 to 5, from one synchronisation to the next."""
        theta, mu, width, losses = self._caught_up(ctx), model, psi, []
        step_theta, step_mu = self.local.descent(), self.local.descent()
        for batch, lr in self.local.each(ctx):
            (z, back), (z_mu, back_mu) = batch.pullback(theta), batch.pullback(mu)
            loss, slope = loss_and_slope(batch, z)
            theta = step_theta(theta, back(slope + by_student(batch, z_mu, z) / (2 * width)), lr)  # step 2
            z = batch.outputs(theta)
            mu = step_mu(mu, back_mu(by_teacher(batch, z_mu, z) / (2 * width)), self._shared(lr))  # step 3
            kappa = 1 / (2 * width) - distillation(batch, batch.outputs(mu), z) / (2 * width**2)
            moved = (width - self.psi_lr * kappa).clamp(min=self.psi_floor)  # step 4
            width = torch.where(batch.n > 0, moved, width)
            losses.append(loss)
        state = {"model": theta, "shared": model, "psi": psi + 0 * ctx.n, "round": ctx.n * 0 + ctx.round}
        return Up({"model": mu, "psi": width}, state=state, info={"loss": losses[0], "psi": width})  # step 5

    def _shared(self, lr: float | Tensor) -> float | Tensor:
        """η2, with the same schedule as η1."""
        return lr if self.shared_lr is None else lr * (self.shared_lr / self.local.lr)

    def personal(self, ctx: Context, state: AdaPeDState) -> Params:
        theta = self._caught_up(ctx)
        if self.catch_up:
            return theta
        never = ctx.state["round"] < 0  # without a step of its own, the common model is the best it has
        mine: Params = tree_map(lambda own, common: torch.where(never, common, own), theta, state.model)
        return mine

    def _caught_up(self, ctx: Context) -> Params:
        """θ_i after step 2 in the rounds that the client missed (Algorithm 6, steps 9 to 11)."""
        theta: Params = ctx.state["model"]
        mu, width = ctx.state["shared"], ctx.state["psi"]
        missed = ctx.round - 1 - ctx.state["round"]
        for lag in range(min(self.catch_up, ctx.round)):
            step, moved = self.local.descent(), theta
            for batch, lr in self.local.each(ctx):
                z, back = batch.pullback(moved)
                slope = loss_and_slope(batch, z)[1] + by_student(batch, batch.outputs(mu), z) / (2 * width)
                moved = step(moved, back(slope), lr)
            theta = tree_map(lambda new, old, lag=lag: torch.where(missed > lag, new, old), moved, theta)
        return theta
