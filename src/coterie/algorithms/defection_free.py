"""Defection-Free Collaborative Learning between two competing firms.

Chapter 3, Algorithm 5 (section 3.4) of
"Collaborative Learning: Aligning Goals and Outcomes" (Mariel Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

The clients are the firms. f(x) = (f(x; l) + f(x; h))/2 is the common loss and q(x) the quality of a model, the mean over
both firms of its accuracy (or 1 − loss) on rows that measure it. The high firm is the one that is better when they meet;
roles stay with the firms (`RevenueLedger`). A firm sends its model to the other firm, which returns a training step and a
quality; rows never leave a firm, and the server sees only means over both.

One round of scheme "defection_free", with ρ = q_l/q_h before the round:
1. The high firm takes `high_steps` steps on f, its quality growing by about the factor `pace` (b̃) at most.
2. The low firm may reach q̄ = min(B(ρ, b) q_h, ρ* q_h, q_l*), `low_target`. It takes at most `low_steps` (J) steps on f.
Other schemes (section 3.3): "complete" (both train on f), "high_shares" (the low firm trains on f, the high firm alone),
"low_shares" (the other way round); somebody loses revenue in each of the first two.

Departures from the text (errata EI-4, EI-5) are those of `coterie.incentives.market.climb`, which decides how far a firm
goes. A step is the mean of what `local` does on the firms' data. With LocalSGD(steps=1) that is exactly one gradient step on
f of size at most `local.lr` = 1/L; with more steps it is an average of local models. A step that is too long is shortened,
which costs one more measurement and no more training.
`firms.py` has what the server keeps, and the ledger of revenues that follows from it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.families import Trained
from coterie.algorithms.firms import COLUMNS, TESTED, WORST, DefectionFreeState
from coterie.algorithms.firms import ledger as ledger
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.arguments import AboveOne, CountFromZero, Part
from coterie.base.tree import Params, repeat, row, stack, take, tree_map
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, MeanBy, Reply, Up
from coterie.exchange.server_knowledge import Ints, Population
from coterie.incentives.market.bargaining import nash_bargaining, pacing_constant
from coterie.incentives.market.climb import Climb, Offer, Step, climbing
from coterie.incentives.market.defection_free import low_target
from coterie.learning.metrics import METRICS
from coterie.learning.task import Task

Scheme = Literal["defection_free", "complete", "high_shares", "low_shares"]
Quality = Literal["accuracy", "loss"]
Measure = Literal["holdout", "train", "test"]
LowMode = Literal["trained", "simulated", "frozen"]
_NOTHING = 1e-13  # a gain in quality below this is rounding
_NO_DEAL = 1e-12  # a Nash product that is rounding
_BOTH: Ints = np.array([0, 1])


@guarded
@dataclass(frozen=True, kw_only=True)
class DefectionFree(Trained):
    """Two firms learn together so that no round lowers either firm's revenue; `ledger(result)` shows it.

    What is promised holds on the rows that measure quality, on which the firms climb. On other rows revenue may fall:
    `ledger(result, rows="test")` shows it there, with error bars (measured on test rows only; nothing is decided by them).
    When no bargain leaves both firms better off from the start, a warning says that no deal is possible.

    quality: "accuracy", or "loss" for 1 − loss where losses are in [0, 1]. measure: where it is measured, on a part
    `holdout` of each firm's training rows that is kept for that, on all training rows, or on the test rows (the
    dissertation's setting; scores on these rows are then no longer an honest test). q_max: the best reachable quality q_h*;
    None estimates it when the firms meet, as the best quality of `reference_steps` steps on f from the better model (a
    reference that nobody keeps), and raises it when a firm exceeds it.
    pace: b̃ (None: no limit). tolerance: how close to its target the low firm must come (None: 1e-9 for losses, 0.001 for
    accuracies). low_mode: "trained"; "simulated" sets q_l to its target without training, as the dissertation's
    experiment does; "frozen". pretrain: how many times each firm runs `local` alone before they meet (one number, or one
    for each firm in the federation's order)."""

    way = "together"
    individual = True
    exactly = 2

    scheme: Scheme = "defection_free"
    quality: Quality = "accuracy"
    measure: Measure = "holdout"
    holdout: float = 0.25
    q_max: Part | None = 1.0
    reference_steps: int = 50
    pace: AboveOne | None = field(default_factory=pacing_constant)
    high_steps: int = 1
    low_steps: int = 20
    halvings: int = 10
    tolerance: float | None = None
    low_mode: LowMode = "trained"
    pretrain: CountFromZero | tuple[CountFromZero, CountFromZero] = 10

    @classmethod
    def example(cls) -> DefectionFree:
        return cls(low_steps=3, pretrain=(0, 2))

    def __post_init__(self) -> None:
        if self.low_mode == "simulated" and self.scheme != "defection_free":
            raise ConfigError(
                f"low_mode='simulated' has a target only in scheme 'defection_free'; got {self.scheme!r}."
            )

    @property
    def _passes(self) -> tuple[int, int]:
        return self.pretrain if isinstance(self.pretrain, tuple) else (self.pretrain, self.pretrain)

    @property
    def _close(self) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return 1e-9 if self.quality == "loss" else 1e-3

    def init(self, task: Task, population: Population, seed: int, start: Params) -> DefectionFreeState:
        if population.n_clients != 2:
            raise ConfigError(
                f"DefectionFree is a deal between exactly two firms; this federation has {population.n_clients} clients. "
                "Pass federation.subset([one, other])."
            )
        if self.quality == "accuracy" and task.loss == "mse":
            raise ConfigError("quality='accuracy' needs a task with classes; for numbers use quality='loss'.")
        return DefectionFreeState(repeat(start, 2), torch.zeros(0, len(COLUMNS), dtype=torch.float64), torch.tensor(-1))

    # ---- server ------------------------------------------------------------------------------------------------------

    def round(self, state: DefectionFreeState, cohort: Cohort) -> Exchange[DefectionFreeState]:
        """A firm that does not answer ends what it was asked for; what was agreed before stands."""
        if len(cohort.clients) < 2:
            return state
        lr = self.local.lr * self.local.decay**cohort.round
        if int(state.high) < 0:
            state = yield from self._meet(state, lr)
            if int(state.high) < 0:
                return state
            state = yield from self._test(state)
        state = yield from self._collaborate(state, lr)
        return (yield from self._test(state))

    def _meet(self, state: DefectionFreeState, lr: float) -> Exchange[DefectionFreeState]:
        """Each firm trains alone; then both are measured: who is better is the high firm."""
        models = state.models
        if max(self._passes):
            each = {"model": models, "passes": torch.tensor(self._passes)}
            reply = yield Ask(self.prepare, _BOTH, each=each, updates={"model": From("model")})
            if len(reply.clients) < 2:
                return state
            models = reply.values["model"]
        qualities = []
        for i in (0, 1):
            quality = yield from self._measure(row(models, i))
            if quality is None:
                return state
            qualities.append(quality)
        low, high = sorted(qualities)
        better = int(qualities[1] >= qualities[0])
        best = self.q_max
        if best is None:
            reference = yield from self._climb(_BOTH, row(models, better), high, math.inf, self.reference_steps, 2, lr)
            best = min(reference.quality, 1.0)
        elif high > best:
            raise ConfigError(
                f"q_max is the best quality the firms could reach, but one has {high:.4g} already; got {best}. Raise q_max, "
                "or let q_max=None estimate it."
            )
        self._warn(low, high, best)
        first = torch.tensor([[low, high, 0.0, low]], dtype=torch.float64)
        estimate = torch.tensor(0.0 if self.q_max is not None else best, dtype=torch.float64)
        return DefectionFreeState(models, first, torch.tensor(better), models, estimate)

    def _warn(self, low: float, high: float, best: float) -> None:
        """When no bargain leaves both better off, or the low firm is already better than the bargain lets it be."""
        bargain = nash_bargaining(low, high, best)
        if self.scheme != "defection_free" or (bargain.value > _NO_DEAL and bargain.q_low > low):
            return
        estimated = "" if self.q_max is not None else " (estimated)"
        why = "no bargain leaves both firms better off"
        if bargain.value > _NO_DEAL:
            why = f"the low firm is above the bargain's {bargain.q_low:.3g} already, so that only the high firm is trained"
        warnings.warn(
            f"No deal is possible from the start: with qualities {low:.3g} and {high:.3g} and q_max {best:.3g}{estimated} "
            f"{why}. Let the firms differ more when they meet, or check q_max.",
            stacklevel=2,
        )

    def _test(self, state: DefectionFreeState) -> Exchange[DefectionFreeState]:
        """Both firms' models, when they met and now, on test rows: for the record alone."""
        order = [1 - int(state.high), int(state.high)]
        models = stack([row(of, i) for of in (state.first, state.models) for i in order])
        said = ("tested", "empty")
        reply = yield Ask(
            self.score, _BOTH, {"models": models}, reduce=MeanBy(), auxiliary=said, test=True, optional=True
        )
        found = torch.zeros(1, TESTED, dtype=torch.float64)
        if len(reply.clients) == 2 and float(reply.values["empty"][0]) == 0:
            found[0, 0], found[0, 1:] = 1.0, reply.values["tested"][0].double()
        return replace(state, tested=torch.cat([state.tested, found]))

    def _collaborate(self, state: DefectionFreeState, lr: float) -> Exchange[DefectionFreeState]:
        """One round of the scheme."""
        high = int(state.high)
        x_low, x_high = row(state.models, 1 - high), row(state.models, high)
        q_low, before = (float(q) for q in state.ledger[-1, :2])
        free = self.scheme == "defection_free"
        limit = self.pace * before if free and self.pace is not None else math.inf
        alone = self.scheme == "high_shares"
        better = yield from self._climb(
            _BOTH[[high]] if alone else _BOTH, x_high, before, limit, self.high_steps, 0, lr
        )
        target: float | None = math.inf
        if free:
            best = max(float(state.best), better.quality) if self.q_max is None else self.q_max
            bargain = nash_bargaining(float(state.ledger[0, 0]), float(state.ledger[0, 1]), best)
            target = low_target(q_low, before, better.quality, bargain)
        worse = Climb(x_low, q_low, 0.0)
        if self.low_mode == "simulated" and target is not None:
            worse = Climb(x_low, max(target, q_low), 0.0)
        elif self.low_mode == "trained" and target is not None:
            who = _BOTH[[1 - high]] if self.scheme == "low_shares" else _BOTH
            worse = yield from self._climb(
                who,
                x_low,
                q_low,
                target,
                self.low_steps if free else self.high_steps,
                1,
                lr,
                self._close if free else 0.0,
            )
        reached = max(target, worse.quality) if free and target is not None else worse.quality  # max: B(ρ, 1) rounds
        entry = torch.tensor([[worse.quality, better.quality, better.size, reached]], dtype=torch.float64)
        pair = (worse.state, better.state) if high else (better.state, worse.state)
        return replace(state, models=stack(list(pair)), ledger=torch.cat([state.ledger, entry]))

    def _climb(
        self,
        who: Ints,
        model: Params,
        quality: float,
        target: float,
        steps: int,
        firm: int,
        lr: float,
        close: float = 0.0,
    ) -> Generator[Ask, Reply, Climb[Params]]:
        """At most `steps` steps on the mean loss of `who`, never past the target, never down (steps 2c and 2d).

        The pace of the high firm (firm 0) is a soft target: growing faster costs nobody revenue."""
        climber = climbing(
            model,
            quality,
            target,
            max_steps=steps,
            tolerance=close,
            max_halvings=self.halvings,
            soft=firm != 1,
            stochastic=True,
        )
        answer: Offer[Params] | float | None = None
        while True:
            try:
                need = climber.send(answer)
            except StopIteration as end:
                climbed: Climb[Params] = end.value
                return climbed
            if isinstance(need, Step):
                answer = yield from self._offer(need, who, firm, lr)
            else:
                answer = yield from self._measure(need.state)

    def _offer(
        self, need: Step[Params], who: Ints, firm: int, lr: float
    ) -> Generator[Ask, Reply, Offer[Params] | None]:
        """A training step of `who`, any part of which may be taken; None when a reply was lost or nothing moves.

        For one gradient step on a loss that is the quality, the size min((q̄ − q)/‖∇f‖², 1/L) cannot pass the target of a
        convex loss; other steps are tried in full first."""
        model = need.state
        number = 2 * need.number + firm if firm < 2 else -1 - need.number  # the reference draws its own batches
        down = {"model": model, "number": torch.tensor(number)}
        optional = len(who) == 1  # one firm's failure ends its climb, not the run
        reply = yield Ask(self.train, who, down, reduce=MeanBy(), updates={"move": None}, optional=optional)
        if len(reply.clients) < len(who):
            return None
        move: Params = row(reply.values["move"], 0)
        length = float(sum((t.double() ** 2).sum() for t in move.values()))  # (lr ‖∇f‖)²
        exact = self.quality == "loss" and self.local.steps == 1
        if length == 0 or (exact and length < _NOTHING * lr):
            return None

        def part(size: float) -> Params:
            moved: Params = tree_map(lambda x, d: x + size * d, model, move)
            return moved

        return Offer(part, min(need.gap * lr / length, 1.0) if exact else None, unit=lr)

    def _measure(self, model: Params) -> Generator[Ask, Reply, float | None]:
        """The quality q(x): the mean over both firms; None when one did not answer."""
        on_test = self.measure == "test"
        phase = self.judge_on_test if on_test else self.judge
        said = ("quality", "empty")
        reply = yield Ask(phase, _BOTH, {"model": model}, reduce=MeanBy(), auxiliary=said, test=on_test)
        if len(reply.clients) < 2:
            return None
        if float(reply.values["empty"][0]) > 0:
            raise ConfigError(
                f"DefectionFree with measure={self.measure!r} needs rows to measure quality on, but a firm has none. Give "
                "both firms such rows or choose another measure."
            )
        return max(float(reply.values["quality"][0]), WORST)

    # ---- firms -------------------------------------------------------------------------------------------------------

    def prepare(self, ctx: Context, model: Params, passes: Tensor) -> Up:
        """Training alone before the firms meet."""
        for i in range(max(self._passes)):
            trained, _ = self.local.fit(
                replace(self._part(ctx, held=False), key=randomness.fold(ctx.key, "alone", i)), model
            )
            model = tree_map(lambda new, old, i=i: torch.where(passes > i, new, old), trained, model)
        return Up(send={"model": model})

    def train(self, ctx: Context, model: Params, number: Tensor) -> Up:
        """A step on this firm's loss, from either firm's model."""
        mine = replace(self._part(ctx, held=False), key=randomness.fold(ctx.key, "step", number))
        trained, loss = self.local.fit(mine, model)
        return Up(send={"move": tree_map(lambda new, old: new - old, trained, model)}, info={"loss": loss})

    def judge(self, ctx: Context, model: Params) -> Up:
        return self._judged(self._part(ctx, held=True), model)

    def judge_on_test(self, ctx: Context, test: Context, model: Params) -> Up:
        return self._judged(test, model)

    def score(self, ctx: Context, test: Context, models: Params) -> Up:
        """Qualities of four models on this firm's test rows, and their covariance."""
        n, real = test.mask.sum(), test.mask
        each = torch.stack([self._rows(test, row(models, j)) for j in range(4)]) * real
        mean = each.sum(1) / n.clamp(min=1)
        centred = (each - mean.unsqueeze(1)) * real
        spread = centred @ centred.T / ((n - 1).clamp(min=1) * n.clamp(min=1))
        return Up(send={"tested": torch.cat([mean, spread.reshape(-1)]), "empty": (n < 2).to(real.dtype)})

    def _rows(self, ctx: Context, model: Params) -> Tensor:
        """The quality of a model on every row."""
        outputs = ctx.outputs(model)
        if self.quality == "loss":
            return 1 - ctx.task.sample_losses(outputs, ctx.y)
        outputs = outputs.reshape(ctx.y.shape[0], 1, -1)
        return METRICS["accuracy"](outputs, ctx.y.unsqueeze(1), torch.ones_like(ctx.mask).unsqueeze(1)).nan_to_num(0.0)

    def _judged(self, ctx: Context, model: Params) -> Up:
        if self.quality == "loss":
            quality = 1 - ctx.loss(model)
        else:
            outputs = ctx.outputs(model).reshape(ctx.y.shape[0], -1)
            real = ctx.mask.unsqueeze(0)
            quality = METRICS["accuracy"](outputs.unsqueeze(0), ctx.y.unsqueeze(0), real)[0].nan_to_num(0.0)
        return Up(send={"quality": quality, "empty": (ctx.mask.sum() == 0).to(ctx.mask.dtype)})

    def _part(self, ctx: Context, held: bool) -> Context:
        """With measure="holdout" the last rows measure and the others train; otherwise all do both."""
        if self.measure != "holdout":
            return ctx
        n = (ctx.mask > 0).sum().to(ctx.mask.dtype)
        kept = n - torch.minimum((n * self.holdout).round().clamp(min=1), n - 1)
        position = torch.arange(ctx.mask.shape[0])
        mask = ctx.mask * (position >= kept if held else position < kept)
        return replace(ctx, mask=mask, n=(mask > 0).sum().to(mask.dtype))

    def personal(self, ctx: Context, state: DefectionFreeState) -> Params:
        model: Params = take(state.models, ctx.index)
        return model

    def cluster(self, ctx: Context, state: DefectionFreeState) -> Tensor:
        return ctx.index
