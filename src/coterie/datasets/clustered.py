"""Pictures shared out among clients of known clusters.

Cluster k = 0 … K−1 sees every picture turned by `angle`·k degrees ("rotate") or every label as (y + k) mod classes
("shift_labels"). Client i belongs to cluster i mod K, so any first few clients cover all clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.federation import Federation, Ints
from coterie.datasets.partition import by_group
from coterie.errors import DataError

Transform = Literal["rotate", "shift_labels", "permute_labels"]
"""`permute_labels` is another name for `shift_labels`."""
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[Any]
Split = tuple[Images, Labels, Images, Labels]
"""x_train, y_train, x_test, y_test; pictures are (rows, channels, height, width)."""


@dataclass(frozen=True)
class Clusters:
    """How the clusters' data differ."""

    transform: Transform | None
    number: int
    angle: int = 90
    classes: int = 10

    def check(self, clients: int) -> None:
        if self.transform not in (None, "rotate", "shift_labels", "permute_labels"):
            raise DataError(
                f"transform must be 'rotate', 'shift_labels' or None; got {self.transform!r}. Choose one of them."
            )
        if not 1 <= self.number <= clients:
            raise DataError(
                f"Every cluster needs a client; got clusters={self.number} for {clients} clients. "
                f"Use 1 to {clients} clusters."
            )
        if self.angle not in (90, 180, 270):
            raise DataError(f"angle must be 90, 180 or 270 degrees; got {self.angle}. Choose one of them.")
        different = {None: 1, "rotate": 2 if self.angle == 180 else 4}.get(self.transform, self.classes)
        if self.number > different:
            raise DataError(
                f"transform={self.transform!r} makes at most {different} different clusters; got clusters="
                f"{self.number}. Lower clusters or choose another transform."
            )

    def of(self, clients: int) -> Ints:
        return np.arange(clients) % self.number

    def seen(self, k: int, x: Images, y: Labels) -> tuple[Images, Labels]:
        """The pictures and labels as cluster k sees them."""
        if self.transform == "rotate":
            return np.rot90(x, k * self.angle // 90, axes=(-2, -1)), y
        if self.transform is None:
            return x, y
        return x, (y.astype(np.int64) + k) % self.classes


def share_out(
    split: Split,
    clusters: Clusters,
    clients: int,
    samples: int | None,
    *,
    seed: int,
    test_samples: int | None = None,
    disjoint: bool = False,
    flatten: bool = False,
) -> Federation:
    """Deal the training and the test pictures to the clients of every cluster, or of all clusters if `disjoint`."""
    clusters.check(clients)
    x, y, x_test, y_test = split
    cluster = clusters.of(clients)
    pools = [np.arange(clients)] if disjoint else [np.flatnonzero(cluster == k) for k in range(clusters.number)]
    samples, test_samples = _rows_each(len(x), len(x_test), len(pools[0]), samples, test_samples)
    if disjoint and clients * samples > len(x):
        raise DataError(
            f"disjoint needs clients · samples ≤ {len(x)}; got {clients} · {samples} = {clients * samples}. Lower one."
        )
    rng = np.random.default_rng([seed, 1])
    train_rows, test_rows = np.empty((clients, samples), np.int64), np.empty((clients, test_samples), np.int64)
    for members in pools:
        train_rows[members] = _deal(len(x), len(members), samples, rng)
        test_rows[members] = _deal(len(x_test), len(members), test_samples, rng)
    pictures = np.empty((clients, samples + test_samples, *x.shape[1:]), np.uint8)
    labels = np.empty((clients, samples + test_samples), np.int64)
    for k in range(clusters.number):
        members = np.flatnonzero(cluster == k)
        for part, rows, xy in ((np.s_[:samples], train_rows, (x, y)), (np.s_[samples:], test_rows, (x_test, y_test))):
            seen_x, seen_y = clusters.seen(k, *xy)
            pictures[members, part], labels[members, part] = seen_x[rows[members]], seen_y[rows[members]]
    return Federation.from_flat(
        shaped(pictures.reshape(-1, *x.shape[1:]), flatten),
        labels.ravel(),
        sizes=np.full(clients, samples + test_samples),
        clients=range(clients),
        n_test=np.full(clients, test_samples),
        clusters=cluster,
        kind="classification",
        classes=range(clusters.classes),
        one_class="allow",
        scale_bytes=True,
    )


def share_out_by_writer(
    x: Images,
    y: Labels,
    writer: npt.NDArray[Any],
    clusters: Clusters,
    *,
    clients: int,
    samples: int,
    seed: int,
    test_fraction: float,
    flatten: bool = False,
) -> Federation:
    """One client per writer (at most `clients` of them, at most `samples` pictures each), dealt to the clusters."""
    writers = np.unique(writer)[:clients]
    clusters.check(len(writers))
    rows, sizes = by_group(writer, writers, most=samples)
    cluster = clusters.of(len(writers))
    pictures, labels = x[rows], y[rows].astype(np.int64)
    for k in range(clusters.number):
        mine = np.repeat(cluster, sizes) == k
        pictures[mine], labels[mine] = clusters.seen(k, pictures[mine], labels[mine])
    return Federation.from_flat(
        shaped(pictures, flatten),
        labels,
        sizes=sizes,
        clients=writers.tolist(),
        test_fraction=test_fraction,
        seed=seed,
        clusters=cluster,
        kind="classification",
        classes=range(clusters.classes),
        one_class="allow",
        scale_bytes=True,
    )


def shaped(x: Images, flatten: bool) -> Images:
    return x.reshape(len(x), -1) if flatten else x


def _rows_each(train: int, test: int, members: int, samples: int | None, test_samples: int | None) -> tuple[int, int]:
    """Training and test rows of every client; by default an even share of the pictures."""
    samples = max(train // members, 1) if samples is None else samples
    test_samples = min(samples, max(10, test // members), test) if test_samples is None else test_samples
    if not (1 <= samples <= train and 1 <= test_samples <= test):
        raise DataError(
            f"A client can have 1 to {train} samples and 1 to {test} test samples; got {samples} and {test_samples}. "
            "Lower the numbers, or the number of clients."
        )
    return samples, test_samples


def _deal(pictures: int, members: int, each: int, rng: np.random.Generator) -> Ints:
    """(members, each) pictures, dealt like cards: a picture comes again only after the whole shuffled deck is used up.

    The end of a deck that is too short for the next client is left out, so that no client holds a picture twice.
    """
    hands = pictures // each
    decks = [rng.permutation(pictures)[: hands * each].reshape(hands, each) for _ in range(-(-members // hands))]
    return np.concatenate(decks)[:members]
