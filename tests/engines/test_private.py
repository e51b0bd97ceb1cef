"""The private engine's sums where a whole chunk of clients has nothing finite to say."""

import numpy as np
import pytest
import torch

import coterie as ct


def broken(clients, bad):
    """Clients with two features; those of `bad` have rows that make every step infinite."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, 6, 2)).astype(np.float32)
    x[bad] = 3e38
    y = rng.integers(0, 2, (clients, 6))
    return ct.Federation.from_flat(
        x.reshape(-1, 2),
        y.ravel(),
        sizes=np.full(clients, 6),
        clients=range(clients),
        n_test=np.full(clients, 2),
        one_class="allow",
    )


@pytest.mark.filterwarnings("ignore::coterie.CoterieWarning")
@pytest.mark.parametrize("noise", ["simulation", "exact"])
@pytest.mark.parametrize("bad", [[1], [0, 1, 2, 3]])
@pytest.mark.parametrize("algorithm", [ct.FedAvg(), ct.IFCA(2, start="random"), ct.FedEM(components=2)])
def test_a_chunk_without_a_finite_client_ends_nobodys_run(algorithm, bad, noise):
    privacy = ct.Privacy(8.0, 1e-4, clip=1.0, noise=noise)
    engine = ct.LocalEngine(chunk=1, workers=1)
    options = {"rounds": 2, "engine": engine, "privacy": privacy, "alone": False, "progress": False}
    run = ct.fit(algorithm, broken(4, bad), ct.Task(ct.models.linear(2, 2)), **options)
    assert all(torch.isfinite(t).all() for t in run.model(3).parameters())
