"""The three failure examples of Werner's chapter 2 with their exact trajectories; the worlds are those of the gallery."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from reproductions import failing_worlds as WORLD

ETA = WORLD.ETA


def close(got, want, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want, np.float64), rtol=0, atol=tolerance)


# ---- X-1 -------------------------------------------------------------------------------------------------------------


def test_the_losses_of_example_1():
    def value_and_slope(client, at):
        x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        loss = WORLD.vanishing_loss(x, torch.tensor(float(client)))
        return float(loss.detach()), float(torch.autograd.grad(loss, x)[0])

    assert ETA <= 1 / 12
    for client, minimum in ((1, 0.0), (2, 0.0), (3, 2.0)):
        close(value_and_slope(client, minimum), (0.0, 0.0))
    close(value_and_slope(2, 1.0), (1.0, 0.0))  # a saddle, not a minimum
    assert value_and_slope(2, 0.9)[0] < 1 < value_and_slope(2, 1.1)[0]
    close([ETA * value_and_slope(c, 1.5)[1] for c in (1, 2, 3)], (0.5, 0.5, -0.5))
    close([ETA * value_and_slope(c, 1.0)[1] for c in (1, 2, 3)], (1 / 3, 0.0, -1.0))


def test_grouping_todays_gradients_loses_client_2_for_ever():
    fed, task = WORLD.vanishing()
    myopic = ct.MyopicClustering(clusters=2, lr=ETA)
    path = WORLD.positions(myopic, fed, task, WORLD.start(1.5), 40)
    close(path[0], (1.5, 1.5, 1.5))
    for t in range(1, 41):
        close(path[t], ((2 / 3) ** (t - 1), 1, 2))
    groups = [ct.fit(myopic, fed, task, rounds=t, start=WORLD.start(1.5), alone=False).clusters for t in (1, 2, 9)]
    assert groups[0][1] == groups[0][2] != groups[0][3]  # right at first
    for later in groups[1:]:
        assert later[2] == later[3] != later[1]


def test_federated_clustering_brings_clients_1_and_2_to_0():
    fed, task = WORLD.vanishing()
    clustering = ct.FederatedClustering(lr=ETA, radius=1 / (2 * ETA), inner=10)
    path = WORLD.positions(clustering, fed, task, WORLD.start(1.5), 40)
    close(path[1], (1, 1, 2))
    close(path[2], (5 / 6, 5 / 6, 2), 1e-5)
    close(path[40], (0, 0, 2), 1e-6)
    assert (np.diff(path[:, :2].numpy(), axis=0) <= 1e-12).all()  # never back


def test_the_figures_own_step_size_makes_client_2_oscillate():
    """Erratum EC-11: f₂''(0) = 12, so η = 0.5 is six times too large."""
    fed, task = WORLD.vanishing(0.5)
    path = WORLD.positions(ct.FederatedClustering(lr=0.5, radius=1.0), fed, task, WORLD.start(1.5), 40)
    close(path[1], (1, 1, 2))
    assert float(path[20:, 1].abs().max()) > 0.5


# ---- X-2 -------------------------------------------------------------------------------------------------------------

STEP = ct.LocalSGD(steps=1, lr=0.2, batch_size=None)
STUCK = {
    "option I": ct.IFCA(clusters=2, local=STEP, option="gradient"),
    "option I by participants": ct.IFCA(clusters=2, local=STEP, option="gradient", normalise="participants"),
    "option II": ct.IFCA(clusters=2, local=replace(STEP, steps=5)),
    "HypCluster": ct.HypCluster(clusters=2, local=replace(STEP, steps=5)),
}


@pytest.mark.parametrize("name", STUCK)
def test_choosing_by_loss_is_stuck_for_ever(name):
    fed, task = WORLD.stuck()
    begin = WORLD.two_models(STUCK[name], -1.5, 0.0)
    result = ct.fit(STUCK[name], fed, task, rounds=50, start=begin, alone=False)
    close(result.state.models["x"].squeeze(), (-1.5, 0.0))
    assert list(result.clusters) == [1, 1]


@pytest.mark.parametrize("name", STUCK)
def test_a_lucky_start_converges(name):
    fed, task = WORLD.stuck()
    begin = WORLD.two_models(STUCK[name], -1.0, 1.0)
    result = ct.fit(STUCK[name], fed, task, rounds=100, start=begin, alone=False)
    close(result.state.models["x"].squeeze(), (-0.5, 0.5), 1e-6)
    assert list(result.clusters) == [0, 1]


def test_the_stuck_point_is_stable():
    """θ₂ ← (1 − 2γ) θ₂: a small push dies out."""
    fed, task = WORLD.stuck()
    ifca = STUCK["option I"]
    for rounds in (1, 2, 7):
        result = ct.fit(ifca, fed, task, rounds=rounds, start=WORLD.two_models(ifca, -1.5, 0.1), alone=False)
        close(result.state.models["x"].squeeze(), (-1.5, 0.1 * (1 - 2 * STEP.lr) ** rounds))


@pytest.mark.slow
def test_restarts_chosen_by_training_loss_get_out():
    fed, _ = WORLD.stuck()
    task = ct.Task(lambda: WORLD.Number(float(torch.randn(()) * 2)), loss="mse")
    plain = ct.IFCA(clusters=2, local=STEP, option="gradient", start="random")
    options = {"rounds": 20, "alone": False}
    alone = [ct.fit(plain, fed, task, seed=s, **options) for s in range(8)]
    failed = [abs(float(r.state.models["x"].max()) - 0.5) > 0.05 for r in alone]
    assert any(failed)  # these starts tell restarts from a single run
    assert not all(failed)
    best = ct.best_of(8, plain, fed, task, seed=0, **options)
    close(sorted(best.state.models["x"].squeeze().tolist()), (-0.5, 0.5), 0.05)
    assert best.about["restarts"][failed.index(True)] > 0.1


def test_the_start_from_updates_gets_out_without_restarts():
    fed, task = WORLD.stuck()
    ifca = ct.IFCA(clusters=2, local=replace(STEP, steps=5), start="updates")
    for value in (-1.5, 0.0, 0.3, 4.0):
        result = ct.fit(ifca, fed, task, rounds=25, start=WORLD.start(value), alone=False)
        close(sorted(result.state.models["x"].squeeze().tolist()), (-0.5, 0.5), 1e-6)


def test_federated_clustering_from_the_same_start():
    fed, task = WORLD.stuck()
    clustering = ct.FederatedClustering(lr=0.1, radius=1.99)
    path = WORLD.positions(clustering, fed, task, WORLD.own_models(clustering, -1.5, 0.0), 40)
    for t in (0, 1, 2, 10, 40):
        close(path[t], (-0.5 - (1 - 0.2) ** t, 0.5 - 0.5 * (1 - 0.2) ** t))


@pytest.mark.slow
def test_a_ball_that_holds_both_clients_finds_only_the_middle():
    """The gradients differ by 2 everywhere: beyond that radius there are no groups."""
    fed, task = WORLD.stuck()
    clustering = ct.FederatedClustering(lr=0.1, radius=2.01, inner=40)
    path = WORLD.positions(clustering, fed, task, WORLD.own_models(clustering, -1.5, 0.0), 80)
    close(path[-1], (0, 0), 1e-6)


# ---- X-3 -------------------------------------------------------------------------------------------------------------


def test_the_optimum_of_all_three_is_a_third():
    """Erratum EC-10: not 1/4."""
    fed, task = WORLD.noisy()
    result = ct.fit(ct.FedAvg(ct.LocalSGD(steps=1, lr=0.5, batch_size=None)), fed, task, rounds=60, alone=False)
    close(result.state.model["x"], [1 / 3], 1e-9)


@pytest.mark.slow
def test_cfl_parts_clients_2_and_3_with_probability_one_half_and_never_rejoins_them():
    fed, task = WORLD.noisy()
    wrong, seeds = 0, 120
    for seed in range(seeds):
        labels = ct.fit(
            WORLD.splitting(), fed, task, rounds=1, seed=seed, start=WORLD.start(1 / 3), alone=False
        ).clusters
        assert labels[1] != labels[2]  # {1, 2}, {3}, the printed split, is never the cosine split
        wrong += labels[2] != labels[3]
    assert abs(wrong / seeds - 0.5) < 4 * math.sqrt(0.25 / seeds)


def test_cfl_never_rejoins():
    fed, task = WORLD.noisy()

    def labels(seed, rounds):
        begin = WORLD.start(1 / 3)
        return ct.fit(WORLD.splitting(), fed, task, rounds=rounds, seed=seed, start=begin, alone=False).clusters

    parted = [seed for seed in range(10) if labels(seed, 1)[2] != labels(seed, 1)[3]]
    assert len(parted) > 1
    for seed in parted[:3]:
        assert labels(seed, 30).equals(labels(seed, 1))


def test_federated_clustering_serves_all_three():
    fed, task = WORLD.noisy()
    clustering = ct.FederatedClustering(lr=0.1, radius=0.3, batch_size=1)
    path = WORLD.positions(clustering, fed, task, WORLD.start(1 / 3), 120).numpy()
    rounds = np.arange(121)
    close(path[:, 0], 0.9**rounds / 3)
    close(path[:, 1], 0.5 - 0.9**rounds / 6)
    assert set(np.round((path[1:, 2] - 0.9 * path[:-1, 2]) / 0.1, 9)) == {0.0, 1.0}  # client 3 follows its own draws
    error = math.sqrt(0.25 / 70)  # the time average of x₃ is that of its draws, up to the ends
    assert abs(path[50:, 2].mean() - 0.5) < 4 * error
