"""Where client functions run: on the CPU, or on any other device of torch's.

Only client functions run there. Data, states and the server's models stay in main memory; a chunk's inputs are moved to the
device, and its answers are moved back. Tensors that a client function makes are made on the device; it need not name it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.base.tree import Tree, leaves, tree_map
from coterie.engines.base import Env
from coterie.errors import ConfigError

_CPU = torch.device("cpu")


def checked(device: Any) -> str | None:
    """The name of a device that can be computed on; None where that is the CPU."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device must be one that torch knows, such as 'cpu' or 'cuda'; got {device!r}.") from None
    try:
        torch.zeros(1, device=found).cpu()
    except Exception as error:  # each kind of device fails in its own way
        reason = str(error).strip().splitlines()[0].rstrip(".") or type(error).__name__
        raise ConfigError(f"The device {str(found)!r} cannot be used here: {reason}. Use device='cpu'.") from None
    return None if found == _CPU else str(found)


def moved(value: Any, device: Any) -> Any:
    """Nested dicts, dataclasses and tensors on a device (None: as they are)."""
    if device is None:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: moved(getattr(value, f.name), device) for f in fields(value) if f.init})
    return tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, value)


def fetched(value: Any, device: Any) -> Any:
    """The answers of clients that ran on a device, in main memory."""
    return value if device is None else moved(value, _CPU)


def at(device: Any) -> AbstractContextManager[Any]:
    """Tensors are made on the device."""
    return nullcontext() if device is None else torch.device(device)


@dataclass(frozen=True)
class Holding:
    """A function of a client's contexts and of what the server holds, which an engine moves to its device."""

    function: Callable[..., Tree]
    held: Any

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", "map")

    def __call__(self, *contexts: Any) -> Tree:
        return self.function(*contexts, self.held)


def placed(given: Any, env: Env, device: Any) -> tuple[Any, Env]:
    """What an ask sends to all, or a function with what it holds, and a run's settings, on a device."""
    if device is None:
        return given, env
    env.task.prepare(next(leaves(env.initial)).dtype, torch.device(device))
    if isinstance(given, Holding):
        given = Holding(given.function, moved(given.held, device))
    elif not callable(given):
        given = moved(given, device)
    return given, replace(env, initial=moved(env.initial, device))
