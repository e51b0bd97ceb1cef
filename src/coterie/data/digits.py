"""Numbers as eight bytes in their order, and counts of those bytes: how sites find a median without sending their values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEVELS = 8  # bytes of a number: a median is found byte by byte
_TOP = np.uint64(1 << 63)


def sortable(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """Numbers as whole numbers in the same order."""
    bits = np.ascontiguousarray(numbers + 0.0).view(np.uint64)  # −0 and 0 are one number
    return np.where(bits & _TOP, ~bits, bits | _TOP)


def unsorted(bits: int) -> float:
    """The number that `sortable` gives these bits."""
    back = bits & ~int(_TOP) if bits & int(_TOP) else ~bits & (1 << 64) - 1
    return float(np.array([back], np.uint64).view(np.float64)[0])


def histogram(bits: npt.NDArray[np.uint64], level: int, head: int, least: int) -> list[int]:
    """How many numbers that begin with a prefix have each next byte; no count is below the least one, except 0."""
    shift = np.uint64(8 * (LEVELS - level))
    mine = bits if level == 0 else bits[bits >> shift == np.uint64(head)]
    if len(mine) < least:
        return [0] * 256
    counts = np.bincount((mine >> np.uint64(8 * (LEVELS - level - 1)) & np.uint64(255)).astype(np.int64), minlength=256)
    return _together(counts.tolist(), least)


def _together(counts: list[int], least: int) -> list[int]:
    """Add counts of few rows to the next byte with rows until they are enough; add the last ones to the byte before."""
    told, waiting, last = [0] * len(counts), 0, 0
    for byte, n in enumerate(counts):
        waiting += n
        if n and waiting >= least:
            told[byte], waiting, last = waiting, 0, byte
    told[last] += waiting
    return told
