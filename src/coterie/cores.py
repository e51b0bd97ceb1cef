"""How many cores there are to work with."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
