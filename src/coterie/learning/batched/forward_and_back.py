"""Passes forward and back of a whole chunk of clients, as primitives that loops written in a client function can use.

A client function sees one client. Under the engine's `torch.func.vmap` the rules of these primitives see the chunk and run
its `Network`. They replace the module where only the parameters are differentiated, and only once.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from coterie.learning.batched.chunks import apply, in_chunk, maps_and_derivatives
from coterie.learning.batched.networks import Network, Trace

_BYTES = 8 << 20  # what the passes of some clients may hold at a time; smaller groups cost more in calls than they save
_MOST = 128 << 20  # passes that would hold more are done again on the way back


def replaceable(x: Tensor) -> bool:
    """Whether a pass forward on `x` may be one of a chunk: under the engine's `vmap`, and at most one derivative, which is
    not one by `x`."""
    layers, kinds = maps_and_derivatives(), torch._C._functorch.TransformType
    if not layers or layers[0].key() != kinds.Vmap or len(layers) > 2:
        return False
    return len(layers) == 1 or (layers[1].key() == kinds.Grad and not torch._C._functorch.is_gradtrackingtensor(x))


def in_cache(network: Network, x: Tensor) -> list[slice]:
    """Equal groups of a chunk's clients whose passes on the samples `x` stay in the cache together."""
    most = max(_BYTES // max(network.bytes(x.shape[2:]) * x.shape[1], 1), 1) if network.blocks else len(x)
    size = -(-len(x) // -(-len(x) // most))
    return [slice(i, i + size) for i in range(0, len(x), size)]


class Pass:
    """A pass forward of a chunk, which can be taken back."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.kept: list[tuple[list[Tensor], Tensor, Trace | None]] = []

    def forward(self, x: Tensor, params: list[Tensor]) -> Tensor:
        large = self.network.bytes(x.shape[2:]) * x.shape[0] * x.shape[1] > _MOST
        parts = []
        for some in in_cache(self.network, x):
            own = [p[some] for p in params]
            trace = self.network.forward(own, x[some])
            parts.append(trace.values[-1])
            self.kept.append((own, x[some], None if large else trace))
        return joined(parts)

    def backward(self, delta: Tensor) -> list[Tensor]:
        """Derivatives by the parameters from those by the outputs."""
        ends = list(accumulate(len(x) for _, x, _ in self.kept))
        by_group = [
            self.network.pulled(own, x, trace or self.network.forward(own, x), delta[end - len(x) : end])
            for (own, x, trace), end in zip(self.kept, ends, strict=True)
        ]
        return [joined(list(column)) for column in zip(*by_group, strict=True)]


def outputs_only(network: Network, x: Tensor, params: list[Tensor]) -> Tensor:
    """Outputs of a chunk; nothing is kept, and many samples go through in several batches."""
    most = max(_BYTES // max(network.bytes(x.shape[2:]), 1), 1) if network.blocks else max(x.shape[1], 1)
    parts = []
    for some in in_cache(network, x):
        own = [p[some] for p in params]
        batches = [x[some, i : i + most] for i in range(0, max(x.shape[1], 1), most)]
        parts.append(torch.cat([network.forward(own, batch).values[-1] for batch in batches], 1))
    return joined(parts)


def joined(parts: list[Tensor]) -> Tensor:
    """The groups of a chunk joined again; a single group is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def outputs(network: Network, x: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """A network's outputs where `replaceable`."""
    keep = Pass(network) if len(maps_and_derivatives()) > 1 else None
    result: Tensor = apply(_Outputs, network, keep, x, *params)
    return result


def pullback(network: Network, x: Tensor, params: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
    """Outputs, and the function from derivatives by them to a tuple of those by the parameters; where `in_one_vmap`."""
    keep = Pass(network)
    z = apply(_Outputs, network, keep, x, *params)
    return z, lambda d: apply(_Back, keep, d)


class _Outputs(torch.autograd.Function):
    """The rule does the work, for a chunk or for one client; `keep` holds what the way back needs."""

    @staticmethod
    def forward(network: Network, keep: Pass | None, x: Tensor, *params: Tensor) -> Any:
        return _Outputs.rule(network, keep, x[None], *(p[None] for p in params))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.keep = inputs[1]

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        return None, None, None, *apply(_Back, ctx.keep, delta)

    @staticmethod
    def rule(network: Network, keep: Pass | None, x: Tensor, *params: Tensor) -> Tensor:
        return outputs_only(network, x, list(params)) if keep is None else keep.forward(x, list(params))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return _Outputs.rule(*in_chunk(info, in_dims, given)), 0


class _Back(torch.autograd.Function):
    """The backward pass of `_Outputs`."""

    @staticmethod
    def forward(keep: Pass, delta: Tensor) -> Any:
        return tuple(g[0] for g in _Back.rule(keep, delta[None]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def rule(keep: Pass, delta: Tensor) -> list[Tensor]:
        return keep.backward(delta)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        grads = _Back.rule(*in_chunk(info, in_dims, given))
        return tuple(grads), (0,) * len(grads)
