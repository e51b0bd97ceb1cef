"""Neighbouring federations, and training so unstable that one differing bit becomes a large difference."""

from __future__ import annotations

from typing import Any

import numpy as np
from conformance_settings import configured
from torch import nn

import coterie as ct
from coterie.base.settings import with_setting

SIZES = (30, 30, 30, 30, 17, 17, 29, 5, 12, 30, 28, 30)  # a grown first client is the largest
ROWS = {"other rows": 30, "grown": 36, "shrunk": 3, "alone with its size": 41}
CHANGES = (*ROWS, "removed")


def unstable_task() -> ct.Task:
    """Smooth activations and kinks, and odd widths: a layer's last numbers, which are computed in another way, are then at
    another client's place for every place in a chunk."""
    return ct.Task(lambda: nn.Sequential(nn.Linear(7, 61), nn.GELU(), nn.Linear(61, 5), nn.ReLU(), nn.Linear(5, 3)))


def clients(change: str | None, dtype: str, weighted: bool = False, last: str | None = None) -> ct.Federation:
    """The federation; the first client, and the last, is another one, or gone."""
    rng = np.random.default_rng(0)
    data: dict[str, Any] = {
        f"client {i}": (rng.normal(size=(n, 7)), rng.integers(0, 3, n)) for i, n in enumerate(SIZES)
    }
    for client, how in {"client 0": change, f"client {len(SIZES) - 1}": last}.items():
        if how == "removed":
            del data[client]
        elif how in ROWS:
            other, n = np.random.default_rng(len(client)), ROWS[how]
            data[client] = (100 * other.normal(size=(n, 7)), other.integers(0, 3, n))
    if weighted:
        for i, (client, (x, y)) in enumerate(data.items()):
            low = 0.01 if client == "client 0" and change else 1.0
            data[client] = (x, y, np.random.default_rng(i).uniform(low, 3 * low, len(y)))
    made = ct.Federation.from_arrays(
        data, classes=[0, 1, 2], one_class="allow", test_fraction=0.0, dtype=dtype, clusters=dict.fromkeys(data, 0)
    )  # type: ignore[arg-type]
    return made.declare_public("classes")


def unstable(name: str) -> Any:
    """The algorithm with steps so long that training is chaotic, and finite."""
    made = configured(name)
    steps = ct.LocalSGD(steps=25, lr=5.0, batch_size=None if name == "fedavg" else 8, clip=10.0)
    return with_setting(made, "local", steps) or made
