"""Losses and gradients of a chunk of clients, and the implementation of `Context.grad`.

`chunk_gradients` knows three ways, same numbers up to rounding: hand-written gradients for a fully connected network with
a known loss (`networks`), client by client for convolutions (batching them gains nothing on a CPU), and ordinary
autograd under `vmap` for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.base.tree import Params
from coterie.learning.batched import forward_and_back
from coterie.learning.batched.chunks import in_one_vmap, maps_and_derivatives, on_chunk
from coterie.learning.batched.networks import Network
from coterie.learning.task import Task


@dataclass(frozen=True)
class Model:
    """Which parameters a list of tensors holds, and the positions of those that are trained."""

    task: Task
    names: tuple[str, ...]
    trained: tuple[int, ...]

    @classmethod
    def whole(cls, task: Task, params: Params) -> Model:
        """All trained parameters, without running statistics."""
        return cls(task, tuple(params), tuple(i for i, name in enumerate(params) if name not in task.statistics))

    def network(self, x: Tensor, y: Tensor | None = None) -> Network | None:
        """The chunk's fast way, where the task's module allows it and a target is one number."""
        if y is not None and y.dim() != 2:
            return None
        return self.task.network(self.names, x.shape[2:])


def chunk_gradients(
    model: Model, network: Network | None, params: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor, key: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Loss per client and the gradients of the trained parameters; every tensor has a leading client dimension."""
    if network is not None:
        some = forward_and_back.in_cache(network, x)
        parts = [network.gradients([p[i] for p in params], x[i], y[i], weight[i], model.trained) for i in some]
        gradients = zip(*(grads for _, grads in parts), strict=True)
        return forward_and_back.joined([loss for loss, _ in parts]), [
            forward_and_back.joined(list(column)) for column in gradients
        ]

    def one(weights: Params, x: Tensor, y: Tensor, w: Tensor, key: Tensor) -> Tensor:
        return (model.task.sample_losses(model.task.training_outputs(weights, x, key), y) * w).sum()

    with torch.enable_grad():
        leaves = [p.detach().requires_grad_(i in model.trained) for i, p in enumerate(params)]
        if model.task.one_by_one:
            rows = [dict(zip(model.names, (t[c] for t in leaves), strict=True)) for c in range(len(x))]
            losses = torch.stack([one(row, x[c], y[c], weight[c], key[c]) for c, row in enumerate(rows)])
        else:
            losses = torch.func.vmap(one)(dict(zip(model.names, leaves, strict=True)), x, y, weight, key)
        wanted = [leaves[i] for i in model.trained]
        grads = torch.autograd.grad(losses.sum(), wanted, materialize_grads=True)
    return losses.detach(), list(grads)


def grad_and_loss(task: Task, params: Params, x: Tensor, y: Tensor, mask: Tensor, key: Tensor) -> tuple[Params, Tensor]:
    """Gradient and value of the mean loss on the samples where the mask holds; 0 for running statistics."""
    if not in_one_vmap():
        return _plain(task, params, x, y, mask, key)
    model = Model.whole(task, params)
    *grads, loss = on_chunk(_gradient, model, x, y, mask, key, *params.values())
    return dict(zip(params, grads, strict=True)), loss


def descend(task: Task, params: Params, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, lr: float | Tensor) -> Params:
    """`params` − lr·gradient of the mean loss."""
    if not in_one_vmap():
        gradient, _ = grad_and_loss(task, params, x, y, mask, key)
        return {name: p - lr * gradient[name] for name, p in params.items()}
    model, rate = Model.whole(task, params), torch.as_tensor(lr, dtype=mask.dtype).reshape(())
    stepped = on_chunk(_descent, model, x, y, mask, key, rate, *params.values())
    return dict(zip(params, stepped, strict=True))


def _plain(task: Task, params: Params, x: Tensor, y: Tensor, mask: Tensor, key: Tensor) -> tuple[Params, Tensor]:
    """Ordinary autograd, which can itself be differentiated and mapped."""

    fixed = {name: params[name].detach() for name in params if name in task.statistics}
    learning = {name: p for name, p in params.items() if name not in fixed}

    def mean_loss(learning: Params) -> Tensor:
        losses = task.sample_losses(task.training_outputs(learning | fixed, x, key), y)
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    if maps_and_derivatives():
        slope, loss = torch.func.grad_and_value(mean_loss)(learning)
    else:
        with torch.enable_grad():  # nothing is mapped and no further derivative is taken: plain autograd is faster
            own = {name: p.detach().requires_grad_() for name, p in learning.items()}
            loss = mean_loss(own)
            grads = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
        slope, loss = dict(zip(own, grads, strict=True)), loss.detach()
    return {name: slope[name] if name in slope else torch.zeros_like(p) for name, p in params.items()}, loss


Pullback = Callable[[Tensor], Params]
"""Turns the derivative of anything by a network's outputs into its derivative by the parameters."""


def pullback(task: Task, params: Params, x: Tensor, key: Tensor) -> tuple[Tensor, Pullback]:
    """A network's outputs and their pullback: one pass forward serves the value and the gradient."""
    network = task.network(tuple(params), x.shape[1:]) if in_one_vmap() else None
    if network is not None:
        task.require(params)
        z, pulled = forward_and_back.pullback(network, x, tuple(params.values()))
        return z, lambda d: dict(zip(params, pulled(d), strict=True))
    if maps_and_derivatives():
        outputs, back = torch.func.vjp(lambda p: task.training_outputs(p, x, key), params)  # type: ignore[misc]
        return outputs, lambda d: back(d)[0]
    with torch.enable_grad():
        own = {name: p.detach().requires_grad_() for name, p in params.items()}
        outputs = task.training_outputs(own, x, key)

    def by_parameters(d: Tensor) -> Params:
        grads = torch.autograd.grad(outputs, list(own.values()), d, materialize_grads=True)
        return dict(zip(own, grads, strict=True))

    return outputs.detach(), by_parameters


# ---- for a chunk of clients, where no derivative is taken of what is computed here -----------------------------------


def _gradient(model: Model, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, *params: Tensor) -> list[Tensor]:
    loss, grads = chunk_gradients(model, model.network(x, y), params, x, y, _weight(mask), key)
    return [*_everywhere(model, params, grads), loss]


def _descent(
    model: Model, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, lr: Tensor, *params: Tensor
) -> Sequence[Tensor]:
    """The gradient is linear in the samples' shares, so that these can carry the learning rate."""
    network, weight = model.network(x, y), _weight(mask) * lr.unsqueeze(-1)
    if network is not None:
        return network.descended(params, x, y, weight)
    _, grads = chunk_gradients(model, None, params, x, y, weight, key)
    return torch._foreach_sub(params, _everywhere(model, params, grads))


def _everywhere(model: Model, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, with 0 for entries that are not trained."""
    found = dict(zip(model.trained, grads, strict=True))
    return [found[i] if i in found else torch.zeros_like(p) for i, p in enumerate(params)]


def _weight(mask: Tensor) -> Tensor:
    """Every sample's share in its client's mean loss."""
    return mask / mask.sum(-1, keepdim=True).clamp(min=1)
