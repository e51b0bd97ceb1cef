"""A convolution, the pooling after it and an activation, with gradients written by hand, for a chunk of clients at once.

Max-pooling of p×p values after a convolution is the largest of p² convolutions with stride p, whose kernels are the same
kernel moved by a pixel in a larger window. So one batched matrix product serves all of them, and pooling takes no
search: on a chunk of clients with small batches it is faster than the library's kernels called client by client.

Pictures are (clients, channels, samples, rows, columns) inside: the last three dimensions are the columns of the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.learning.batched.activations import ACTIVATIONS


class Passed(NamedTuple):
    """The values of a forward pass that the backward pass needs."""

    kernel: Tensor  # (clients, p²·out, in·window): at each of its places in the window
    columns: Tensor  # (clients, channels·window, samples·rows·columns)
    values: Tensor  # (clients, p², channels, samples·rows·columns): what the pool chooses from
    out: Tensor  # (clients, channels, samples, rows, columns)


@dataclass(frozen=True)
class Block:
    """Conv2d → MaxPool2d → activation. `weight` and `bias` are positions in the list of parameters (−1: no bias).

    With the activation before the pooling it is the same, as all of them are monotone."""

    weight: int
    bias: int
    channels: tuple[int, int]  # in and out
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]
    pool: int = 1
    activation: type[nn.Module] | None = None

    @classmethod
    def of(cls, part: nn.Conv2d, weight: int, bias: int) -> Block | None:
        """None for kinds of convolution that run with the library's kernels."""
        (high, wide), pad = part.kernel_size, part.padding
        plain = part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"
        if not plain or isinstance(pad, str) or part.stride[0] != part.stride[1]:
            return None
        return cls(weight, bias, (part.in_channels, part.out_channels), (high, wide), part.stride[0], (pad[0], pad[1]))

    def forward(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Passed:
        rows, columns = self._padded(x.shape)
        if any(self.padding):
            x = F.pad(x, (self.padding[1], self.padding[1], self.padding[0], self.padding[0]))
        places, (h, w) = _places(x.shape[2], rows, columns, *self._window, self.stride * self.pool, x.device)
        cut = x.reshape(len(x) * x.shape[1], -1).index_select(1, places)
        cut = cut.view(len(x), x.shape[1] * self._window[0] * self._window[1], -1)
        kernel = self._moved(weight)
        values = torch.bmm(kernel, cut).view(len(x), self.pool**2, weight.shape[1], -1)
        best = values.amax(1) if self.pool > 1 else values[:, 0].clone()
        if bias is not None:
            best += bias.unsqueeze(-1)
        if self.activation is not None:
            best = ACTIVATIONS[self.activation][0](best)
        return Passed(kernel, cut, values, best.view(len(x), weight.shape[1], x.shape[2], h, w))

    def size(self, rows: int, columns: int) -> tuple[int, int, int]:
        """How many numbers `Passed` has for a picture of this size, and the size of the outputs."""
        (high, wide), step, (before, after) = self._window, self.stride * self.pool, self.channels
        h, w = (rows + 2 * self.padding[0] - high) // step + 1, (columns + 2 * self.padding[1] - wide) // step + 1
        return (before * high * wide + (self.pool**2 + 1) * after) * h * w, h, w

    def backward(
        self, weight: Tensor, passed: Passed, delta: Tensor, x: torch.Size | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Derivatives by the kernel, the bias and, if their shape `x` is given, the inputs."""
        if self.activation is not None:
            delta = ACTIVATIONS[self.activation][1](delta, passed.out)
        delta = delta.reshape(len(weight), weight.shape[1], -1)
        chosen = _to_largest(delta, passed.values).flatten(1, 2)
        by_kernel = self._back_to_kernel(torch.bmm(chosen, passed.columns.mT), weight.shape)
        by_inputs = None if x is None else self._folded(torch.bmm(passed.kernel.mT, chosen), x)
        return by_kernel, delta.sum(-1), by_inputs

    # ---- the larger window -------------------------------------------------------------------------------------------

    @property
    def _window(self) -> tuple[int, int]:
        reach = self.stride * (self.pool - 1)
        return self.kernel[0] + reach, self.kernel[1] + reach

    def _corners(self) -> list[tuple[slice, slice]]:
        """Where in the window the kernel lies for each of the pool's values, row by row."""
        (high, wide), s = self.kernel, self.stride
        places = [(a * s, b * s) for a in range(self.pool) for b in range(self.pool)]
        return [(slice(a, a + high), slice(b, b + wide)) for a, b in places]

    def _moved(self, weight: Tensor) -> Tensor:
        """The kernel at each of its places in the window: (clients, p²·out, in·window)."""
        if self.pool == 1:
            return weight.flatten(2)
        large = weight.new_zeros(len(weight), self.pool**2, *weight.shape[1:3], *self._window)
        for j, (rows, columns) in enumerate(self._corners()):
            large[:, j, :, :, rows, columns] = weight
        return large.view(len(weight), self.pool**2 * weight.shape[1], -1)

    def _back_to_kernel(self, large: Tensor, shape: torch.Size) -> Tensor:
        """The transpose of `_moved`."""
        parts = large.view(len(large), self.pool**2, *shape[1:3], *self._window)
        (rows, columns), *others = self._corners()
        total = parts[:, 0, :, :, rows, columns].contiguous()
        for j, (rows, columns) in enumerate(others, 1):
            total += parts[:, j, :, :, rows, columns]
        return total

    def _padded(self, x: torch.Size) -> tuple[int, int]:
        return x[3] + 2 * self.padding[0], x[4] + 2 * self.padding[1]

    def _folded(self, columns: Tensor, x: torch.Size) -> Tensor:
        """Windows added up to pictures of the shape `x`."""
        high, wide = self._padded(x)
        places, _ = _places(x[2], high, wide, *self._window, self.stride * self.pool, columns.device)
        whole = columns.new_zeros(x[0] * x[1], x[2] * high * wide)
        whole.index_add_(1, places, columns.view(len(whole), -1))
        (top, left), pictures = self.padding, whole.view(*x[:3], high, wide)
        return pictures[..., top : top + x[3], left : left + x[4]]


@cache
def _places(
    samples: int, rows: int, columns: int, high: int, wide: int, step: int, device: torch.device
) -> tuple[Tensor, tuple[int, int]]:
    """Positions of all windows' pixels in flat pictures, (window, samples, h, w), and the numbers h, w of windows."""
    pixels = torch.arange(samples * rows * columns, device=device).view(samples, rows, columns)
    cut = pixels.unfold(1, high, step).unfold(2, wide, step)
    return cut.permute(3, 4, 0, 1, 2).reshape(-1), (cut.shape[1], cut.shape[2])


def _to_largest(delta: Tensor, values: Tensor) -> Tensor:
    """`delta` given to the largest of the pool's values, to the first of equal ones as PyTorch does; zero elsewhere."""
    count = values.shape[1]
    if count == 1:
        return delta.unsqueeze(1)
    best = [values[:, 0]]
    for j in range(1, count - 1):
        best.append(torch.maximum(best[-1], values[:, j]))
    given = torch.empty_like(values)
    for j in range(count - 1, 0, -1):  # the last that is larger than all before it is the first of the largest
        given[:, j] = torch.ops.aten.threshold_backward(delta, values[:, j] - best[j - 1], 0)
        delta = delta - given[:, j]
    given[:, 0] = delta
    return given
