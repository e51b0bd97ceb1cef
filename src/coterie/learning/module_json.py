"""A module's architecture as JSON, so that a saved result needs neither pickle nor the code that made it.

Covers `torch.nn` layers inside (nested) `nn.Sequential`s, and every ready-made model."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from coterie.base.disk import said
from coterie.errors import ConfigError
from coterie.learning.big_models import KINDS

_SPARE = 1 << 20  # numbers of a module that are not stored: tables of positions, counters
_IGNORED = {"device", "dtype", "inplace"}


def describe(module: nn.Module) -> dict[str, Any] | None:
    """None when a part is not a plain `torch.nn` layer; one of coterie's own networks is its class and arguments."""
    if KINDS.get(type(module).__name__) is type(module):
        return {"type": f"coterie.{type(module).__name__}", "recipe": module.recipe}
    named = list(module.named_parameters(remove_duplicate=False))
    if len(named) > len(list(module.parameters())) or not all(p.requires_grad for _, p in named):
        return None  # tied or frozen weights are not in a model's parameter dictionary
    return _describe(module)


def _describe(module: nn.Module) -> dict[str, Any] | None:
    name = type(module).__name__
    if type(module) is nn.Sequential:
        parts = {key: _describe(child) for key, child in module._modules.items() if child is not None}
        return None if None in parts.values() else {"type": name, "parts": parts}
    if getattr(nn, name, None) is not type(module) or list(module.children()):
        return None
    arguments = {}
    takes_nothing = type(module).__init__ is nn.Module.__init__  # nn.Tanh and its like
    for parameter in () if takes_nothing else inspect.signature(type(module).__init__).parameters:
        if parameter == "self" or parameter in _IGNORED:
            continue
        if not hasattr(module, parameter):
            return None
        value = getattr(module, parameter)
        if parameter == "bias":
            value = value is not None and value is not False
        if not isinstance(value, int | float | str | bool | tuple | list | type(None)):
            return None
        arguments[parameter] = value
    return {"type": name, "arguments": arguments}


def build(spec: dict[str, Any], most: int | None = None) -> nn.Module:
    """The module that `describe` described. most: how many numbers it may have; it is refused before it takes memory."""
    try:
        with torch.device("meta"):
            trial = _build(spec)
        size = sum(t.numel() for t in (*trial.parameters(), *trial.buffers()))
        if most is not None and size > most + _SPARE:
            raise ConfigError(f"it has {size} numbers, and {most} are stored")
        return _build(spec)
    except Exception as error:
        raise ConfigError(
            f"The architecture of this model cannot be built: {said(error)}. Take the file from a copy, or load with task=…."
        ) from None


def _build(spec: dict[str, Any]) -> nn.Module:
    if spec["type"].startswith("coterie."):
        network: nn.Module = KINDS[spec["type"].removeprefix("coterie.")](*spec["recipe"])
        return network
    if spec["type"] == "Sequential":
        module = nn.Sequential()
        for key, part in spec["parts"].items():
            module.add_module(key, _build(part))
        return module
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in spec["arguments"].items()}
    kind = getattr(nn, spec["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"torch.nn has no layer {spec['type']!r}")
    layer: nn.Module = kind(**arguments)
    return layer
