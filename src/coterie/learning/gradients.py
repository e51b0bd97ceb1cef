"""Losses and gradients of a chunk of clients, and the primitive behind `Context.grad`.

`chunk_gradients` knows three ways, same numbers up to rounding: hand-written gradients for a fully connected network with
a known loss (`networks`), client by client for convolutions (batching them gains nothing on a CPU), and ordinary
autograd under `vmap` for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.learning import passes
from coterie.learning.batches import in_chunk
from coterie.learning.networks import Network
from coterie.learning.task import Task
from coterie.tree import Params


@dataclass(frozen=True)
class Model:
    """Which parameters a list of tensors holds, and the positions of those that are trained."""

    task: Task
    names: tuple[str, ...]
    trained: tuple[int, ...]

    def network(self, x: Tensor) -> Network | None:
        """The chunk's fast way, where the task's module allows it."""
        return self.task.network(self.names, x.shape[2:])


def chunk_gradients(
    model: Model, network: Network | None, params: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Loss per client and the gradients of the trained parameters; every tensor has a leading client dimension."""
    if network is not None:
        some = passes.in_cache(network, x)
        parts = [network.gradients([p[i] for p in params], x[i], y[i], weight[i], model.trained) for i in some]
        return torch.cat([loss for loss, _ in parts]), [torch.cat(c) for c in zip(*(g for _, g in parts), strict=True)]

    def one(weights: Params, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return (model.task.sample_losses(model.task.outputs(weights, x), y) * w).sum()

    with torch.enable_grad():
        leaves = [p.detach().requires_grad_(i in model.trained) for i, p in enumerate(params)]
        if model.task.convolutional:
            rows = [dict(zip(model.names, (t[c] for t in leaves), strict=True)) for c in range(len(x))]
            losses = torch.stack([one(row, x[c], y[c], weight[c]) for c, row in enumerate(rows)])
        else:
            losses = torch.func.vmap(one)(dict(zip(model.names, leaves, strict=True)), x, y, weight)
        wanted = [leaves[i] for i in model.trained]
        grads = torch.autograd.grad(losses.sum(), wanted, materialize_grads=True)
    return losses.detach(), list(grads)


def grad_and_loss(task: Task, params: Params, x: Tensor, y: Tensor, mask: Tensor) -> tuple[Params, Tensor]:
    """Gradient and value of the mean loss on the samples where the mask holds."""
    if not passes.in_one_vmap():
        return _plain(task, params, x, y, mask)
    model = Model(task, tuple(params), tuple(range(len(params))))
    *grads, loss = _Gradient.apply(model, x, y, mask, *params.values())  # type: ignore[no-untyped-call]
    return dict(zip(params, grads, strict=True)), loss


def descend(task: Task, params: Params, x: Tensor, y: Tensor, mask: Tensor, lr: float | Tensor) -> Params:
    """`params` − lr·gradient of the mean loss."""
    if not passes.in_one_vmap() or isinstance(lr, Tensor):
        gradient, _ = grad_and_loss(task, params, x, y, mask)
        return {name: p - lr * gradient[name] for name, p in params.items()}
    model = Model(task, tuple(params), tuple(range(len(params))))
    stepped = _Descent.apply(model, lr, x, y, mask, *params.values())  # type: ignore[no-untyped-call]
    return dict(zip(params, stepped, strict=True))


def _plain(task: Task, params: Params, x: Tensor, y: Tensor, mask: Tensor) -> tuple[Params, Tensor]:
    """Ordinary autograd, which can itself be differentiated and mapped."""

    def mean_loss(params: Params) -> Tensor:
        losses = task.sample_losses(task.outputs(params, x), y)
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    if passes.maps_and_derivatives():
        gradient, loss = torch.func.grad_and_value(mean_loss)(params)
        return gradient, loss
    with torch.enable_grad():  # nothing is mapped and no further derivative is taken: plain autograd is faster
        own = {name: p.detach().requires_grad_() for name, p in params.items()}
        loss = mean_loss(own)
        grads = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
    return dict(zip(own, grads, strict=True)), loss.detach()


Pullback = Callable[[Tensor], Params]
"""Turns the derivative of anything by a network's outputs into its derivative by the parameters."""


def pullback(task: Task, params: Params, x: Tensor) -> tuple[Tensor, Pullback]:
    """A network's outputs and their pullback: one pass forward serves the value and the gradient."""
    network = task.network(tuple(params), x.shape[1:]) if passes.in_one_vmap() else None
    if network is not None:
        task.require(params)
        z, pulled = passes.pullback(network, x, tuple(params.values()))
        return z, lambda d: dict(zip(params, pulled(d), strict=True))
    if passes.maps_and_derivatives():
        outputs, back = torch.func.vjp(lambda p: task.outputs(p, x), params)  # type: ignore[misc]
        return outputs, lambda d: back(d)[0]
    with torch.enable_grad():
        own = {name: p.detach().requires_grad_() for name, p in params.items()}
        outputs = task.outputs(own, x)

    def by_parameters(d: Tensor) -> Params:
        grads = torch.autograd.grad(outputs, list(own.values()), d, materialize_grads=True)
        return dict(zip(own, grads, strict=True))

    return outputs.detach(), by_parameters


class _Primitive(torch.autograd.Function):
    """Only ever used under one `vmap`, whose rule sees the whole chunk, and outside of derivatives."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)


class _Gradient(_Primitive):
    @staticmethod
    def forward(model: Model, x: Tensor, y: Tensor, mask: Tensor, *params: Tensor) -> Any:
        gradient, loss = _plain(model.task, dict(zip(model.names, params, strict=True)), x, y, mask)
        return (*gradient.values(), loss)

    @staticmethod
    def vmap(info: Any, in_dims: Any, model: Model, *tensors: Tensor) -> Any:
        x, y, mask, *params = in_chunk(info, in_dims[1:], tensors)
        loss, grads = chunk_gradients(model, model.network(x), params, x, y, _weight(mask))
        return (*grads, loss), (0,) * (len(grads) + 1)


class _Descent(_Primitive):
    @staticmethod
    def forward(model: Model, lr: float, x: Tensor, y: Tensor, mask: Tensor, *params: Tensor) -> Any:
        named = dict(zip(model.names, params, strict=True))
        return tuple(descend(model.task, named, x, y, mask, lr).values())

    @staticmethod
    def vmap(info: Any, in_dims: Any, model: Model, lr: float, *tensors: Tensor) -> Any:
        x, y, mask, *params = in_chunk(info, in_dims[2:], tensors)
        network = model.network(x)
        if network is not None:
            stepped = network.descended(params, x, y, _weight(mask), lr)
        else:
            _, grads = chunk_gradients(model, None, params, x, y, _weight(mask))
            stepped = [torch.sub(p, g, alpha=lr) for p, g in zip(params, grads, strict=True)]
        return tuple(stepped), (0,) * len(stepped)


def _weight(mask: Tensor) -> Tensor:
    """Every sample's share in its client's mean loss."""
    return mask / mask.sum(-1, keepdim=True).clamp(min=1)
