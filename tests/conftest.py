"""Small federations every test may share; they are immutable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import nn

import coterie as ct
from coterie.training import validity

# Tests have small models and run side by side: more threads would mostly wait. Those about workers say how many.
os.environ.setdefault("COTERIE_CORES", "1")
torch.set_num_threads(1)
mpl.use("Agg")
settings.register_profile("fixed", derandomize=True, deadline=None)  # the same examples in every run
settings.load_profile("fixed")

SIZES = (5, 9, 12, 12, 17, 30, 33, 40, 55, 8, 21, 64)  # ragged: several padded sizes
Build = Callable[..., ct.Federation]


def build(
    sizes: tuple[int, ...] = SIZES, kind: str = "classification", dtype: Any = "float32", ids: Any = None, seed: int = 0
) -> ct.Federation:
    """Two true clusters with labels of their own; client i is in cluster i mod 2."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(2, 4, 3))
    data, clusters = {}, {}
    for i, n in enumerate(sizes):
        name = f"c{i}" if ids is None else ids[i]
        x = rng.normal(size=(n, 4))
        scores = x @ truth[i % 2] + 0.3 * rng.normal(size=(n, 3))
        y = scores.argmax(1) if kind == "classification" else scores[:, 0]
        if kind == "classification":
            y[:2] = (0, 1)  # never one class only
        data[name], clusters[name] = (x, y), i % 2
    return ct.Federation.from_arrays(data, clusters=clusters, seed=3, dtype=dtype)


@pytest.fixture(autouse=True)
def nothing_was_looked_at() -> Iterator[None]:
    """Settings tried on a shared federation in one test void no receipt in the next."""
    yield
    validity._LOOKED.clear()


@pytest.fixture(scope="session")
def make_fed() -> Build:
    return build


@pytest.fixture(scope="session")
def fed() -> ct.Federation:
    return build().declare_public("classes", "kind")


@pytest.fixture(scope="session")
def numbers() -> ct.Federation:
    """Regression."""
    return build(kind="regression")


@pytest.fixture(scope="session")
def fed64() -> ct.Federation:
    return build(dtype="float64")


@pytest.fixture(scope="session")
def task() -> ct.Task:
    return ct.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), metric=("accuracy", "log_loss"))


@pytest.fixture(scope="session")
def number_task() -> ct.Task:
    return ct.Task(lambda: nn.Linear(4, 1), loss="mse", metric=("mse", "r2"))
