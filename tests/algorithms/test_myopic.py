"""Myopic-Clustering: exact k-means for a few clients, and a step along each group's mean gradient."""

import numpy as np
import torch
from scipy.special import comb

import coterie as ct
from coterie.algorithms.myopic_clustering import best_partition, partitions


def stirling(n, k):
    return round(sum((-1) ** (k - j) * comb(k, j) * j**n for j in range(k + 1)) / np.prod(np.arange(1, k + 1)))


def test_every_partition_is_tried_once():
    for n, k in ((3, 2), (5, 3), (6, 6)):
        seen = {tuple(p) for p in partitions(n, k)}
        assert len(list(partitions(n, k))) == len(seen) == sum(stirling(n, j) for j in range(1, k + 1))


def test_it_beats_or_equals_lloyds_k_means_at_every_scale():
    from coterie.aggregation.update_kmeans import kmeans_rows

    def spread(points, label):
        return sum(float(((points[label == j] - points[label == j].mean(0)) ** 2).sum()) for j in set(label.tolist()))

    for seed in range(3):
        points = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        exact = best_partition(points, 3, seed=0)
        lloyd = torch.from_numpy(kmeans_rows(points, 3, seed=0))
        assert spread(points, exact) <= spread(points, lloyd) + 1e-12
        assert torch.equal(exact, best_partition(points * 1e-9, 3, seed=0))  # vanishing gradients


def test_a_step_follows_the_mean_gradient_of_the_group(world):
    fed = world.quadratics([[0.0], [1.0], [20.0], [23.0]])
    start = {"weight": torch.tensor([[10.0]], dtype=torch.float64)}
    result = ct.fit(ct.MyopicClustering(clusters=2, lr=0.1), fed, world.linear(1), rounds=1, start=start, alone=False)
    np.testing.assert_allclose(world.personal(result).ravel(), [10 - 0.2 * 9.5] * 2 + [10 + 0.2 * 11.5] * 2)
    assert result.clusters.tolist() == [0, 0, 1, 1]


def test_many_clients_use_lloyds_k_means(world):
    centres = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 7, 0)
    result = ct.fit(
        ct.MyopicClustering(clusters=3, lr=0.2), world.quadratics(centres), world.linear(2), rounds=60, alone=False
    )
    np.testing.assert_allclose(world.personal(result), centres, atol=0.01)  # no noise, no flat spot: it works
