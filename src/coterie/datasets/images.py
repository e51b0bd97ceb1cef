"""Image federations whose clients fall into known clusters: rotated pictures or private labels.

Cluster k = 0 … K−1 sees every picture turned by `angle`·k degrees ("rotate") or every label as (y + k) mod classes
("shift_labels"). Client i belongs to cluster i mod K, so any first few clients cover all clusters. Pictures stay uint8.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from coterie.datasets.files import load_arrays
from coterie.datasets.partition import by_group
from coterie.errors import DataError
from coterie.federation import Federation, Ints

Transform = Literal["rotate", "shift_labels", "permute_labels"]
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[Any]
Split = tuple[Images, Labels, Images, Labels]
"""x_train, y_train, x_test, y_test; pictures are (rows, channels, height, width)."""

FEMNIST_CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


def digits(
    *,
    transform: Transform | None = "rotate",
    clusters: int = 4,
    clients: int = 40,
    samples: int | None = None,
    seed: int = 0,
    test_fraction: float = 0.25,
    angle: int = 90,
    flatten: bool = True,
) -> Federation:
    """scikit-learn's 1,797 digits of 8×8 pixels; needs no file. x is (rows, 64), or (rows, 1, 8, 8) with flatten=False.

    `test_fraction` of the pictures are test pictures for everybody; inside a cluster the clients share out the rest.
    `samples` is the number of training rows of a client (default: as many as the sharing out allows).
    """
    data = load_digits()
    x = np.round(data.images * (255 / 16)).astype(np.uint8)[:, None]
    if not 0.0 < test_fraction < 1.0:
        raise DataError(f"test_fraction must be in (0, 1); got {test_fraction}. Use for example 0.25.")
    order = np.random.default_rng([seed, 0]).permutation(len(x))
    test, train = np.split(order, [round(len(x) * test_fraction)])
    split = (x[train], data.target[train], x[test], data.target[test])
    return clustered(split, transform, clusters, clients, samples, seed=seed, angle=angle, flatten=flatten)


def mnist(
    *,
    transform: Transform | None = "rotate",
    clusters: int = 4,
    clients: int = 1200,
    samples: int = 200,
    seed: int = 0,
    test_samples: int | None = None,
    angle: int = 90,
    flatten: bool = False,
    disjoint: bool = False,
    by_writer: bool = False,
    test_fraction: float = 0.25,
) -> Federation:
    """MNIST; x is (rows, 1, 28, 28) uint8, or (rows, 784) with `flatten`.

    By default (IFCA, section 6.2) every training picture occurs once in every cluster: clients · samples = 60000 · K. A
    client's test rows are test pictures of its cluster, shared out among the cluster's clients: `test_samples` each, by
    default 10000 / clients of the cluster (at least 10, at most `samples`), so 1200 clients take 33 each and 220 MB.

    With `disjoint` a picture belongs to one client only (Werner's MNIST tasks: clients=300). With `by_writer` a client
    is one of the 539 writers of the training pictures, `clients` and `samples` are upper limits, and `test_fraction`
    of its own pictures are held out.
    """
    if by_writer:
        x, y, writer = load_arrays("mnist.npz", "x_train", "y_train", "writer_train")
        return _by_writer(
            x[:, None], y, writer, transform, clusters, clients, samples, seed, test_fraction, angle, flatten
        )
    x, y, x_test, y_test = load_arrays("mnist.npz", "x_train", "y_train", "x_test", "y_test")
    split = (x[:, None], y, x_test[:, None], y_test)
    return clustered(
        split,
        transform,
        clusters,
        clients,
        samples,
        seed=seed,
        test_samples=test_samples,
        angle=angle,
        flatten=flatten,
        disjoint=disjoint,
    )


def cifar10(
    *,
    transform: Transform | None = "rotate",
    clusters: int = 2,
    clients: int = 40,
    samples: int = 500,
    seed: int = 0,
    test_samples: int | None = None,
    angle: int = 180,
    disjoint: bool = False,
) -> Federation:
    """CIFAR-10, x (rows, 3, 32, 32) uint8; with the whole set of 50,000 pictures IFCA's setting is clients=200."""
    x, y, x_test, y_test = load_arrays("cifar10.npz", "x_train", "y_train", "x_test", "y_test")
    channels_first = (0, 3, 1, 2)
    split = (x.transpose(channels_first), y, x_test.transpose(channels_first), y_test)
    return clustered(
        split,
        transform,
        clusters,
        clients,
        samples,
        seed=seed,
        test_samples=test_samples,
        angle=angle,
        disjoint=disjoint,
    )


def femnist(
    *,
    clients: int | None = None,
    complete: bool = True,
    min_samples: int = 10,
    split: Literal["leaf", "seed"] = "leaf",
    test_fraction: float = 0.25,
    seed: int = 0,
    invert: bool = False,
    flatten: bool = False,
) -> Federation:
    """FEMNIST by writer; x (rows, 1, 28, 28) uint8 with dark ink on white (`invert` makes it like MNIST).

    `complete` keeps the 300 writers of whom both LEAF parts are known; LEAF's own test rows are used unless
    split="seed" holds out `test_fraction` at random. `clients` picks that many writers with the seed.
    """
    names = ("x", "y", "writer", "leaf_split_test", "writer_name", "writer_complete")
    x, y, writer, leaf_test, writer_name, writer_complete = load_arrays("femnist.npz", *names)
    count = np.bincount(writer, minlength=len(writer_name))
    n_leaf_test = np.bincount(writer, leaf_test, len(writer_name)).astype(np.int64)
    usable = (count >= max(min_samples, 1)) & (writer_complete.astype(bool) | (not complete))
    if split == "leaf":
        usable &= n_leaf_test < count
    chosen = np.flatnonzero(usable)
    if clients is not None:
        if clients > len(chosen):
            raise DataError(f"There are only {len(chosen)} such writers; got clients={clients}. Ask for fewer.")
        chosen = np.sort(np.random.default_rng(seed).permutation(chosen)[:clients])
    rows, sizes = by_group(writer, chosen, last=leaf_test)
    return Federation.from_flat(
        _shaped(255 - x[rows, None] if invert else x[rows, None], flatten),
        np.array(FEMNIST_CLASSES)[y[rows]],
        sizes=sizes,
        clients=writer_name[chosen].tolist(),
        n_test=n_leaf_test[chosen] if split == "leaf" else None,
        test_fraction=test_fraction,
        seed=seed,
        kind="classification",
        classes=FEMNIST_CLASSES,
        one_class="allow",
    )


# ---- clusters --------------------------------------------------------------------------------------------------------


def transformed(
    x: Images, y: Labels, transform: Transform | None, k: int, *, classes: int, angle: int = 90
) -> tuple[Images, Labels]:
    """What cluster k sees."""
    if transform == "rotate":
        return np.rot90(x, k * angle // 90, axes=(-2, -1)), y
    if transform in ("shift_labels", "permute_labels"):
        return x, (y.astype(np.int64) + k) % classes
    return x, y


def clustered(
    split: Split,
    transform: Transform | None,
    clusters: int,
    clients: int,
    samples: int | None,
    *,
    seed: int,
    test_samples: int | None = None,
    angle: int = 90,
    flatten: bool = False,
    disjoint: bool = False,
    classes: int = 10,
) -> Federation:
    """Share out training and test pictures among the clients of every cluster (or of all, if `disjoint`)."""
    x, y, x_test, y_test = split
    _check_clusters(transform, clusters, clients, classes, angle)
    cluster = np.arange(clients) % clusters
    most = clients if disjoint else -(-clients // clusters)  # clients that share one pool
    if samples is None:
        samples = max(len(x) // most, 1)
    if test_samples is None:
        test_samples = min(samples, max(10, len(x_test) // most))
    if min(samples, test_samples) < 1 or samples > len(x) or test_samples > len(x_test):
        raise DataError(
            f"A client can have 1 to {len(x)} samples and 1 to {len(x_test)} test samples; "
            f"got {samples} and {test_samples}."
        )
    if disjoint and clients * samples > len(x):
        raise DataError(
            f"disjoint needs clients · samples ≤ {len(x)}; got {clients} · {samples} = {clients * samples}. Lower one."
        )
    rng = np.random.default_rng([seed, 1])
    pools = [np.arange(clients)] if disjoint else [np.flatnonzero(cluster == k) for k in range(clusters)]
    train_rows = np.empty((clients, samples), np.int64)
    test_rows = np.empty((clients, test_samples), np.int64)
    for members in pools:
        train_rows[members] = _share_out(len(x), len(members), samples, rng)
        test_rows[members] = _share_out(len(x_test), len(members), test_samples, rng)
    flat = np.empty((clients, samples + test_samples, *x.shape[1:]), np.uint8)
    labels = np.empty((clients, samples + test_samples), np.int64)
    for k in range(clusters):
        members = np.flatnonzero(cluster == k)
        for part, rows, (px, py) in (
            (slice(None, samples), train_rows, (x, y)),
            (slice(samples, None), test_rows, (x_test, y_test)),
        ):
            tx, ty = transformed(px, py, transform, k, classes=classes, angle=angle)
            flat[members, part] = tx[rows[members]]
            labels[members, part] = ty[rows[members]]
    return _federation(flat.reshape(-1, *x.shape[1:]), labels.ravel(), clients, test_samples, cluster, classes, flatten)


def _federation(
    x: Images, y: Labels, clients: int, test_samples: int, cluster: Ints, classes: int, flatten: bool
) -> Federation:
    return Federation.from_flat(
        _shaped(x, flatten),
        y,
        sizes=np.full(clients, len(x) // clients),
        clients=range(clients),
        n_test=np.full(clients, test_samples),
        clusters=cluster,
        kind="classification",
        classes=range(classes),
        one_class="allow",
    )


def _share_out(pictures: int, members: int, each: int, rng: np.random.Generator) -> Ints:
    """(members, each) pictures: shuffled decks dealt one after another; a picture repeats only when a deck is used up.

    The rest of a deck that is too short for a hand is left, so that no client holds a picture twice.
    """
    hands = pictures // each
    decks = [rng.permutation(pictures)[: hands * each].reshape(hands, each) for _ in range(-(-members // hands))]
    return np.concatenate(decks)[:members]


def _by_writer(
    x: Images,
    y: Labels,
    writer: npt.NDArray[Any],
    transform: Transform | None,
    clusters: int,
    clients: int,
    samples: int,
    seed: int,
    test_fraction: float,
    angle: int,
    flatten: bool,
) -> Federation:
    writers = np.unique(writer)[:clients]
    _check_clusters(transform, clusters, len(writers), 10, angle)
    rows, sizes = by_group(writer, writers, most=samples)
    cluster = np.arange(len(writers)) % clusters
    row_cluster = np.repeat(cluster, sizes)
    bx, by = x[rows], y[rows].astype(np.int64)
    for k in range(clusters):
        mine = row_cluster == k
        bx[mine], by[mine] = transformed(bx[mine], by[mine], transform, k, classes=10, angle=angle)
    return Federation.from_flat(
        _shaped(bx, flatten),
        by,
        sizes=sizes,
        clients=writers.tolist(),
        test_fraction=test_fraction,
        seed=seed,
        clusters=cluster,
        kind="classification",
        classes=range(10),
        one_class="allow",
    )


def _shaped(x: Images, flatten: bool) -> Images:
    return x.reshape(len(x), -1) if flatten else x


def _check_clusters(transform: Any, clusters: int, clients: int, classes: int, angle: int) -> None:
    if transform not in (None, "rotate", "shift_labels", "permute_labels"):
        raise DataError(f"transform must be 'rotate', 'shift_labels' or None; got {transform!r}.")
    if not 1 <= clusters <= clients:
        raise DataError(f"There must be 1 to {clients} clusters, one client in each at least; got {clusters}.")
    if angle % 90 or not 0 < angle < 360:
        raise DataError(f"angle must be 90, 180 or 270; got {angle}.")
    turns = len({k * angle % 360 for k in range(4)})
    most = {None: 1, "rotate": turns}.get(transform, classes)
    if clusters > most:
        raise DataError(
            f"transform={transform!r} makes at most {most} different clusters; got clusters={clusters}. Lower clusters"
            + (" to 1, or choose a transform." if transform is None else ".")
        )
