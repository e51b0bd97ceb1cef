"""From one client to a chunk of clients: how a primitive reaches the batching rule that sees the whole chunk.

A client function sees one client and runs under the engine's `torch.func.vmap`. A primitive has a rule, which receives the
tensors of all clients of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

_core = torch._C._functorch


def maps_and_derivatives() -> list[Any]:
    """The maps and derivatives under which this runs, the outermost first."""
    return _core.get_interpreter_stack() or []


def in_one_vmap() -> bool:
    """Whether this runs only under the engine's `vmap`, and no derivative is taken of its result."""
    layers = maps_and_derivatives()
    return len(layers) == 1 and layers[0].key() == _core.TransformType.Vmap


def on_chunk(rule: Callable[..., Any], *given: Any) -> Any:
    """`rule(*given)` once for all clients of the chunk, where `in_one_vmap`. The rule gets and returns tensors with the
    clients as their leading dimension; other arguments are passed unchanged."""
    engine = retrieve_current_functorch_interpreter()
    level, clients = engine.level(), engine.batch_size()  # type: ignore[attr-defined]
    found = [_core._unwrap_batched(g, level) if isinstance(g, Tensor) else (g, None) for g in given]
    with engine.lower():
        results = rule(*(_leading(g, dim, clients) for g, dim in found))
    if isinstance(results, Tensor):
        return _core._add_batch_dim(results, 0, level)
    return tuple(_core._add_batch_dim(t, 0, level) for t in results)


def apply(function: Any, *given: Any) -> Any:
    """`function.apply(*given)` of an `autograd.Function` with a `rule`. Under the engine's `vmap` alone the rule is called
    directly: torch's own way looks for signatures, nested arguments and derivatives, which takes as long as a small step."""
    return on_chunk(function.rule, *given) if in_one_vmap() else function.apply(*given)


def in_chunk(info: Any, dims: Sequence[int | None], given: Sequence[Any]) -> list[Any]:
    """What a batching rule receives, with the clients as the leading dimension of every tensor."""
    return [_leading(g, dim, info.batch_size) for g, dim in zip(given, dims, strict=True)]


def _leading(given: Any, dim: int | None, clients: int) -> Any:
    if not isinstance(given, Tensor):
        return given
    return given.unsqueeze(0).expand(clients, *given.shape) if dim is None else given.movedim(dim, 0)
