"""Which rows are judged by models of which other rows: inside every client, by whole units, or the future by the past.

| the table has | rows that are judged together | models of a fold see |
|---|---|---|
| nothing more | a random part of every client's rows | all other rows |
| a unit (a patient, a device) per row | all rows of a random part of the units | the rows of all other units |
| a time per row | rows of one stretch of time | all rows before it (rolling origin), of other units if there are any |

Rows of the first stretch of time are never judged: their fold is −1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from coterie.data.coded_table import Floats, Ints, Table
from coterie.errors import DataError

Bools = npt.NDArray[np.bool_]
ORIGINS = 5  # stretches of time that are judged
FIRST = 0.4  # share of the rows before the first of them


def folds_of(table: Table, folds: int, rng: np.random.Generator, label: Floats | None = None) -> Ints:
    """The fold of every row."""
    if table.time is not None:
        return stretches(table.time)
    if table.unit is None:
        return deal(table.owner, table.n_clients, folds, rng, label)
    first, code = np.unique(table.unit, return_index=True, return_inverse=True)[1:]
    return deal(table.owner[first], table.n_clients, folds, rng)[code]


def training(table: Table, fold: Ints, f: int) -> Bools:
    """The rows that models see which are judged on fold f."""
    test = fold == f
    keep = ~test if table.time is None else fold < f
    if table.unit is not None:
        keep &= ~np.isin(table.unit, table.unit[test])
    return keep


def judged_folds(fold: Ints) -> Iterator[int]:
    return (int(f) for f in np.unique(fold) if f >= 0)


def inner_folds(table: Table, folds: int, rng: np.random.Generator) -> Ints:
    """Folds of rows of all clients alike, for choices inside training rows: by units, or by stretches of time (from 0)."""
    if table.time is not None:
        return np.asarray(np.arange(len(table.y)) * folds // max(len(table.y), 1))
    if table.unit is None:
        return np.asarray(rng.permutation(len(table.y)) % folds)
    code = np.unique(table.unit, return_inverse=True)[1]
    return np.asarray((rng.permutation(int(code.max(initial=0)) + 1) % folds)[code])


def stretches(time: Floats, folds: int = ORIGINS, first: float = FIRST) -> Ints:
    """Stretches of time with about as many rows each, the first of them (−1) longer; equal times stay together."""
    values, rows = np.unique(time, return_counts=True)
    share = (np.cumsum(rows) - rows / 2) / len(time)
    part = np.where(share < first, -1, np.floor((share - first) / (1 - first) * folds)).astype(np.int64)
    part[0] = -1
    used = np.unique(part)
    if len(used) < 3:
        raise DataError(
            f"The time has {len(values)} distinct values, too few to train on the past and judge on the future."
        )
    return np.asarray((np.searchsorted(used, part) - 1)[np.searchsorted(values, time)])


def deal(owner: Ints, n_clients: int, folds: int, rng: np.random.Generator, label: Floats | None = None) -> Ints:
    """A fold per row, balanced inside every client; with fewer rows than folds every row has a fold of its own.

    With a ``label``, rows of a client are dealt in pairs of a rare and a common class while both last: the area under the
    curve compares rows of one fold, so each fold should hold rows of both classes."""
    random = rng.random(len(owner))
    count = np.bincount(owner, minlength=n_clients)
    begin = np.cumsum(count) - count
    order = np.lexsort((random, owner))
    first = rng.integers(folds, size=n_clients)
    if label is not None:
        order = _paired(order, owner, label, count, begin)
    place = np.arange(len(owner)) - np.repeat(begin, count)
    if label is not None:
        place = place // 2
    fold = np.empty(len(owner), np.int64)
    fold[order] = (place + first[owner[order]]) % folds
    return fold


def _paired(order: Ints, owner: Ints, label: Floats, count: Ints, begin: Ints) -> Ints:
    """The same order with every client's rows sorted by label and then folded, so that neighbours differ."""
    by_label = order[np.lexsort((label[order], owner[order]))]
    place = np.arange(len(owner)) - np.repeat(begin, count)
    n = np.repeat(count, count)
    source = np.where(place % 2 == 0, place // 2, (n + 1) // 2 + place // 2)
    return np.asarray(by_label[np.repeat(begin, count) + source])
