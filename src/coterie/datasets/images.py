"""Image federations; pictures stay uint8 and become numbers in [0, 1] only when a model reads them.

The clusters of `digits`, `mnist` and `cifar10` see the pictures rotated or the labels shifted: see `clustered`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from sklearn.datasets import load_digits

from coterie.base.annotations import guarded
from coterie.data.federation import Federation
from coterie.datasets.clustered import Clusters, Transform, shaped, share_out, share_out_by_writer
from coterie.datasets.files import load_arrays
from coterie.datasets.partition import by_group
from coterie.errors import DataError

FEMNIST_CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@guarded
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
    return share_out(split, Clusters(transform, clusters, angle), clients, samples, seed=seed, flatten=flatten)


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
    kinds = Clusters(transform, clusters, angle)
    if by_writer:
        x, y, writer = load_arrays("mnist.npz", "x_train", "y_train", "writer_train")
        return share_out_by_writer(
            x[:, None],
            y,
            writer,
            kinds,
            clients=clients,
            samples=samples,
            seed=seed,
            test_fraction=test_fraction,
            flatten=flatten,
        )
    x, y, x_test, y_test = load_arrays("mnist.npz", "x_train", "y_train", "x_test", "y_test")
    split = (x[:, None], y, x_test[:, None], y_test)
    return share_out(
        split, kinds, clients, samples, seed=seed, test_samples=test_samples, disjoint=disjoint, flatten=flatten
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
    kinds = Clusters(transform, clusters, angle)
    return share_out(split, kinds, clients, samples, seed=seed, test_samples=test_samples, disjoint=disjoint)


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
        shaped(255 - x[rows, None] if invert else x[rows, None], flatten),
        np.array(FEMNIST_CLASSES)[y[rows]],
        sizes=sizes,
        clients=writer_name[chosen].tolist(),
        n_test=n_leaf_test[chosen] if split == "leaf" else None,
        test_fraction=test_fraction,
        seed=seed,
        kind="classification",
        classes=FEMNIST_CLASSES,
        one_class="allow",
        scale_bytes=True,
    )
