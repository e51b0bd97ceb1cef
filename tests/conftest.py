"""Small federations every test may share; they are immutable."""

from __future__ import annotations

import os
from collections.abc import Callable

import matplotlib as mpl
import pytest
import torch
from hypothesis import settings

import coterie as ct
from coterie.training.small_case import NUMBERS, small_task
from coterie.training.small_case import small_federation as build

# Tests have small models and run side by side: more threads would mostly wait. Those about workers say how many.
os.environ.setdefault("COTERIE_CORES", "1")
torch.set_num_threads(1)
mpl.use("Agg")
settings.register_profile("fixed", derandomize=True, deadline=None)  # the same examples in every run
settings.load_profile("fixed")

Build = Callable[..., ct.Federation]


@pytest.fixture(autouse=True)
def nobody_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share rows; what one of them chose on them is not another's."""
    monkeypatch.setattr("coterie.training.validity._LOOKED", {})


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
    return small_task()


@pytest.fixture(scope="session")
def number_task() -> ct.Task:
    return NUMBERS
