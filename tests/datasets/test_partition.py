"""Partitions use every row once and skew labels as asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.datasets import by_group, dirichlet, iid, label_shards, pathological
from coterie.errors import DataError

LABELS = np.repeat(np.arange(10), 200)


def distinct_labels(rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.array([len(np.unique(LABELS[part])) for part in np.split(rows, np.cumsum(sizes)[:-1])])


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 5))
def test_iid_uses_every_row_once(clients: int, extra: int, seed: int) -> None:
    rows, sizes = iid(clients + extra, clients=clients, seed=seed)
    np.testing.assert_array_equal(np.sort(rows), np.arange(clients + extra))
    assert sizes.sum() == clients + extra
    assert sizes.max() - sizes.min() <= 1


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 5))
def test_shards_use_every_row_once(clients: int, shards: int, seed: int) -> None:
    rows, sizes = label_shards(LABELS, clients=clients, shards=shards, seed=seed)
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(LABELS)))
    assert sizes.sum() == len(LABELS)


def test_shards_limit_the_labels_of_a_client() -> None:
    rows, sizes = label_shards(LABELS, clients=20, shards=2, seed=0)
    assert distinct_labels(rows, sizes).max() <= 2
    assert distinct_labels(*iid(len(LABELS), clients=20, seed=0)).min() == 10


def test_dirichlet_skew_grows_as_alpha_falls() -> None:
    spread = {}
    for alpha in (0.1, 1.0, 1000.0):
        rows, sizes = dirichlet(LABELS, clients=20, alpha=alpha, seed=0)
        np.testing.assert_array_equal(np.sort(rows), np.arange(len(LABELS)))
        shares = np.stack(
            [np.bincount(LABELS[p], minlength=10) / len(p) for p in np.split(rows, np.cumsum(sizes)[:-1])]
        )
        spread[alpha] = shares.max(axis=1).mean()
    assert spread[0.1] > 0.5 > spread[1.0] > 0.2 > spread[1000.0]


def test_dirichlet_gives_everybody_rows_or_says_so() -> None:
    _, sizes = dirichlet(LABELS, clients=10, alpha=0.3, min_samples=30, seed=0)
    assert sizes.min() >= 30
    with pytest.raises(DataError, match="No draw gave all 500 clients 4 rows"):
        dirichlet(LABELS, clients=500, alpha=0.01, min_samples=4, seed=0)
    with pytest.raises(DataError, match="alpha must be positive"):
        dirichlet(LABELS, clients=5, alpha=0.0, seed=0)


def test_groups_keep_their_order_and_put_marked_rows_last() -> None:
    group = np.array(["b", "a", "b", "c", "b", "a"])
    rows, sizes = by_group(group)
    assert rows.tolist() == [1, 5, 0, 2, 4, 3]
    assert sizes.tolist() == [2, 3, 1]
    rows, sizes = by_group(group, ["b", "a"], last=np.array([1, 0, 0, 0, 0, 0]))
    assert rows.tolist() == [2, 4, 0, 1, 5]
    assert sizes.tolist() == [3, 2]
    rows, sizes = by_group(group, ["b", "a"], most=2)
    assert rows.tolist() == [0, 2, 1, 5]


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(DataError, match="number of rows, 3; got 4"):
        iid(3, clients=4, seed=0)
    with pytest.raises(DataError, match="clients · shards"):
        label_shards([0, 1, 2], clients=2, shards=2, seed=0)


def test_pathological_gives_every_client_exactly_so_many_classes() -> None:
    y = np.repeat(np.arange(10), 50)
    for clients, classes in ((20, 2), (7, 3), (5, 10), (10, 1)):
        rows, sizes = pathological(y, clients=clients, classes=classes, seed=1)
        assert len(np.unique(rows)) == len(rows) == sizes.sum()
        owner = np.repeat(np.arange(clients), sizes)
        assert all(len(np.unique(y[rows[owner == i]])) == classes for i in range(clients))
    assert len(pathological(y, clients=20, classes=2, seed=1)[0]) == 500
    assert not np.array_equal(pathological(y, clients=20, seed=1)[0], pathological(y, clients=20, seed=2)[0])
    with pytest.raises(DataError, match=r"classes must be in 1 … 10"):
        pathological(y, clients=3, classes=11, seed=0)
    with pytest.raises(DataError, match="cannot share"):
        pathological(y, clients=2000, classes=10, seed=0)
