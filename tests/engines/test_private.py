"""The private engine's sums where a whole chunk of clients has nothing finite to say, or clients are too many."""

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.engines.private import Releases


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


@pytest.mark.parametrize("groups", [1, 3])
def test_users_whose_sum_could_wrap_around_are_refused(groups):
    privacy = ct.Privacy(8.0, 1e-4, clip=1.0)
    few, many = (Releases(privacy, None, 1.0, n, 1.0, float(n)) for n in (2**40, 2**43))
    few.mechanism(groups, 5)
    with pytest.raises(ct.ConfigError, match="may not fit into 64 bits"):
        many.mechanism(groups, 5)
