"""A network with its gradients written by hand, for a whole chunk of clients at once.

Every tensor has a leading client dimension, and a layer is one batched matrix product. A plain SGD step accumulates the
products of fully connected layers straight into the weights (`baddbmm_`): no gradient is ever stored, which halves the
memory traffic. Convolutions may come first (`convolutions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.learning.batched.activations import ACTIVATIONS
from coterie.learning.batched.convolutions import Block, Passed

Layer = tuple[int, int, type[nn.Module] | None]
"""A fully connected layer: position of the weight, of the bias (or −1), and the activation (or None)."""


class Trace(NamedTuple):
    """A pass forward: what convolutions leave, then the inputs of every fully connected layer and the outputs."""

    blocks: list[Passed]
    values: list[Tensor]


class Use(Protocol):
    """What becomes of a derivative: by the weight of a fully connected layer it is deltaᵀ·inputs, not yet multiplied."""

    def product(self, place: int, delta: Tensor, inputs: Tensor) -> None: ...

    def plain(self, place: int, gradient: Tensor) -> None: ...


@dataclass(frozen=True)
class Network:
    """Convolutions, then fully connected layers."""

    blocks: tuple[Block, ...]
    layers: tuple[Layer, ...]
    loss: str

    @classmethod
    def of(cls, module: nn.Module, names: tuple[str, ...], loss: object, sample: torch.Size) -> Network | None:
        """None when the module is anything but such a Sequential, with elementwise activations and max-pooling."""
        if loss not in ("cross_entropy", "mse", "bce") or list(module.buffers()):
            return None
        places = {name: i for i, name in enumerate(names)}
        found: list[Block | Layer] = []
        flat, pictures = len(sample) == 1, len(sample) == 3
        for name, part in _in_order(module):
            if type(part) is nn.Identity:
                continue
            if type(part) is nn.Flatten and not _dense(found) and part.start_dim == 1 and part.end_dim == -1:
                flat = True
                continue
            if type(part) in (nn.Linear, nn.Conv2d):
                added = _layer(part, f"{name}weight", f"{name}bias", places)
                fits = (pictures and not flat) if isinstance(added, Block) else flat
                if added is None or not fits:
                    return None
                found.append(added)
            elif not found or (longer := _with(found[-1], part)) is None:
                return None
            else:
                found[-1] = longer
        blocks = tuple(part for part in found if isinstance(part, Block))
        layers = tuple(part for part in found if not isinstance(part, Block))
        used = [w for w, _, _ in layers] + [b for _, b, _ in layers] + [i for k in blocks for i in (k.weight, k.bias)]
        whole = sorted(i for i in used if i >= 0) == list(range(len(names)))
        return cls(blocks, layers, str(loss)) if layers and whole else None

    def bytes(self, sample: torch.Size) -> int:
        """What a pass forward of one sample of this shape leaves of the convolutions, about."""
        count, (_, rows, columns) = 0, sample if self.blocks else (0, 0, 0)
        for block in self.blocks:
            numbers, rows, columns = block.size(rows, columns)
            count += numbers
        return 4 * count

    def forward(self, params: Sequence[Tensor], x: Tensor) -> Trace:
        """(clients, samples, …) → everything up to the outputs (clients, samples, width)."""
        passed: list[Passed] = []
        pictures = x.transpose(1, 2)
        for block in self.blocks:
            passed.append(block.forward(params[block.weight], None if block.bias < 0 else params[block.bias], pictures))
            pictures = passed[-1].out
        values = [pictures.transpose(1, 2).flatten(2) if self.blocks else x.flatten(2)]
        for w, b, act in self.layers:
            weight = params[w].mT
            z = torch.bmm(values[-1], weight) if b < 0 else torch.baddbmm(params[b].unsqueeze(1), values[-1], weight)
            values.append(z if act is None else ACTIVATIONS[act][0](z))
        return Trace(passed, values)

    def head(self, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The loss per client and its derivative by the last layer's values."""
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
        loss = self._descended(params, x, y, weight, trained, _InPlace(params, trained, lr, pull))
        moved = [params[i] for i in trained]
        if correct is not None:
            torch._foreach_add_(moved, list(correct), alpha=-lr)
        if pull:
            torch._foreach_add_(moved, list(anchors), alpha=lr * pull)
        return loss

    def descended(self, params: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor) -> list[Tensor]:
        """The parameters minus the gradient; those given stay as they are."""
        moved = _Moved(params)
        self._descended(params, x, y, weight, range(len(params)), moved)
        return moved.new

    def gradients(
        self, params: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor, trained: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """Loss per client, and the gradients of the trained parameters."""
        kept = _Kept({})
        loss = self._descended(params, x, y, weight, trained, kept)
        return loss, [kept.gradients[i] for i in trained]

    def pulled(self, params: Sequence[Tensor], x: Tensor, trace: Trace, delta: Tensor) -> list[Tensor]:
        """The gradients of anything whose derivative by the outputs is `delta`."""
        kept = _Kept({})
        self._backward(params, x, trace, delta, range(len(params)), kept)
        return [kept.gradients[i] for i in range(len(params))]

    def _descended(
        self, params: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor, trained: Sequence[int], use: Use
    ) -> Tensor:
        trace = self.forward(params, x)
        loss, delta = self.head(trace.values[-1], y, weight)
        self._backward(params, x, trace, delta, trained, use)
        return loss

    def _backward(
        self, params: Sequence[Tensor], x: Tensor, trace: Trace, delta: Tensor, trained: Sequence[int], use: Use
    ) -> None:
        """The layers from the last down to the first with a trained parameter."""
        wanted = [k.weight in trained or k.bias in trained for k in self.blocks]
        wanted += [w in trained or b in trained for w, b, _ in self.layers]
        lowest, depth = wanted.index(True), len(self.blocks)
        for i in reversed(range(max(lowest - depth, 0), len(self.layers))):
            w, b, act = self.layers[i]
            if act is not None:
                delta = ACTIVATIONS[act][1](delta, trace.values[i + 1])
            back = torch.bmm(delta, params[w]) if i + depth > lowest else delta  # by the old weights, before they move
            if w in trained:
                use.product(w, delta, trace.values[i])
            if b in trained:
                use.plain(b, delta.sum(1))
            delta = back
        if lowest >= depth:
            return
        out = trace.blocks[-1].out
        delta = delta.view(len(x), out.shape[2], out.shape[1], -1).transpose(1, 2).contiguous().view(out.shape)
        for i in reversed(range(lowest, depth)):
            block = self.blocks[i]
            shape = None if i == lowest else trace.blocks[i - 1].out.shape
            by_kernel, by_bias, by_inputs = block.backward(params[block.weight], trace.blocks[i], delta, shape)
            if block.weight in trained:
                use.plain(block.weight, by_kernel)
            if block.bias in trained:
                use.plain(block.bias, by_bias)
            delta = delta if by_inputs is None else by_inputs


@dataclass
class _InPlace:
    """p ← (1 − lr·pull)·p − lr·gradient."""

    params: Sequence[Tensor]
    trained: Sequence[int]
    lr: float
    pull: float

    def product(self, place: int, delta: Tensor, inputs: Tensor) -> None:
        self.params[place].baddbmm_(delta.mT, inputs, beta=1 - self.lr * self.pull, alpha=-self.lr)

    def plain(self, place: int, gradient: Tensor) -> None:
        p = self.params[place]
        (p.mul_(1 - self.lr * self.pull) if self.pull else p).sub_(gradient, alpha=self.lr)


@dataclass
class _Moved:
    """p − gradient, as a new tensor."""

    params: Sequence[Tensor]

    def __post_init__(self) -> None:
        self.new = list(self.params)

    def product(self, place: int, delta: Tensor, inputs: Tensor) -> None:
        self.new[place] = torch.baddbmm(self.params[place], delta.mT, inputs, alpha=-1)

    def plain(self, place: int, gradient: Tensor) -> None:
        self.new[place] = self.params[place] - gradient


@dataclass
class _Kept:
    gradients: dict[int, Tensor]

    def product(self, place: int, delta: Tensor, inputs: Tensor) -> None:
        self.gradients[place] = torch.bmm(delta.mT, inputs)

    def plain(self, place: int, gradient: Tensor) -> None:
        self.gradients[place] = gradient


def _dense(found: Sequence[Block | Layer]) -> bool:
    return any(not isinstance(part, Block) for part in found)


def _layer(part: nn.Module, weight: str, bias: str, places: dict[str, int]) -> Block | Layer | None:
    """None when a parameter is tied to another layer or frozen."""
    if weight not in places or (part.bias is not None and bias not in places):
        return None
    w, b = places[weight], places.get(bias, -1)
    return Block.of(part, w, b) if isinstance(part, nn.Conv2d) else (w, b, None)


def _with(last: Block | Layer, part: nn.Module) -> Block | Layer | None:
    """A layer together with the activation or pooling after it."""
    if isinstance(last, Block):
        if type(part) in ACTIVATIONS and last.activation is None:
            return replace(last, activation=type(part))
        if type(part) is nn.MaxPool2d and last.pool == 1 and (size := _pooling(part)) is not None:
            return replace(last, pool=size)
        return None
    return (last[0], last[1], type(part)) if type(part) in ACTIVATIONS and last[2] is None else None


def _pooling(part: nn.MaxPool2d) -> int | None:
    """The side of square pools that do not overlap; None for others."""
    sides = {*_pair(part.kernel_size), *_pair(part.stride)}
    plain = _pair(part.padding) == (0, 0) and _pair(part.dilation) == (1, 1) and not part.ceil_mode
    return sides.pop() if plain and not part.return_indices and len(sides) == 1 else None


def _pair(given: int | tuple[int, ...]) -> tuple[int, ...]:
    return (given, given) if isinstance(given, int) else tuple(given)


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
