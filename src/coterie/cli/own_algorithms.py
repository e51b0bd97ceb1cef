"""Algorithms of one's own, by name: those of installed packages, and those of modules that the user allows.

An installed package offers algorithms as entry points of the group `coterie.algorithms`. A file may also name
`module:Class`. Importing a module runs it, and a file may come from somebody else: so the module must stand in the
environment variable `COTERIE_ALGORITHMS`, which its user sets, several with commas.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from coterie.algorithms import ALGORITHMS
from coterie.base.disk import said
from coterie.base.text import suggest
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm

GROUP = "coterie.algorithms"
ALLOWED = "COTERIE_ALGORITHMS"


def algorithm_class(name: str, place: str) -> type[Any]:
    """The class with this name: of the registry, of an installed package, or `module:Class` of an allowed module."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" in name:
        module, _, kind = name.partition(":")
        _require_allowed(module, name, place)
        return _checked(lambda: getattr(importlib.import_module(module), kind), name, place)
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in offered:
        raise ConfigError(f"{place} {name!r} is unknown. {suggest(name, [*ALGORITHMS, *offered])}")
    return _checked(offered[name].load, name, place)


def _require_allowed(module: str, name: str, place: str) -> None:
    if module not in os.environ.get(ALLOWED, "").replace(" ", "").split(","):
        raise ConfigError(
            f"{place} {name!r} would import {module!r}, which runs its code, and you have not allowed that. If you "
            f"trust it, set {ALLOWED}={module} in the environment."
        )


def _checked(load: Callable[[], Any], name: str, place: str) -> type[Any]:
    """A class that can be used as an algorithm; what is imported is not ours, and may raise anything."""
    try:
        kind = load()
    except Exception as error:
        raise ConfigError(
            f"{place} {name!r} cannot be imported: {said(error)}. Install it, or correct the name."
        ) from error
    if not (isinstance(kind, type) and Algorithm in kind.__mro__ and dataclasses.is_dataclass(kind)):
        raise ConfigError(
            f"{place} {name!r} is no algorithm: it must be a frozen dataclass below coterie.exchange.Algorithm."
        )
    return kind
