"""Settings of algorithms and rules: one setting is read or replaced, also inside a wrapper."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from coterie.errors import ConfigError


def cluster_count(owner: Any) -> int:
    """The number of clusters of an algorithm that is about to run."""
    if owner.clusters is None:
        raise ConfigError(f"{type(owner).__name__} needs a number of clusters outside fit; pass clusters=….")
    return int(owner.clusters)


def setting(owner: Any, name: str, default: Any = None) -> Any:
    """A setting of an algorithm or of the one it wraps (its `base`); `default` where neither has it."""
    if name in _names(owner):
        return getattr(owner, name)
    return setting(owner.base, name, default) if "base" in _names(owner) else default


def with_setting(owner: Any, name: str, value: Any) -> Any:
    """The same algorithm with one setting replaced, its own or that of the one it wraps; None where neither has it."""
    if name in _names(owner):
        return replace(owner, **{name: value})
    inner = with_setting(owner.base, name, value) if "base" in _names(owner) else None
    return None if inner is None else replace(owner, base=inner)


def _names(owner: Any) -> set[str]:
    return {f.name for f in fields(owner)} if is_dataclass(owner) and not isinstance(owner, type) else set()
