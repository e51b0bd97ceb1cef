"""k-means on principal coordinates, of few long rows and of many short ones; seeds from distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.aggregation.gram import gram, pairwise
from coterie.aggregation.update_kmeans import kmeans_rows, plusplus, principal_coordinates


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (8, 8)])
def test_coordinates_have_the_distances_of_the_rows(shape: tuple[int, int]) -> None:
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) + 3
    found = torch.from_numpy(principal_coordinates(rows))
    torch.testing.assert_close(
        torch.cdist(found, found), torch.cdist(rows.double(), rows.double()), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("shape", [(6, 40), (40, 6)])
def test_the_leading_coordinates_are_the_singular_ones(shape: tuple[int, int]) -> None:
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    left, values, _ = np.linalg.svd((rows - rows.mean(0)).double().numpy(), full_matrices=False)
    np.testing.assert_allclose(np.abs(principal_coordinates(rows, 2)), np.abs(left[:, :2] * values[:2]), atol=1e-4)


def test_a_huge_row_keeps_its_distance() -> None:
    rows = torch.zeros(9, 2)
    rows[3] = 1e30
    assert sorted(kmeans_rows(rows, 2, seed=0).tolist()) in ([0] * 8 + [1], [0] + [1] * 8)


def test_very_many_rows_take_no_matrix_of_their_pairs() -> None:
    rows = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(2))
    rows[::2] += 20
    labels = kmeans_rows(rows, 2, seed=0)  # all pairs would be 80 GB
    assert len(set(labels[::2].tolist())) == 1
    assert (labels[::2] != labels[1::2]).all()


@pytest.mark.parametrize("far", [1e3, 1e30, 1e140])
def test_seeds_lie_in_every_group_beside_a_far_point(far):
    rng = np.random.default_rng(0)
    rows = np.repeat([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]], 5, 0) + rng.normal(size=(15, 2))
    squared = pairwise(gram(torch.from_numpy(np.concatenate([rows, [[far, far]]])))).numpy()
    for seed in range(20):
        assert sorted(plusplus(squared, 4, seed=seed) // 5) == [0, 1, 2, 3]


def test_equal_points_have_seeds_too():
    assert len(plusplus(np.zeros((3, 3)), 2, seed=0)) == 2
