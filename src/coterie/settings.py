"""One rule, and one way to say it, for settings that count something."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from coterie.errors import ConfigError


def whole_number(name: str, value: Any, least: int = 1, *, owner: Any = None) -> int:
    """A setting as a plain int; None is for the caller to allow. `owner` is the object it is a setting of."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        needs = f"{name} must be" if owner is None else f"{type(owner).__name__} needs {name} to be"
        raise ConfigError(f"{needs} a whole number ≥ {least}; got {value!r}.")
    return int(value)


def cluster_count(owner: Any) -> int:
    """The number of clusters of an algorithm that is about to run."""
    if owner.clusters is None:
        raise ConfigError(f"{type(owner).__name__} needs a number of clusters outside fit; pass clusters=….")
    return int(owner.clusters)
