"""LocalSGD: the steps a client takes on its own data.

Written for one client. `_Steps` is a primitive with a batching rule: when a client function runs under `torch.func.vmap`,
the rule receives the models and data of a whole chunk of clients and trains them together (`sgd_batched.train`), all
steps of the chunk before the next chunk, with gradients and updates fused where the network allows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.learning import sgd_batched
from coterie.learning.task import Task
from coterie.tree import Params


class Samples(Protocol):
    """What local steps need to know of a client; a `Context` has it."""

    @property
    def task(self) -> Task: ...
    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def key(self) -> Tensor: ...
    @property
    def round(self) -> int: ...


@dataclass(frozen=True)
class LocalSGD:
    """`steps` mini-batch steps (or `epochs` passes); `batch_size=None` uses all of the client's samples in every step.

    The learning rate in round t is `lr * decay ** t`. Batches walk through a fresh permutation of the client's samples
    each epoch, drawn from the client's own random stream.
    """

    steps: int | None = None
    lr: float = 0.1
    batch_size: int | None = 32
    epochs: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 10)
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"LocalSGD takes steps or epochs, not both; got {self.steps} and {self.epochs}. Drop one."
            )
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and (value < 1 or int(value) != value):
                raise ConfigError(f"LocalSGD needs {name} to be a whole number of at least 1; got {value}.")
            if value is not None:
                object.__setattr__(self, name, int(value))
        for name, low, high in (("lr", 0.0, None), ("momentum", 0.0, 1.0), ("weight_decay", 0.0, None)):
            value = getattr(self, name)
            if not value >= low or (high is not None and value >= high):
                span = f"in [{low}, {high})" if high is not None else f"at least {low}"
                raise ConfigError(f"LocalSGD needs {name} {span}; got {value}.")
        if not self.decay > 0:
            raise ConfigError(f"LocalSGD needs decay above 0 (1: no decay); got {self.decay}.")

    def fit(
        self, ctx: Samples, params: Params, *, anchor: Params | None = None, pull: float = 0.0
    ) -> tuple[Params, Tensor]:
        """The trained model and the mean loss met on the way; `pull`·‖v − anchor‖²/2 is added to the loss."""
        plan = sgd_batched.Plan(
            task=ctx.task,
            names=tuple(params),
            steps=self.steps,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr * self.decay**ctx.round,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            pull=pull if anchor is not None else 0.0,
        )
        anchors = tuple(anchor[name] for name in params) if plan.pull and anchor is not None else ()
        *trained, loss = _Steps.apply(  # type: ignore[no-untyped-call]
            plan, ctx.x, ctx.y, ctx.mask, ctx.key, *params.values(), *anchors
        )
        return dict(zip(params, trained, strict=True)), loss


class _Steps(torch.autograd.Function):
    """τ steps of SGD; not differentiable itself."""

    @staticmethod
    def forward(plan: sgd_batched.Plan, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, *weights: Tensor) -> Any:
        return sgd_batched.train_one(plan, x, y, mask, key, *plan.split(weights))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("LocalSGD.fit cannot be differentiated; write the steps with ctx.grad instead.")

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: sgd_batched.Plan, *tensors: Tensor) -> Any:
        chunk = [
            t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors, in_dims[1:], strict=True)
        ]
        x, y, mask, key, *weights = chunk
        trained = sgd_batched.train(plan, x, y, mask, key, *plan.split(tuple(weights)))
        return trained, (0,) * len(trained)
