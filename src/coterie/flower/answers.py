"""What sites may answer: each check returns the answer with nothing but what was asked for, or refuses in one sentence."""

from __future__ import annotations

import math
from typing import Any

from coterie.flower.wire import Malformed


def total(told: Any, name: str, most: int) -> tuple[float, int]:
    """A sum over at most so many clients, and over how many it is."""
    if not (isinstance(told, list) and len(told) == 2 and finite(told[0]) and whole(told[1], most)):
        raise Malformed(f"{name!r} must be a finite sum and a number of clients from 0 to {most}.")
    return float(told[0]), told[1]


def finite(told: Any) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return type(told) in (int, float) and math.isfinite(told)
    except OverflowError:
        return False


def whole(told: Any, most: int) -> bool:
    """Whether it is a whole number from 0 to `most`."""
    return type(told) is int and 0 <= told <= most
