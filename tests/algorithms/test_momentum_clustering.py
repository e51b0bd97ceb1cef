"""Momentum-Clustering: the recursion by hand, its centres, and its cost."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.learning.metrics import cluster_accuracy


def start(value):
    return {"weight": torch.tensor([value], dtype=torch.float64)}


@pytest.mark.parametrize("warm", [True, False])
def test_the_recursion_by_hand(world, warm):
    """Two groups of identical clients at 0 and 10; the centres follow the two momenta."""
    fed = world.quadratics([[0.0], [10.0]] * 3)
    algorithm = ct.MomentumClustering(clusters=2, lr=0.1, alpha=0.4, radius=3.0, inner=60, warm=warm)
    for rounds in (1, 2, 6):
        result = ct.fit(algorithm, fed, world.linear(1), rounds=rounds, start=start([4.0]), alone=False)
        expected = []
        for centre in (0.0, 10.0):
            x, m = 4.0, 0.0
            for t in range(rounds):
                a = 1.0 if warm and t == 0 else 0.4
                m = a * 2 * (x - centre) + (1 - a) * m
                x -= 0.1 * m
            expected.append(x)
        np.testing.assert_allclose(world.personal(result).ravel(), expected * 3, rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_while_gradients_are_large_it_finds_planted_groups(world, alpha):
    """Clients of a group make the same steps, towards its mean. (Once gradients vanish, labels say nothing.)"""
    rng = np.random.default_rng(0)
    own = rng.permutation(np.arange(18) % 3)
    fed = world.quadratics(50 * np.eye(3)[own] + rng.normal(size=(18, 3)), own)
    algorithm = ct.MomentumClustering(clusters=3, lr=0.4, alpha=alpha, inner=60)
    begin, end = (ct.fit(algorithm, fed, world.linear(3), rounds=r, alone=False) for r in (0, 4))
    assert cluster_accuracy(end.clusters.to_numpy(), own) == 1
    before, after, centre = world.personal(begin), world.personal(end), fed.y.reshape(18, 3).numpy()
    for k in range(3):
        assert np.ptp(after[own == k], axis=0).max() < 1e-9
        goal = centre[own == k].mean(0)
        assert np.linalg.norm(after[own == k][0] - goal) < 0.5 * np.linalg.norm(before[0] - goal)


def test_a_round_costs_one_message_up_and_one_down_a_client(world):
    fed, count = world.quadratics(np.eye(6)), world.Count()
    result = ct.fit(ct.MomentumClustering(clusters=2), fed, world.linear(6), rounds=4, channels=[count], alone=False)
    assert count.asks == [6, 6] * 4
    assert (result.history["bytes_up"] == 6 * 6 * 8).all()
    assert (result.history["bytes_down"] == 6 * 6 * 8).all()


def test_a_centre_without_clients_is_seeded_again(world):
    """Three centres, then data that need them: no centre stays empty while there are as many clients."""
    fed = world.quadratics([[0.0], [0.1], [50.0], [50.1], [100.0], [100.1]])
    algorithm = ct.MomentumClustering(clusters=3, lr=0.05, radius=5.0)
    state = ct.fit(algorithm, fed, world.linear(1), rounds=1, start=start([20.0]), alone=False).state
    bad = replace(state, centers=torch.full_like(state.centers, 1e4))
    again = ct.fit(algorithm, fed, world.linear(1), rounds=1, start=bad, alone=False)
    assert again.clusters.nunique() == 3
    assert float(again.state.centers.max()) < 1e4


def test_a_centre_that_lost_all_momenta_from_its_ball_is_seeded_again(world):
    """lr ½ lands on the minimum in one step; centres left at the old gradients would throw everybody out again."""
    fed = world.quadratics([[0.0], [10.0]] * 3)
    algorithm = ct.MomentumClustering(clusters=2, lr=0.5, alpha=1.0, radius=1.0)
    result = ct.fit(algorithm, fed, world.linear(1), rounds=5, start=start([4.0]), alone=False)
    np.testing.assert_allclose(world.personal(result).ravel(), [0, 10] * 3, atol=1e-9)


def test_bad_settings_are_refused(world):
    with pytest.raises(ct.errors.ConfigError, match="alpha"):
        ct.MomentumClustering(clusters=2, alpha=0.0)
