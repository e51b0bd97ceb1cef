"""Pictures for the experiments, shrunk where two cores could not train on whole ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from coterie.data.federation import Federation
from coterie.datasets.clustered import Clusters, Images, Split, Transform, share_out
from coterie.datasets.files import load_arrays


def shrunk(x: Images, by: int) -> Images:
    """(rows, channels, height, width) pictures of a `by`-th of the height and width, by means of squares."""
    rows, channels, high, wide = x.shape
    blocks = x.reshape(rows, channels, high // by, by, wide // by, by)
    return np.asarray(np.round(blocks.mean((3, 5), dtype=np.float32)), np.uint8)


@cache
def split(name: str, by: int = 1) -> Split:
    """Training and test pictures of "mnist" or "cifar10"."""
    x, y, x_test, y_test = load_arrays(f"{name}.npz", "x_train", "y_train", "x_test", "y_test")
    x, x_test = ((p[:, None] if p.ndim == 3 else p.transpose(0, 3, 1, 2)) for p in (x, x_test))
    return (x, y, x_test, y_test) if by == 1 else (shrunk(x, by), y, shrunk(x_test, by), y_test)


def federation(
    name: str,
    transform: Transform,
    *,
    clusters: int,
    clients: int,
    samples: int,
    seed: int,
    by: int = 1,
    angle: int = 90,
    **options: Any,
) -> Federation:
    """Clients of known clusters, as `datasets.mnist` and `datasets.cifar10` make them, of smaller pictures."""
    kinds = Clusters(transform, clusters, angle)
    return share_out(split(name, by), kinds, clients, samples, seed=seed, **options)
