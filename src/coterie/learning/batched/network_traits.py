"""What a network is like: the statistics it keeps, the random numbers it draws, and whether clients can be batched.

Some traits are read from the module's layers; the others are found by running a few samples before training.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.base.tree import Params
from coterie.errors import TaskError

_NORMS = (nn.modules.batchnorm._NormBase,)  # BatchNorm and InstanceNorm
_FEW = 3  # samples of the smaller of two batches whose common rows must agree


@dataclass(frozen=True)
class Traits:
    """`watched`: it draws random numbers or attends, and runs inside `Drawing`. `alone`: one client at a time, because a
    sample's output depends on the others in the batch, or a layer has no batched form. `addresses`: numbers in its inputs
    say where to look (an embedding); batched over clients, some of torch's operations then look at another client for a
    number out of range. Until a network is tried, it is taken to be watched and to address."""

    watched: bool = True
    alone: bool = False
    addresses: bool = True


class Addresses(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Notices operations that take whole numbers together with floating ones: the whole numbers may be indices."""

    used = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        each = [t for v in (*args, *(kwargs or {}).values()) for t in (v if isinstance(v, list | tuple) else [v])]
        given = [t for t in each if isinstance(t, Tensor) and t.dtype != torch.bool]
        self.used = self.used or len({t.is_floating_point() for t in given}) > 1
        return func(*args, **(kwargs or {}))


def norms(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers that keep running statistics, with their names."""
    for name, part in module.named_modules():
        if isinstance(part, _NORMS) and part.track_running_stats:
            yield name, part


def statistics(module: nn.Module) -> frozenset[str]:
    """The running statistics by name; they travel with the parameters."""
    kept = frozenset(f"{name}.{b}".lstrip(".") for name, _ in norms(module) for b in ("running_mean", "running_var"))
    return kept & dict(module.named_buffers()).keys()


def counters(module: nn.Module) -> frozenset[str]:
    """Numbers of batches that layers count and never use."""
    return frozenset(f"{name}.num_batches_tracked".lstrip(".") for name, _ in norms(module))


def normalising(module: nn.Module) -> frozenset[str]:
    """All parameters and statistics of batch normalisation."""
    layers = [(name, p) for name, p in norms(module) if isinstance(p, nn.modules.batchnorm._BatchNorm)]
    own = frozenset(f"{name}.{p}".lstrip(".") for name, part in layers for p, _ in part.named_parameters())
    return own | frozenset(s for s in statistics(module) if any(s.startswith(name) for name, _ in layers))


def settle(module: nn.Module, rows: int) -> None:
    """A batch of one sample has no spread: it is normalised with the running statistics, and they stay."""
    for _, part in norms(module):
        part.training = rows > 1


def refuse_unsupported(module: nn.Module) -> None:
    """Running averages over all batches ever met would need a count that no mean of clients has; an embedding with a
    largest norm changes its weights whenever it is used, and layers without a size have no weights yet."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise TaskError(
                f"'{name}' has no size yet: a lazy layer learns it from its first batch. Give the layer its input size."
            )
        if isinstance(tensor, nn.Parameter) and tensor.is_complex():
            raise TaskError(
                f"'{name}' is complex, and models are trained as real numbers: its imaginary part would be lost. Hold both "
                "parts as two real tensors (torch.view_as_real) and join them in forward."
            )
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            raise TaskError(
                f"{type(part).__name__} at '{name}' rescales its own weights when it is used (max_norm={part.max_norm}), so "
                "predicting would move them. Leave max_norm out, or use weight_decay."
            )
    for name, part in norms(module):
        if getattr(part, "momentum", None) is None:
            raise TaskError(
                f"{type(part).__name__} at '{name}' averages over all batches (momentum=None), which cannot be shared. "
                "Give it a momentum such as 0.1."
            )


def runs_alone(module: nn.Module) -> bool:
    """Whether layers show that clients cannot be batched: statistics of a batch, and recurrent layers."""
    recurrent = (nn.RNNBase, nn.RNNCellBase)
    batch = (nn.modules.batchnorm._BatchNorm,)
    return bool(statistics(module)) or any(isinstance(m, recurrent + batch) for m in module.modules())


def copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        raise TaskError(
            f"The model cannot be copied: {str(error).splitlines()[0]} Keep only parameters and buffers in it "
            "(torch.nn.utils.parametrizations.weight_norm, not torch.nn.utils.weight_norm)."
        ) from None


def own_dtype(module: nn.Module) -> torch.dtype:
    """The type that its trained parameters were made in."""
    return next((p.dtype for p in module.parameters() if p.requires_grad), torch.get_default_dtype())


def recast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in another type. Frozen parts and buffers of another type (half, bytes) keep it."""
    before = own_dtype(module)
    if before == dtype:
        return module
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad or p.dtype == before:
                p.data = p.data.to(dtype)
        for owner in module.modules():
            for name, b in owner.named_buffers(recurse=False):
                if b.dtype == before:
                    setattr(owner, name, b.to(dtype))
    return module


def filled(network: nn.Module, params: Params) -> nn.Module:
    """The network in the parameters' dtype, with copies of them; frozen ones stay its own."""
    recast(network, next(iter(params.values())).dtype)
    with torch.no_grad():
        for name, held in (*network.named_parameters(), *network.named_buffers()):
            if name in params:
                held.copy_(params[name])
    return network


# ---- tried on samples ----------------------------------------------------------------------------------------------------

Kept = dict[str, tuple[Tensor, int]]
"""Tensors of a module at a time, with torch's counts of the writes into them."""


def fixed_now(module: nn.Module) -> Kept:
    """What must stay as it is: frozen parameters, and all buffers but running statistics and their counters."""
    moving = statistics(module) | counters(module)
    held = {name: p for name, p in module.named_parameters() if not p.requires_grad} | dict(module.named_buffers())
    return {name: (t, t._version) for name, t in held.items() if name not in moving}


def changed(module: nn.Module, before: Kept) -> list[str]:
    now = dict(module.named_parameters()) | dict(module.named_buffers()) if before else {}
    return [name for name, (same, writes) in before.items() if now.get(name) is not same or same._version != writes]


def generators() -> tuple[Any, ...]:
    """The states of the global random generators of torch, Python and NumPy."""
    _, words, *place = np.random.get_state()  # noqa: NPY002  # what a network may draw from
    return torch.get_rng_state().tolist(), random.getstate(), np.asarray(words).tolist(), place


def mixes_rows(outputs: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a sample's output depends on the samples after it, as far as some of them show."""
    if len(x) <= _FEW:
        return False
    try:
        few, more = outputs(x[:_FEW]), outputs(x)[:_FEW]
    except (RuntimeError, ValueError, IndexError):
        return True
    return not close(few, more, 1e-3)


def batches(loss: Callable[..., Tensor], params: Params, *more: Tensor) -> bool:
    """Whether two clients at once give what each gives alone, without a fallback that torch warns of."""
    stacked = {name: torch.stack([p, p]).requires_grad_() for name, p in params.items()}
    twice = [torch.stack([t, t]) for t in more]
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("error")
            both = torch.func.vmap(loss, randomness="error")(stacked, *twice)
            torch.autograd.grad(both.sum(), list(stacked.values()), allow_unused=True)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            torch.func.vmap(loss, randomness="error")(stacked, *twice)
            return close(both.detach()[0], loss(params, *more), 1e-3)
    except Exception:  # any error here comes from batching, not from a single client
        return False


def close(a: Tensor, b: Tensor, rtol: float) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=rtol, atol=rtol / 10, equal_nan=True)
