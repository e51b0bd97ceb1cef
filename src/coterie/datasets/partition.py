"""Ways to share out rows among clients: `(rows, sizes)` as `Federation.from_flat` takes them.

`rows` is a permutation (or selection) of the row numbers sorted by client, `sizes[i]` the rows of client i:

    rows, sizes = dirichlet(y, clients=100, alpha=0.3, seed=0)
    Federation.from_flat(x[rows], y[rows], sizes=sizes, clients=range(100), one_class="allow")
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.base.annotations import guarded
from coterie.base.arguments import finite
from coterie.base.arguments import labels as one_column
from coterie.data.federation import Ints
from coterie.errors import DataError

Partition = tuple[Ints, Ints]


@guarded
def iid(n: int, *, clients: int, seed: int) -> Partition:
    """n rows shuffled and cut into equal parts (sizes differ by at most one)."""
    _check(n, clients)
    return np.random.default_rng(seed).permutation(n), _even(n, clients)


@guarded
def label_shards(y: npt.ArrayLike, *, clients: int, shards: int = 2, seed: int) -> Partition:
    """Rows sorted by label, cut into clients · shards pieces; every client draws `shards` of them.

    "Communication-Efficient Learning of Deep Networks from Decentralized Data" (McMahan, Moore, Ramage, Hampson,
    Agüera y Arcas, 2017, https://arxiv.org/abs/1602.05629).
    """
    labels = one_column("y", y)
    pieces = clients * shards
    _check(len(labels), pieces, "clients · shards")
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = _even(len(labels), pieces)
    cuts = np.split(by_label, np.cumsum(sizes)[:-1])
    drawn = rng.permutation(pieces)
    return np.concatenate([cuts[p] for p in drawn]), sizes[drawn].reshape(clients, shards).sum(axis=1)


@guarded
def dirichlet(y: npt.ArrayLike, *, clients: int, alpha: float, min_samples: int = 2, seed: int) -> Partition:
    """Label skew: the rows of every class are shared out by a draw from Dirichlet(alpha).

    With a small alpha every client has few classes. Shares are drawn again (up to 1000 times) until every client has
    `min_samples` rows.

    "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification" (Hsu, Qi, Brown, 2019,
    https://arxiv.org/abs/1909.06335).
    """
    labels = np.unique(one_column("y", y), return_inverse=True)[1]
    _check(len(labels), clients)
    if not alpha > 0:
        raise DataError(f"alpha must be positive; got {alpha}. Use for example 0.3, or 100 for nearly equal shares.")
    rng = np.random.default_rng(seed)
    count = np.bincount(labels)
    for _ in range(1000):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(count))
        cuts = np.round(np.cumsum(shares, axis=1) * count[:, None]).astype(np.int64)
        table = np.diff(cuts, axis=1, prepend=0)  # (classes, clients) rows
        if table.sum(axis=0).min() >= min_samples:
            break
    else:
        raise DataError(
            f"No draw gave all {clients} clients {min_samples} rows at alpha={alpha}. "
            "Raise alpha or lower clients or min_samples."
        )
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner = np.concatenate([np.repeat(np.arange(clients), row) for row in table])
    return by_label[np.argsort(owner, kind="stable")], table.sum(axis=0)


@guarded
def pathological(y: npt.ArrayLike, *, clients: int, classes: int = 2, seed: int) -> Partition:
    """Every client has rows of exactly `classes` classes; a class's rows are cut evenly among those who have it.

    Clients take the classes in turn from shuffled decks, so that all classes are held by as many clients, give or take one.
    """
    labels = np.unique(one_column("y", y), return_inverse=True)[1]
    _check(max(len(labels), clients), clients)
    count = np.bincount(labels)
    if not 1 <= classes <= len(count):
        raise DataError(f"classes must be in 1 … {len(count)}, the classes there are; got {classes}.")
    rng = np.random.default_rng(seed)
    held = _dealt(rng, clients, classes, len(count))
    holders = [np.flatnonzero((held == c).any(1)) for c in range(len(count))]
    for c in (c for c, who in enumerate(holders) if len(who) > count[c]):
        raise DataError(
            f"{len(holders[c])} clients cannot share {count[c]} rows of one class. Lower clients or classes."
        )
    owner = np.full(len(labels), -1, np.int64)
    for c, who in enumerate(holders):
        rows = rng.permutation(np.flatnonzero(labels == c))
        owner[rows] = np.repeat(who, _even(len(rows), len(who))) if len(who) else -1
    rows = np.argsort(owner, kind="stable")
    return rows[(owner < 0).sum() :], np.bincount(owner[owner >= 0], minlength=clients)


def _dealt(rng: np.random.Generator, clients: int, each: int, classes: int) -> npt.NDArray[np.int64]:
    """(clients, each) different classes for every client, from one shuffled deck after the other."""
    deck: list[int] = []
    held = np.empty((clients, each), np.int64)
    for i in range(clients):
        mine: list[int] = []
        while len(mine) < each:
            deck = deck or rng.permutation(classes).tolist()
            at = next((k for k, c in enumerate(deck) if c not in mine), None)
            if at is None:  # only classes it has: it draws from the next deck, too
                deck += rng.permutation(classes).tolist()
            else:
                mine.append(deck.pop(at))
        held[i] = mine
    return held


@guarded
def by_group(
    group: npt.ArrayLike,
    chosen: npt.ArrayLike | None = None,
    *,
    last: npt.ArrayLike | None = None,
    most: int | None = None,
) -> Partition:
    """One client per value of `group`, in the order of `chosen` (default: all, sorted).

    Rows keep their order, except that those marked in `last` come last in their group. At most `most` rows each.
    """
    values = one_column("group", group)
    wanted: npt.NDArray[Any] = np.unique(values) if chosen is None else one_column("chosen", chosen)
    sorter = np.argsort(wanted, kind="stable")
    place = np.minimum(np.searchsorted(wanted, values, sorter=sorter), len(wanted) - 1)
    owner = np.where(wanted[sorter[place]] == values, sorter[place], -1)
    late = np.zeros(len(values), bool) if last is None else finite("last", last).astype(bool)
    if late.shape != values.shape:
        raise DataError(
            f"last must mark every row, {len(values)} of them; got shape {late.shape}. Pass one mark per row."
        )
    rows = np.lexsort((np.arange(len(values)), late, owner))
    rows = rows[owner[rows] >= 0]
    sizes = np.bincount(owner[rows], minlength=len(wanted)).astype(np.int64)
    if most is not None:
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows, sizes = rows[rank < most], np.minimum(sizes, most)
    return rows.astype(np.int64), sizes


def _even(n: int, parts: int) -> Ints:
    return np.full(parts, n // parts, np.int64) + (np.arange(parts) < n % parts)


def _check(n: int, parts: int, name: str = "clients") -> None:
    if not 1 <= parts <= n:
        raise DataError(f"{name} must be between 1 and the number of rows, {n}; got {parts}. Choose a number between.")
