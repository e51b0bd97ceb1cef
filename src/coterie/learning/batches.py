"""Mini-batches: every epoch walks through a fresh permutation of the client's samples.

`Walk.rows` says which samples each step uses, for one client or for a whole chunk. `minibatches` hands the samples out one
step at a time to loops written in a client function. It is made of two primitives with batching rules: under
`torch.func.vmap` the rules see the whole chunk, draw all permutations at once, and copy whole rows of one flat tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.base import randomness
from coterie.errors import ConfigError
from coterie.learning.batched.chunks import apply, in_chunk


@dataclass(frozen=True)
class Walk:
    """`steps` mini-batches or `epochs` passes; `batch_size=None` uses all samples in every step."""

    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            got = "neither" if self.steps is None else f"{self.steps} and {self.epochs}"
            raise ConfigError(f"Mini-batches are counted by steps or by epochs; got {got}. Give exactly one.")
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and (value < 1 or int(value) != value):
                raise ConfigError(f"Mini-batches need {name} to be a whole number of at least 1; got {value}.")

    def rows(self, mask: Tensor, key: Tensor) -> tuple[Tensor | None, Tensor]:
        """Sample positions (…, steps, batch), or None for the full batch, and their weights, which sum to one per step
        (to zero for the steps a client with few samples does not take)."""
        chosen, weight = self.weighed(mask, key)
        return chosen, weight / weight.sum(-1, keepdim=True).clamp(min=1)

    def weighed(self, mask: Tensor, key: Tensor) -> tuple[Tensor | None, Tensor]:
        """The same with the samples' weights as they are in the mask."""
        n = (mask > 0).sum(-1, keepdim=True).to(mask.dtype)
        if self.batch_size is None:
            steps = self.steps if self.steps is not None else self.epochs or 1
            weight = mask.unsqueeze(-2)
            return None, weight.expand(*weight.shape[:-2], steps, mask.shape[-1])
        size = min(self.batch_size, mask.shape[-1])
        per_epoch = torch.ceil(n / self.batch_size).long().clamp(min=1)  # (…, 1)
        steps = self.steps if self.steps is not None else int(per_epoch.max()) * (self.epochs or 1)
        step = torch.arange(steps, device=mask.device)
        epoch = step // per_epoch  # (…, steps)
        n_epochs = int(epoch.max()) + 1 if self.epochs is None else self.epochs
        orders = torch.stack(
            [randomness.permutation(randomness.fold(key, "batches", e), mask) for e in range(n_epochs)], -2
        )
        start = (step % per_epoch) * self.batch_size
        position = start.unsqueeze(-1) + torch.arange(size, device=mask.device)  # (…, steps, batch)
        real = position < n.long().unsqueeze(-1)
        if self.epochs is not None:
            real = real & (epoch < self.epochs).unsqueeze(-1)
        flat = epoch.clamp(max=n_epochs - 1).unsqueeze(-1) * mask.shape[-1] + position.clamp(max=mask.shape[-1] - 1)
        chosen = orders.flatten(-2).gather(-1, flat.flatten(-2)).reshape(flat.shape)
        weight = real.to(mask.dtype)
        if bool((mask > 1).any()):  # samples weigh differently, the lightest 1
            weight = weight * mask.gather(-1, chosen.flatten(-2)).reshape(chosen.shape)
        return chosen, weight


_GROUP = 4  # steps whose samples are copied together: one call costs as much as a small step


def minibatches(
    walk: Walk, x: Tensor, y: Tensor, mask: Tensor, key: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """(x, y, mask, number of samples, random key) of one step after the other."""
    if walk.batch_size is None:
        steps = walk.steps or walk.epochs or 1
        keys = step_keys(key, steps)
        yield from ((x, y, mask, (mask > 0).sum().to(mask.dtype), keys[step]) for step in range(steps))
        return
    chosen, real, counts, keys = apply(_Rows, walk, mask, key)
    for group in range(0, len(chosen), _GROUP):
        some = slice(group, group + _GROUP)
        xs, ys = apply(_Pick, x, y, chosen[some])
        yield from zip(*(t.unbind(0) for t in (xs, ys, real[some], counts[some], keys[some])), strict=True)


def step_keys(key: Tensor, steps: int) -> Tensor:
    """A random key for every step, (…, steps)."""
    return randomness.fold(key.unsqueeze(-1), "step", torch.arange(steps, device=key.device))


def flat_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Samples `rows` (clients, …) of a chunk as rows of the flat tensor `x.flatten(0, 1)`."""
    return rows + (torch.arange(len(x), device=x.device) * x.shape[1]).reshape(-1, *[1] * (rows.dim() - 1))


def pick(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The samples of a chunk's clients at `flat_rows`. Rows of one flat tensor are copied, which is far faster than
    `x[i, j]`."""
    flat = rows.flatten()
    xs, ys = x.flatten(0, 1).index_select(0, flat), y.flatten(0, 1).index_select(0, flat)
    return xs.reshape(*rows.shape, *x.shape[2:]), ys.reshape(*rows.shape, *y.shape[2:])


class _Primitive(torch.autograd.Function):
    """Sample positions and samples are data: no derivative goes through them."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("The choice of a mini-batch cannot be differentiated.")


class _Rows(_Primitive):
    """`Walk.rows` with the weights as a mask, the number of samples and a random key for every step."""

    @staticmethod
    def forward(walk: Walk, mask: Tensor, key: Tensor) -> Any:
        chosen, weight = walk.weighed(mask, key)
        return chosen, weight, (weight > 0).sum(-1).to(mask.dtype), step_keys(key, weight.shape[-2])

    rule = forward

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return _Rows.rule(*in_chunk(info, in_dims, given)), (0, 0, 0, 0)


class _Pick(_Primitive):
    """The samples of some steps, (steps, batch, …), in one copy."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, rows: Tensor) -> Any:
        flat = rows.flatten()
        xs, ys = x.index_select(0, flat), y.index_select(0, flat)
        return xs.reshape(*rows.shape, *x.shape[1:]), ys.reshape(*rows.shape, *y.shape[1:])

    @staticmethod
    def rule(x: Tensor, y: Tensor, rows: Tensor) -> Any:
        return pick(x, y, flat_rows(x, rows))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return _Pick.rule(*in_chunk(info, in_dims, given)), (0, 0)
