"""Regression on standardised targets inside the task: the network learns numbers around zero; outputs and metrics stay
in the target's own units. Learning rates that suit one table then suit a table with targets of 10⁵."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coterie.data.federation import Federation
from coterie.learning.metrics import mse
from coterie.learning.task import Task


class Rescale(nn.Module):
    """y = scale · output + mean, with fixed numbers."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: float, scale: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.to(x.dtype) + self.mean.to(x.dtype)


@dataclass(frozen=True)
class ScaledSquares:
    """Squared error over the variance of the target."""

    scale: float

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return mse(outputs, y) / self.scale**2


@dataclass(frozen=True)
class Rescaled:
    """Makes a network whose outputs are scaled and shifted by numbers from a public range or from clients' targets."""

    model: Callable[[], nn.Module]
    mean: float
    scale: float
    public_range: tuple[float, float] | None = None

    def __call__(self) -> nn.Module:
        network = self.model()
        parts = network if type(network) is nn.Sequential else [network]  # a sequence's parameters keep their names
        return nn.Sequential(*parts, Rescale(self.mean, self.scale))


def standardised(task: Task, federation: Federation, moments: Sequence[float] | None = None) -> Task:
    """The task with targets standardised by mean and deviation (`moments`; None: of all training rows); others than `mse`
    stay as they are."""
    if task.loss != "mse" or federation.kind != "regression":
        return task
    mean, scale = moments or federation.target_moments()
    if scale == 0 or (abs(mean) < 0.5 * scale and 0.5 < scale < 2):
        return task  # nothing to do; the fast path for plain squared error is kept
    return replace(task, model=Rescaled(task.model, mean, scale), loss=ScaledSquares(scale), metric=task.scorers)


def rescaled(task: Task, low: float, high: float) -> Task:
    """The task with targets standardised by a public range, so that no client's rows are looked at."""
    mean, scale = (low + high) / 2, (high - low) / 4
    model = Rescaled(task.model, mean, scale, (low, high))
    return replace(task, model=model, loss=ScaledSquares(scale), metric=task.metrics)
