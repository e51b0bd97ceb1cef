"""Which of its samples a client may use in a round: all of them, or fresh ones as in the analysis (section 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from coterie.exchange.messages import Context


class Rows(Protocol):
    """The client with the samples it may use."""

    def to_choose(self, ctx: Context) -> Context: ...

    def to_train(self, ctx: Context) -> Context: ...


@dataclass(frozen=True)
class AllRows:
    """Every sample in every round, as in the experiments."""

    def to_choose(self, ctx: Context) -> Context:
        return ctx

    def to_train(self, ctx: Context) -> Context:
        return ctx


@dataclass(frozen=True)
class FreshRows:
    """A client's samples in 2T disjoint parts: each of T rounds chooses by one part and trains on another."""

    rounds: int

    def to_choose(self, ctx: Context) -> Context:
        return self._part(ctx, 0)

    def to_train(self, ctx: Context) -> Context:
        return self._part(ctx, 1)

    def _part(self, ctx: Context, which: int) -> Context:
        position = torch.arange(ctx.mask.shape[0]) * (2 * self.rounds) // ctx.n.clamp(min=1).long()
        return replace(ctx, mask=ctx.mask * (position == 2 * (ctx.round % self.rounds) + which))
