"""How many cores there are to work with."""

from __future__ import annotations

import os

from coterie.errors import ConfigError


def usable_cores() -> int:
    """The cores this process may run on, which can be fewer than the machine has; COTERIE_CORES sets a limit.

    For two processes side by side on two cores, set COTERIE_CORES=1: threads of small models mostly wait."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("COTERIE_CORES", "")
    if limit and not (limit.isdecimal() and int(limit) > 0):
        raise ConfigError(f"COTERIE_CORES must be a whole number of at least 1; got {limit!r}. Unset it, or use 1.")
    return min(found, int(limit)) if limit else found
