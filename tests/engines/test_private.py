"""The private engine: clients with nothing finite to say, too many clients, and places that follow from names."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.engines.base import Env
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


def test_a_private_clients_place_in_its_chunk_is_its_own(make_fed, task):
    """Whoever else is asked: places follow from names, and each place that is nobody's holds a copy."""
    fed = make_fed(sizes=[20] * 12)
    task.check(fed)
    e = Env(task, fed, task.init(0, fed.x.dtype), 0, private=SimpleNamespace(exact=True))

    def places(clients):
        who = np.asarray(clients)
        jobs = list(ct.LocalEngine(workers=1)._chunks(who, e, ("train",)))
        assert len({len(job.places) for job in jobs}) == 1
        return {int(who[job.places[s]]): int(s) for job in jobs for s in job.real}

    everyone = places(np.arange(12))
    assert sorted(everyone) == list(range(12))
    assert len(set(everyone.values())) > 3
    for cohort in ([3], [11, 2, 7], [0, 5, 6, 7, 8], np.arange(12)[::-1]):
        assert places(cohort) == {c: everyone[c] for c in cohort}


def test_a_group_whose_count_may_be_noise_is_taken_as_empty():
    private = Releases(ct.Privacy(8.0, 1e-4, clip=1.0), None, 3.0, 100, 1.0, 100.0)
    made = private.mechanism(3, 2)
    deviation = made.sigma / made.count_weight
    counts = deviation * np.array([3.9, 4.1, -5.0])
    found, sums = private._parts(made, (counts, np.ones((3, 2))))
    np.testing.assert_allclose(found, [0.0, counts[1], 0.0])
    assert sums.shape == (3, 2)
