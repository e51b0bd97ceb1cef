"""Seeds of k-means from distances."""

import numpy as np
import pytest
import torch

from coterie.aggregation.gram import gram, pairwise
from coterie.aggregation.kmeans import plusplus


@pytest.mark.parametrize("far", [1e3, 1e30, 1e140])
def test_seeds_lie_in_every_group_beside_a_far_point(far):
    rng = np.random.default_rng(0)
    rows = np.repeat([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]], 5, 0) + rng.normal(size=(15, 2))
    squared = pairwise(gram(torch.from_numpy(np.concatenate([rows, [[far, far]]])))).numpy()
    for seed in range(20):
        assert sorted(plusplus(squared, 4, seed=seed) // 5) == [0, 1, 2, 3]


def test_equal_points_have_seeds_too():
    assert len(plusplus(np.zeros((3, 3)), 2, seed=0)) == 2
