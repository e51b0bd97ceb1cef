"""Checks of settings that several files of this room share. Each refuses a wrong value with one sentence."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from coterie.errors import ConfigError

ADJACENCIES = ("zero-out", "replace")
NOISES = ("exact", "simulation")
LEAST_CLIP, MOST_CLIP = 1e-100, 1e100  # beyond these, steps of the lattice or sums leave the range of floating point


def positive(value: Any, name: str) -> float:
    """A finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} must be a finite number above 0, got {value!r}; give a positive number.")
    return float(value)


def within(value: Any, name: str, low: float, high: float) -> float:
    """A number between two bounds."""
    number = positive(value, name)
    if not low <= number <= high:
        raise ConfigError(f"{name} must lie between {low:g} and {high:g}, got {value!r}; rescale what it bounds.")
    return number


def probability(value: Any, name: str, *, one: bool = False) -> float:
    """A number above 0 and below 1 (or equal to 1 where that is allowed)."""
    good = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if not good or not (0 < value < 1 or (one and value == 1)):
        end = "1]" if one else "1)"
        raise ConfigError(f"{name} must lie in (0, {end}, got {value!r}; give a number in that range.")
    return float(value)


def whole(value: Any, name: str, *, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}; change it.")
    return int(value)


def choice(value: Any, name: str, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in allowed:
        words = " or ".join(repr(word) for word in allowed)
        raise ConfigError(f"{name} must be {words}, got {value!r}; choose one of them.")
    return str(value)
