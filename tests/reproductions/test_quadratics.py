"""On quadratic losses the methods written on Hessians take the same steps as the package's algorithms."""

import numpy as np
import torch

import coterie as ct
from coterie.datasets.synthetic import cluster_quadratics
from reproductions.quadratics import METHODS, World, federated_clustering


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(10, dtype=torch.float64))

    def forward(self, rows):
        return rows @ self.x


def half_square(outputs, y):
    return (outputs - y) ** 2 / 2


def test_federated_clustering_is_algorithm_2(monkeypatch):
    """With one step size for all; the experiment's is each client's own 1/L."""
    world = World(2, 2, 0)
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda h: np.full(h.shape[:-1], 100.0))
    steps = federated_clustering(world)
    mine = [next(steps) for _ in range(3)][-1]
    data, _ = cluster_quadratics(clusters=2, clients_per_cluster=2, seed=0, dtype="float64")
    algorithm = ct.FederatedClustering(lr=0.01, radius=ct.robust.Percentile(25), inner=10)
    start = {"x": torch.zeros(10, dtype=torch.float64)}
    result = ct.fit(algorithm, data, ct.Task(Line, loss=half_square, metric="mse"), rounds=3, start=start, alone=False)
    np.testing.assert_allclose(result.state.models["x"].numpy(), mine, atol=1e-9)


def test_training_in_the_true_clusters_arrives_and_alone_a_direction_is_missing():
    world = World(2, 6, 1)
    for method, arrives in (("GT", True), ("Local", False)):
        steps = METHODS[method](world)
        x = [next(steps) for _ in range(1000)][-1]
        assert bool(np.abs(x - world.optimum).max() < 1e-3) is arrives
        if not arrives:  # yet its own equations are solved
            off = x - world.optimum
            assert np.einsum("id,ide,ie->i", off, world.hessian, off).max() < 1e-2


def test_clients_may_start_near_their_optima():
    assert not World(2, 6, 1).origin.any()
    off = np.square(World(2, 6, 1, near=True).origin - World(2, 6, 1).optimum).sum(1)
    np.testing.assert_allclose(off.mean(), 0.1, atol=4 * 0.1 * np.sqrt(2 / 10 / 12))
