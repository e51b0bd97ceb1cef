"""A fully connected network with its gradients written by hand, for a whole chunk of clients at once.

Every tensor has a leading client dimension, and a layer is one batched matrix product. A plain SGD step accumulates these
products straight into the weights (`baddbmm_`): no gradient is ever stored, which halves the memory traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    def forward(self, params: Sequence[Tensor], x: Tensor) -> list[Tensor]:
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

    def descend(
        self,
        params: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        lr: float,
        trained: Sequence[int],
        correct: Sequence[Tensor] | None = None,
        pull: float = 0.0,
        anchors: Sequence[Tensor] = (),
    ) -> Tensor:
        """One plain SGD step of the trained parameters in place, along the gradient plus `correct` plus pull·(p − anchor);
        returns the loss before it."""

        def update(w: int, b: int, delta: Tensor, inputs: Tensor) -> None:
            if w in trained:
                params[w].baddbmm_(delta.mT, inputs, beta=1 - lr * pull, alpha=-lr)
            if b in trained:
                (params[b].mul_(1 - lr * pull) if pull else params[b]).sub_(delta.sum(1), alpha=lr)

        loss = self._backward(params, x, y, weight, trained, update)
        moved = [params[i] for i in trained]
        if correct is not None:
            torch._foreach_add_(moved, list(correct), alpha=-lr)
        if pull:
            torch._foreach_add_(moved, list(anchors), alpha=lr * pull)
        return loss

    def descended(self, params: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor, lr: float) -> list[Tensor]:
        """The parameters after one plain SGD step; those given stay as they are."""
        new = list(params)

        def update(w: int, b: int, delta: Tensor, inputs: Tensor) -> None:
            new[w] = torch.baddbmm(params[w], delta.mT, inputs, alpha=-lr)
            if b >= 0:
                new[b] = torch.sub(params[b], delta.sum(1), alpha=lr)

        self._backward(params, x, y, weight, range(len(params)), update)
        return new

    def gradients(
        self, params: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor, trained: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """Loss per client, and the gradients of the trained parameters."""
        grads = [torch.empty(0)] * len(params)

        def keep(w: int, b: int, delta: Tensor, inputs: Tensor) -> None:
            if w in trained:
                grads[w] = torch.bmm(delta.mT, inputs)
            if b in trained:
                grads[b] = delta.sum(1)

        loss = self._backward(params, x, y, weight, trained, keep)
        return loss, [grads[i] for i in trained]

    def _backward(
        self,
        params: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        trained: Sequence[int],
        use: Callable[[int, int, Tensor, Tensor], None],
    ) -> Tensor:
        """From the last layer down to the first with a trained parameter."""
        values = self.forward(params, x)
        loss, delta = self.head(values[-1], y, weight)
        lowest = min(i for i, (w, b, _) in enumerate(self.layers) if w in trained or b in trained)
        for i in reversed(range(lowest, len(self.layers))):
            w, b, act = self.layers[i]
            if act is not None:
                delta = _ACTIVATIONS[act][1](delta, values[i + 1])
            back = torch.bmm(delta, params[w]) if i > lowest else delta  # by the old weights, before they move
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
