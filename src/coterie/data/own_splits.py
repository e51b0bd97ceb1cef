"""The user's own split of every client's rows into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.checks import ArrayPair, Ints, shown
from coterie.errors import DataError

PARTS = ("train", "validation", "test")
WORDS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2, "testing": 2}
ClientArrays = ArrayPair | Mapping[str, ArrayPair]


def part_of(word: Any, where: str) -> int:
    """0, 1 or 2 for a word that names training, validation or test rows."""
    found = WORDS.get(str(word).strip().lower())
    if found is None:
        raise DataError(f"A split names train, validation or test; {where} holds {word!r}. Rename it.")
    return found


def own_split(given: Sequence[tuple[Any, Any]]) -> tuple[list[tuple[Any, ArrayPair]], Ints, bool]:
    """The pairs in the order train, validation, test of every client, how many rows each part has, and whether any client
    has its own split."""
    own = [isinstance(data, Mapping) for _, data in given]
    if any(own) != all(own):
        odd = next(c for (c, _), mine in zip(given, own, strict=True) if not mine)
        raise DataError(f"Split all clients' rows or none; client {shown(odd)} has no split. Name its train rows.")
    if not any(own):
        sizes = [_length(pair) for _, pair in given]
        return list(given), np.array([[n, 0, 0] for n in sizes], np.int64), False
    items, counts = [], np.zeros((len(given), len(PARTS)), np.int64)
    for i, (client, parts) in enumerate(given):
        placed = {part_of(word, f"client {shown(client)}"): pair for word, pair in parts.items()}
        if 0 not in placed:
            raise DataError(
                f"Client {shown(client)} has no training rows; it has {sorted(parts)}. Name its train rows."
            )
        for part in sorted(placed):
            counts[i, part] = _length(placed[part])
            if counts[i, part] or part == 0:
                items.append((client, placed[part]))
    return items, counts, True


def _length(pair: Any) -> int:
    try:
        return len(pair[0])
    except (TypeError, IndexError, KeyError):
        return 0  # the check of the pair raises the error


def sample_weights(items: Sequence[tuple[Any, Any]], xs: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """The third arrays `(x, y, w)`, if there are any."""
    have = [len(pair) > 2 for _, pair in items]
    if not any(have):
        return None
    if not all(have):
        odd = next(c for (c, _), mine in zip(items, have, strict=True) if not mine)
        raise DataError(f"Weigh all clients' samples or none; client {shown(odd)} has no weights. Give it some.")
    parts = [np.asarray(pair[2], np.float64) for _, pair in items]
    for (client, _), w, x in zip(items, parts, xs, strict=True):
        if w.shape != (len(x),):
            raise DataError(f"Client {shown(client)} needs a weight for each of {len(x)} samples; got shape {w.shape}.")
    return np.concatenate(parts)
