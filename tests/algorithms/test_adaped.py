"""AdaPeD: its steps by hand, its ends, the rounds a client misses, and the printed private form."""

import numpy as np
import pytest
import torch

import coterie as ct
from reproductions.printed.adaped import PrintedAdaPeD

LOCAL = ct.LocalSGD(steps=3, lr=0.05, batch_size=5)
STEP = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)


def start(w):
    return {"weight": torch.tensor([[w]], dtype=torch.float64)}


def test_two_rounds_by_hand(world):
    """Algorithm 5 on (w − c)², where the divergence of predictions is (μ − θ)²: steps 2, 3, 4 in turn, then the mean."""
    fed, psi0, lr, eta3 = world.quadratics([[0.0], [10.0]]), 2.0, 0.1, 0.03
    algorithm = ct.AdaPeD(psi=psi0, local=STEP, shared_lr=0.2, catch_up=0)
    result = ct.fit(algorithm, fed, world.linear(1), rounds=2, start=start(4.0), alone=False)
    theta, mu, psi = [4.0, 4.0], 4.0, psi0
    for _ in range(2):
        sent = []
        for i, c in enumerate((0.0, 10.0)):
            theta[i] -= lr * (2 * (theta[i] - c) + 2 * (theta[i] - mu) / (2 * psi))
            own = mu - 0.2 * 2 * (mu - theta[i]) / (2 * psi)
            kappa = 1 / (2 * psi) - (own - theta[i]) ** 2 / (2 * psi**2)
            sent.append((own, max(psi - eta3 * kappa, 0.5)))
        mu, psi = np.mean(sent, 0)
    np.testing.assert_allclose(world.personal(result).ravel(), theta, rtol=1e-12)
    np.testing.assert_allclose([float(result.state.model["weight"]), float(result.state.psi)], [mu, psi], rtol=1e-12)


def test_with_an_endless_psi_it_is_training_alone(world):
    fed, _ = world.planted(2, 6)
    wide = ct.AdaPeD(psi=1e14, psi_lr=0.0, catch_up=0, local=LOCAL)
    one, two = (ct.fit(a, fed, world.linear(4), rounds=4, alone=False) for a in (wide, ct.Local(LOCAL)))
    np.testing.assert_allclose(world.personal(one), world.personal(two), rtol=1e-9)


def test_psi_falls_to_its_floor_where_clients_agree(world):
    fed = world.quadratics([[1.0], [1.0]])
    result = ct.fit(ct.AdaPeD(psi=0.6, local=STEP, psi_lr=0.1), fed, world.linear(1), rounds=5, alone=False)
    assert float(result.state.psi) == 0.5
    assert result.history["psi"].is_monotonic_decreasing


def test_clients_that_missed_rounds_went_on_by_themselves(world):
    """Algorithm 6, with the model and ψ last received; those of the last cohort are where they were."""
    fed = world.quadratics([[0.0], [10.0], [5.0]])
    options = {"rounds": 2, "start": start(4.0), "cohort": world.These(0, 1), "alone": False}
    runs = [ct.fit(ct.AdaPeD(local=STEP, catch_up=c), fed, world.linear(1), **options) for c in (2, 0)]
    tuned, still = (world.personal(run).ravel() for run in runs)
    np.testing.assert_array_equal(tuned[:2], still[:2])
    alone = 4.0
    for _ in range(2):  # μ = 4 and ψ = 4 are the initial ones
        alone -= 0.1 * (2 * (alone - 5) + 2 * (alone - 4) / 8)
    np.testing.assert_allclose(tuned[2], alone, rtol=1e-12)
    assert still[2] == float(runs[1].state.model["weight"])  # without steps of its own, the common model


@pytest.mark.parametrize(("catch_up", "missed"), [(0, 0), (1, 1), (5, 2)])
def test_a_client_met_again_goes_on_from_where_it_went_alone(world, catch_up, missed):
    """Algorithm 6, steps 9 to 11: sampled in rounds 0 and 3, with μ and ψ of round 0 in rounds 1 and 2."""

    class Away:
        def sample(self, federation, seed, round):
            return np.array([0] if round in (1, 2) else [0, 1])

    fed, mu, theta = world.quadratics([[0.0], [10.0]]), 4.0, 4.0
    algorithm = ct.AdaPeD(psi=2.0, psi_lr=0.0, shared_lr=0.0, local=STEP, catch_up=catch_up)
    result = ct.fit(algorithm, fed, world.linear(1), rounds=4, start=start(mu), cohort=Away(), alone=False)
    for _ in range(2 + missed):
        theta -= 0.1 * (2 * (theta - 10) + 2 * (theta - mu) / 4)
    np.testing.assert_allclose(world.personal(result).ravel()[1], theta, rtol=1e-12)


def test_one_message_holds_model_and_psi_and_both_are_updates(world):
    asks = []

    class Watch(ct.exchange.channels.Channel):
        def ask(self, ask, where):
            asks.append(ask)
            return ask

    ct.fit(ct.AdaPeD(), world.quadratics([[0.0], [1.0]]), world.linear(1), rounds=1, channels=[Watch()], alone=False)
    assert [set(a.updates) for a in asks] == [{"model", "psi"}]
    assert all(isinstance(a.reduce, ct.exchange.MeanBy) and not a.auxiliary for a in asks)


def test_the_printed_private_form_clips_and_adds_noise_in_every_step(world):
    fed = world.quadratics([[0.0], [10.0]])

    def run(kind=PrintedAdaPeD, **settings):
        algorithm = kind(local=STEP, **settings)
        state = ct.fit(algorithm, fed, world.linear(1), rounds=1, start=start(4.0), alone=False).state
        return np.array([float(state.model["weight"]), float(state.psi)])

    np.testing.assert_allclose(run(clips=(1e9, 1e9)), run(ct.AdaPeD), rtol=1e-9)
    tight = run(clips=(1e-3, 1e-3))
    assert abs(tight[0] - 4.0) <= 0.1 * 1e-3 + 1e-12
    assert abs(tight[1] - 4.0) <= 0.03 * 1e-3 + 1e-12
    assert abs(run(clips=(1e-3, 1e-3), noises=(5.0, 5.0)) - tight).min() > 1e-3


@pytest.mark.parametrize(
    "wrong",
    [
        {"psi": 0.1},
        {"psi_floor": 0.0},
        {"mode": "x"},
        {"catch_up": -1},
        {"clips": (0, 1)},
        {"psi": "4"},
        {"psi": float("inf")},
        {"shared_lr": 0.1, "local": ct.LocalSGD(lr=0.0)},
    ],
)
def test_settings_that_cannot_be_meant(wrong):
    with pytest.raises(ct.errors.ConfigError, match="AdaPeD"):
        ct.AdaPeD(**wrong)
