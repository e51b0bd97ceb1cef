"""Cluster metrics are right up to relabelling and tell clusterings apart."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import DataError
from coterie.learning import metrics


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4), n=st.integers(1, 15))
def test_cluster_accuracy_is_the_best_over_all_permutations(seed, k, n):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, k, n), rng.integers(0, k, n)
    best = max(np.mean([p[i] == j for i, j in zip(a, b, strict=True)]) for p in permutations(range(k)))
    assert metrics.cluster_accuracy(a, b) == pytest.approx(best)


def test_cluster_accuracy_takes_names_lists_tensors_and_other_numbers_of_clusters():
    assert metrics.cluster_accuracy([1, 1, 0, 0], ["x", "x", "y", "y"]) == 1.0
    assert metrics.cluster_accuracy(torch.tensor([0, 1, 2, 3]), [0, 0, 0, 0]) == 0.25
    assert metrics.cluster_accuracy([0, 0, 0, 0], np.array([0, 1, 2, 2])) == 0.5
    assert metrics.cluster_accuracy([0, 0, 0, 1], [0, 0, 1, 1]) == 0.75


def test_series_are_aligned_by_client():
    estimated = pd.Series([0, 0, 1], index=["a", "b", "c"])
    true = pd.Series([5, 7, 7], index=["c", "b", "a"])
    assert metrics.cluster_accuracy(estimated, true) == 1.0
    assert metrics.cluster_accuracy(estimated, true.to_numpy()) == pytest.approx(2 / 3)  # an array has no index
    assert metrics.adjusted_rand(estimated, true) == 1.0
    with pytest.raises(DataError, match="indexes differ"):
        metrics.cluster_accuracy(estimated, true.rename({"a": "z"}))


def test_adjusted_rand_by_hand():
    assert metrics.adjusted_rand([0, 0, 1, 1], ["b", "b", "a", "a"]) == 1.0
    assert metrics.adjusted_rand([0, 0, 1, 2], [0, 0, 1, 1]) == pytest.approx(4 / 7)
    assert metrics.adjusted_rand([0, 1, 0, 1], [0, 0, 1, 1]) == pytest.approx(-0.5)


def test_parameter_distance_matches_models_and_nearest_does_not():
    true = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert metrics.parameter_distance(true[::-1], true) == 0.0
    assert metrics.parameter_distance(true + np.array([[0, 1], [0, 0]]), true) == 0.5
    both_on_one = true[[0, 0]]
    assert metrics.parameter_distance(both_on_one, true) == 2.5
    assert metrics.parameter_distance(both_on_one, true, matching="nearest") == 0.0
    tree = {"w": torch.tensor([[3.0], [0.0]]), "b": torch.tensor([[4.0], [0.0]])}
    assert metrics.parameter_distance(tree, torch.from_numpy(true)) == 0.0
    assert metrics.parameter_distance(true[[0, 1, 1]], true, matching="nearest") == 0.0


def test_pairwise_quality_of_labels_is_that_of_the_table_they_make():
    """Estimated {0, 1, 2}, {3} against {0, 1}, {2, 3}: precisions 2/3, 2/3, 1/3, 1 and recalls 1, 1, 1/2, 1/2."""
    true = ["a", "a", "b", "b"]
    for labels in ([5, 5, 5, 7], np.array(list("xxxy")), torch.tensor([1, 1, 1, 0]), pd.Series([0, 0, 0, 1])):
        quality = metrics.pairwise_quality(labels, true)
        np.testing.assert_allclose(quality.precisions, [2 / 3, 2 / 3, 1 / 3, 1])
        np.testing.assert_allclose(quality.recalls, [1, 1, 0.5, 0.5])
    with pytest.raises(DataError, match="one label per client"):
        metrics.pairwise_quality([0, 1], true)


def test_pairwise_quality_by_hand():
    members = [[1, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]]
    quality = metrics.pairwise_quality(members, ["a", "a", "b", "b"])
    np.testing.assert_allclose(quality.precisions, [2 / 3, 1, np.nan, 1])
    np.testing.assert_allclose(quality.recalls, [1, 0.5, 0, 1])
    assert quality.precision == pytest.approx(8 / 9)
    assert quality.recall == pytest.approx(2.5 / 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.cluster_accuracy([0, 1], [0]), "label per client"),
        (lambda: metrics.cluster_accuracy([], []), "label per client"),
        (lambda: metrics.cluster_accuracy([0, np.nan], [0, 1]), "missing"),
        (lambda: metrics.parameter_distance(np.eye(2), np.eye(3)), "equally many parameters"),
        (lambda: metrics.parameter_distance(np.eye(3)[:2], np.eye(3)), "nearest"),
        (lambda: metrics.parameter_distance(np.eye(3), np.eye(3), matching="raw"), "matching must be"),
        (lambda: metrics.parameter_distance(np.zeros(3), np.eye(3)), "stacked"),
        (lambda: metrics.pairwise_quality(np.ones((2, 3)), [0, 1]), "row and a column"),
    ],
)
def test_bad_input_is_said(call, words):
    with pytest.raises(DataError, match=words):
        call()
