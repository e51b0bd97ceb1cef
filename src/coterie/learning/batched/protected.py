"""Local steps that protect every row (DP-SGD; Abadi et al. 2016, https://arxiv.org/abs/1607.00133).

In each step a client draws every row by its own coin, shortens the gradient of each drawn row to the clip, and adds them up
on a lattice with exact Gaussian noise. Everything after that sum (momentum, the learning rate, later steps, averaging) costs
nothing. Gradients of all rows are taken, drawn or not, each at its own place: the last bits of a product depend on shapes
and places, so that a row's gradient may not depend on which other rows were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.mechanisms.sums import JointSum

if TYPE_CHECKING:
    from coterie.learning.batched.sgd import Given, Plan


@dataclass(frozen=True)
class RowNoise:
    """The mechanism of one step of one client, and the source of its noise and coins."""

    mechanism: JointSum
    noise: Noise

    def drawn(self, mask: Tensor) -> Tensor:
        """Which rows a step uses: each by its own coin."""
        coins = self.noise.bits(mask.numel()).reshape(tuple(mask.shape))
        below = int(self.mechanism.sampling * 2.0**64)
        heads = coins < np.uint64(below) if below < 1 << 64 else np.ones(coins.shape, bool)
        return torch.from_numpy(heads).to(mask.device) & (mask > 0)

    def released(self, gradients: Tensor) -> Tensor:
        """Noisy sums of clipped gradients: (clients, rows, numbers) → (clients, numbers)."""
        m, k, d = gradients.shape
        rounded = self.mechanism.integers(gradients.reshape(m * k, d).double().cpu().numpy()) if k else np.zeros((0, d))
        self.mechanism.require_room(k)
        total = rounded.reshape(m, k, d).sum(1, dtype=np.int64)
        return torch.from_numpy(self.mechanism.noisy(total, self.noise)).to(gradients.device)


def row_gradients(plan: Plan, params: list[Tensor], x: Tensor, y: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of every row's loss (clients, rows, numbers), and the losses."""
    names, task, trained = plan.model.names, plan.model.task, plan.trained

    def loss(moving: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor, key: Tensor) -> Tensor:
        outputs = task.training_outputs(fixed | moving, x[None], key)
        return task.sample_losses(outputs, y[None])[0]

    every = dict(zip(names, params, strict=True))
    moving, fixed = {n: every[n] for n in trained}, {n: t for n, t in every.items() if n not in trained}
    per_row = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, None, 0, 0, None))
    grads, losses = torch.func.vmap(per_row)(moving, fixed, x, y, key)
    return torch.cat([grads[n].flatten(2) for n in trained], 2), losses


def train_protected(plan: Plan, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, given: Given) -> tuple[Tensor, ...]:
    """A chunk of clients, as `sgd.train`; the mean loss is that of the drawn rows, and no receipt covers it."""
    rows = plan.rows
    assert rows is not None
    params = [given[f"weight/{name}"].clone() for name in plan.model.names]
    optimiser, total = plan.optimiser(given), mask.new_zeros(len(x))
    size = rows.mechanism.sampling * (mask > 0).sum(1, keepdim=True)  # the expected number of drawn rows
    steps = plan.walk.steps or 0
    for s in range(steps):
        live = rows.drawn(mask).to(mask.dtype)
        moving = [params[i] for i in plan.model.trained]
        gradients, losses = row_gradients(plan, params, x, y, plan.keys(key, steps)[:, s])
        gradients = torch.where(live[..., None] > 0, gradients, 0.0)
        total += (losses * live).nan_to_num().sum(1) / live.sum(1).clamp(min=1)
        mean = (rows.released(gradients) / size).to(mask.dtype)
        parts = torch.split(mean, [p[0].numel() for p in moving], 1)
        shaped = [part.reshape(p.shape) for part, p in zip(parts, moving, strict=True)]
        stepped: list[Any] = optimiser.step(moving, shaped, plan.rate(given, s), None, 1)
        for i, new in zip(plan.model.trained, stepped, strict=True):
            params[i] = new
    kept = [t for slots in optimiser.slots for t in slots] + ([] if optimiser.count is None else [optimiser.count])
    return (*(params[i] for i in plan.model.trained), *kept, total / max(steps, 1))
