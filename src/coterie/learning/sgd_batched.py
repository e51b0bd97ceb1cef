"""Many clients' SGD at once: models stacked as (clients, …), one batched matrix product a layer.

Three ways, same numbers up to rounding:
- a fully connected `nn.Sequential` with a known loss runs on hand-written gradients whose products are accumulated
  straight into the weights (`baddbmm_`): no gradient is ever stored, which halves the memory traffic;
- a network with convolutions runs client by client with the library's own kernels (batching them gains nothing on a CPU);
- anything else runs under `vmap` with ordinary autograd.
`train_one` is the plain version for one client, and the oracle the others are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie import randomness
from coterie.learning.task import Task
from coterie.tree import Params

Weights = tuple[Tensor, ...]


@dataclass(frozen=True)
class Plan:
    """What to do in one call of LocalSGD.fit."""

    task: Task
    names: tuple[str, ...]
    steps: int | None
    epochs: int | None
    batch_size: int | None
    lr: float
    momentum: float
    weight_decay: float
    pull: float

    @property
    def plain(self) -> bool:
        return self.momentum == 0 and self.weight_decay == 0 and self.pull == 0

    def split(self, weights: Weights) -> tuple[Weights, Weights]:
        return weights[: len(self.names)], weights[len(self.names) :]


def batches(plan: Plan, mask: Tensor, key: Tensor) -> tuple[Tensor | None, Tensor]:
    """Sample positions (…, steps, batch), or None for the full batch, and their weights, which sum to one a step
    (to zero for the steps a client with few samples does not take)."""
    n = mask.sum(-1, keepdim=True)
    if plan.batch_size is None:
        steps = plan.steps if plan.steps is not None else plan.epochs or 1
        weight = (mask / n.clamp(min=1)).unsqueeze(-2)
        return None, weight.expand(*weight.shape[:-2], steps, mask.shape[-1])
    size = min(plan.batch_size, mask.shape[-1])
    per_epoch = torch.ceil(n / plan.batch_size).long().clamp(min=1)  # (…, 1)
    steps = plan.steps if plan.steps is not None else int(per_epoch.max()) * (plan.epochs or 1)
    step = torch.arange(steps)
    epoch = step // per_epoch  # (…, steps)
    n_epochs = int(epoch.max()) + 1 if plan.epochs is None else plan.epochs
    orders = torch.stack(
        [randomness.permutation(randomness.fold(key, "batches", e), mask) for e in range(n_epochs)], -2
    )
    start = (step % per_epoch) * plan.batch_size
    position = start.unsqueeze(-1) + torch.arange(size)  # (…, steps, batch)
    real = position < n.long().unsqueeze(-1)
    if plan.epochs is not None:
        real = real & (epoch < plan.epochs).unsqueeze(-1)
    flat = epoch.clamp(max=n_epochs - 1).unsqueeze(-1) * mask.shape[-1] + position.clamp(max=mask.shape[-1] - 1)
    chosen = orders.flatten(-2).gather(-1, flat.flatten(-2)).reshape(flat.shape)
    weight = real.to(mask.dtype)
    return chosen, weight / weight.sum(-1, keepdim=True).clamp(min=1)


@torch.no_grad()
def train_one(
    plan: Plan, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, weights: Weights, anchors: Weights
) -> tuple[Tensor, ...]:
    """One client, one model, plain autograd."""
    chosen, weight = batches(plan, mask, key)
    velocity = [torch.zeros_like(w) for w in weights] if plan.momentum else []
    total = torch.zeros((), dtype=weights[0].dtype)
    sizes = (weight > 0).sum(-1).tolist()  # real samples come first; a client with few takes fewer steps
    steps = [(s, size) for s, size in enumerate(sizes) if size]
    with _holding(plan, weights) as (module, params):
        for s, size in steps:
            rows = None if chosen is None else chosen[s, :size]
            xs, ys = (x[:size], y[:size]) if rows is None else (x.index_select(0, rows), y.index_select(0, rows))
            with torch.enable_grad():
                loss = (plan.task.sample_losses(module(xs), ys) * weight[s, :size]).sum()
                grads = torch.autograd.grad(loss, params, materialize_grads=True)
            _apply(plan, params, list(grads), velocity, list(anchors), None)
            total += loss.detach()
        trained = [p.detach().contiguous() for p in params]
    return (*trained, total / max(len(steps), 1))


@contextmanager
def _holding(plan: Plan, weights: Weights) -> Iterator[tuple[nn.Module, list[Tensor]]]:
    """A module of this thread with copies of the weights as its parameters: swapped in once, not in every step.

    Kernels of convolutions lie channels-last, and with them all that is computed from them: pooling is vectorised then."""
    module = plan.task.trainee
    own = dict(module.named_parameters())
    before = {name: p.data for name, p in own.items()}
    try:
        for name, w in zip(plan.names, weights, strict=True):
            layout = torch.channels_last if w.dim() == 4 else torch.contiguous_format
            own[name].requires_grad_().data = w.clone(memory_format=layout)
        yield module, [own[name] for name in plan.names]
    finally:
        for name, p in own.items():
            p.data = before[name]


def _apply(
    plan: Plan,
    params: list[Tensor],
    grads: list[Tensor],
    velocity: list[Tensor],
    anchors: list[Tensor],
    on: Tensor | None,
) -> None:
    """One SGD step in place; `on` (clients,) is 0 for clients that sit this step out.

    The pull towards the anchor is an explicit step while lr·pull ≤ 1 and an implicit one (p ← anchor + (p − anchor)/(1 +
    lr·pull)) beyond, where the explicit step would overshoot: any pull, however strong, is stable."""
    if plan.plain and on is None:
        torch._foreach_add_(params, grads, alpha=-plan.lr)
        return
    strong = plan.lr * plan.pull > 1
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        if plan.weight_decay:
            g = g + plan.weight_decay * p
        if plan.pull and not strong:
            g = g + plan.pull * (p - anchors[i])
        scale = None if on is None else on.reshape(-1, *[1] * (p.dim() - 1))
        if plan.momentum:
            moved = plan.momentum * velocity[i] + g
            velocity[i] = moved if scale is None else torch.where(scale > 0, moved, velocity[i])
            g = velocity[i]
        p.sub_(g if scale is None else g * scale, alpha=plan.lr)
        if strong:
            pulled = anchors[i] + (p - anchors[i]) / (1 + plan.lr * plan.pull)
            p.copy_(pulled if scale is None else torch.where(scale > 0, pulled, p))


def train(
    plan: Plan, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, weights: Weights, anchors: Weights
) -> tuple[Tensor, ...]:
    """A chunk of clients: every tensor has a leading client dimension."""
    module = plan.task.skeleton
    if plan.task.convolutional:
        rows = [
            train_one(plan, x[c], y[c], mask[c], key[c], tuple(w[c] for w in weights), tuple(a[c] for a in anchors))
            for c in range(len(x))
        ]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))
    chosen, weight = batches(plan, mask, key)
    params = [w.clone(memory_format=torch.contiguous_format) for w in weights]
    velocity = [torch.zeros_like(p) for p in params] if plan.momentum else []
    network = Network.of(module, plan.names, plan.task.loss, x.dim() - 2)
    pick = _picker(x, y, chosen)
    on = (weight > 0).any(-1).to(x.dtype)  # (clients, steps)
    ragged = plan.epochs is not None and not plan.plain and bool((on == 0).any())
    total = torch.zeros(len(x), dtype=x.dtype)
    for s in range(weight.shape[-2]):
        xs, ys = pick(s)
        if network is not None and plan.plain:
            total += network.descend(params, xs, ys, weight[:, s], plan.lr)
            continue
        if network is not None:
            loss, grads = network.gradients(params, xs, ys, weight[:, s])
        else:
            loss, grads = _autograd(plan, params, xs, ys, weight[:, s])
        total += loss
        _apply(plan, params, grads, velocity, list(anchors), on[:, s] if ragged else None)
    return (*params, total / on.sum(-1).clamp(min=1))


def _picker(x: Tensor, y: Tensor, chosen: Tensor | None) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Step → the clients' mini-batches. Whole rows of one flat tensor are copied, which is far faster than `x[i, j]`."""
    if chosen is None:
        return lambda step: (x, y)
    row = chosen + (torch.arange(len(x)) * x.shape[1]).reshape(-1, 1, 1)  # (clients, steps, batch)
    shape = (len(x), chosen.shape[-1])
    flat_x, flat_y = x.flatten(0, 1), y.flatten(0, 1)

    def pick(step: int) -> tuple[Tensor, Tensor]:
        rows = row[:, step].flatten()
        xs, ys = flat_x.index_select(0, rows), flat_y.index_select(0, rows)
        return xs.reshape(*shape, *x.shape[2:]), ys.reshape(shape)

    return pick


def _autograd(plan: Plan, params: list[Tensor], x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    def one(weights: Params, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return (plan.task.sample_losses(plan.task.outputs(weights, x), y) * w).sum()

    with torch.enable_grad():
        leaves = [p.detach().requires_grad_() for p in params]
        losses = torch.func.vmap(one)(dict(zip(plan.names, leaves, strict=True)), x, y, weight)
        grads = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
    return losses.detach(), list(grads)


# ---- fully connected networks ----------------------------------------------------------------------------------------

_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda d, y: torch.ops.aten.threshold_backward(d, y, 0)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}  # the function in place, and its fused derivative from (derivative by its values, its values)


@dataclass(frozen=True)
class Network:
    """A fully connected network as a list of (position of weight, position of bias or −1, activation or None)."""

    layers: tuple[tuple[int, int, type[nn.Module] | None], ...]
    loss: str

    @classmethod
    def of(cls, module: nn.Module, names: tuple[str, ...], loss: object, x_dims: int) -> Network | None:
        """None when the module is anything but Linear layers with elementwise activations between them."""
        flat = x_dims == 1
        if loss not in ("cross_entropy", "mse", "bce") or list(module.buffers()):
            return None
        layers: list[tuple[int, int, type[nn.Module] | None]] = []
        places = {name: i for i, name in enumerate(names)}
        for name, part in _in_order(module):
            if type(part) is nn.Linear and flat:
                weight, bias = places.get(f"{name}weight"), places.get(f"{name}bias")
                if weight is None or (bias is None and part.bias is not None):  # tied to another layer, or frozen
                    return None
                layers.append((weight, -1 if bias is None else bias, None))
            elif type(part) in _ACTIVATIONS and layers and layers[-1][2] is None:
                layers[-1] = (*layers[-1][:2], type(part))
            elif type(part) is nn.Flatten and not layers and part.start_dim == 1:
                flat = True
            elif type(part) is nn.Identity:
                continue
            else:
                return None
        whole = len({w for w, _, _ in layers}) == len(layers) and sum(1 + (b >= 0) for _, b, _ in layers) == len(names)
        return cls(tuple(layers), str(loss)) if layers and whole else None

    def forward(self, params: list[Tensor], x: Tensor) -> list[Tensor]:
        """Inputs of every layer, then the outputs: (clients, samples, width)."""
        values = [x.flatten(2)]
        for w, b, act in self.layers:
            weight = params[w].mT
            z = torch.bmm(values[-1], weight) if b < 0 else torch.baddbmm(params[b].unsqueeze(1), values[-1], weight)
            values.append(z if act is None else _ACTIVATIONS[act][0](z))
        return values

    def head(self, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss a client and its derivative by the last layer's values."""
        if self.loss == "cross_entropy":  # log_softmax over a short last dimension costs six times as much
            index, w = y.unsqueeze(-1), weight.unsqueeze(-1)
            shifted = outputs - outputs.amax(-1, keepdim=True)
            right = shifted.gather(-1, index)
            powers = shifted.exp_()
            total = powers.sum(-1, keepdim=True)
            loss = ((total.log() - right) * w).sum((-1, -2))
            return loss, powers.mul_(w / total).scatter_add_(-1, index, -w)
        z = outputs.squeeze(-1)
        if self.loss == "mse":
            residual = z - y
            return (residual**2 * weight).sum(-1), (2 * residual * weight).unsqueeze(-1)
        target = y.to(z.dtype)
        loss = ((F.softplus(z) - z * target) * weight).sum(-1)
        return loss, ((torch.sigmoid(z) - target) * weight).unsqueeze(-1)

    def descend(self, params: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, lr: float) -> Tensor:
        """One plain SGD step in place; returns the loss before it."""

        def update(w: int, b: int, delta: Tensor, inputs: Tensor) -> None:
            params[w].baddbmm_(delta.mT, inputs, alpha=-lr)
            if b >= 0:
                params[b].sub_(delta.sum(1), alpha=lr)

        return self._backward(params, x, y, weight, update)

    def gradients(self, params: list[Tensor], x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
        grads = [torch.empty(0)] * len(params)

        def keep(w: int, b: int, delta: Tensor, inputs: Tensor) -> None:
            grads[w] = torch.bmm(delta.mT, inputs)
            if b >= 0:
                grads[b] = delta.sum(1)

        return self._backward(params, x, y, weight, keep), grads

    def _backward(
        self,
        params: list[Tensor],
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        use: Callable[[int, int, Tensor, Tensor], None],
    ) -> Tensor:
        values = self.forward(params, x)
        loss, delta = self.head(values[-1], y, weight)
        for i in reversed(range(len(self.layers))):
            w, b, act = self.layers[i]
            if act is not None:
                delta = _ACTIVATIONS[act][1](delta, values[i + 1])
            back = torch.bmm(delta, params[w]) if i else delta  # by the old weights, before they move
            use(w, b, delta, values[i])
            delta = back
        return loss


def _in_order(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Parts of nested Sequentials in the order they run, one used twice (a shared nn.ReLU) twice."""
    if type(module) is nn.Sequential:
        return [
            pair
            for name, part in module._modules.items()
            if part is not None
            for pair in _in_order(part, f"{prefix}{name}.")
        ]
    return [(prefix, module)]
