"""A floor under collaboration: clients keep the shared model only where it beats their own on held-out rows."""

import numpy as np
import pytest

import coterie as ct

LOCAL = ct.LocalSGD(steps=10, lr=0.2, batch_size=None)
TASK = ct.Task(ct.models.linear(64, 10))


@pytest.fixture(scope="module")
def clients():
    return ct.datasets.digits(transform="rotate", clients=12, samples=60)


def test_under_attack_clients_fall_back_to_their_own_models(clients):
    liars = clients.clients[:8].tolist()
    attack = [ct.exchange.attacks.SignFlip(liars, scale=5.0)]
    result = ct.training.fit_guarded(ct.FedAvg(LOCAL), clients, TASK, rounds=4, channels=attack)
    own = ct.fit(ct.Local(LOCAL), clients, TASK, rounds=4, alone=False)
    assert (result.table["uses"] == "alone").all()
    np.testing.assert_allclose(result.scores()["accuracy"], own.scores()["accuracy"])


def test_without_an_attack_clients_of_clean_groups_share(clients):
    algorithm = ct.IFCA(clusters=4, local=LOCAL)
    result = ct.training.fit_guarded(algorithm, clients, TASK, rounds=4)
    uses = result.table["uses"]
    assert (uses == "shared").mean() > 0.5
    held = clients.holdout(0.2, 0)
    assert result.table["rows"].tolist() == held.n_test.tolist()
    assert (result.table["rows"] + held.n_train == clients.n_train).all()  # no test row is used for the choice
    for name in clients.clients[:4]:
        x, y = clients.test(name)
        right = (result.model(name)(x).argmax(1) == y).double().mean().item()
        assert right == pytest.approx(result.scores()["accuracy"][name])


def test_a_run_that_ends_in_no_numbers_leaves_everybody_alone(clients):
    wild = ct.FedAvg(ct.LocalSGD(steps=10, lr=3e38, batch_size=None))
    result = ct.training.fit_guarded(wild, clients, TASK, rounds=4, alone=ct.Local(LOCAL))
    assert result.shared is None
    assert (result.table["uses"] == "alone").all()
    assert np.isfinite(result.scores()["accuracy"]).all()


def test_an_algorithm_without_local_steps_needs_to_be_told_how_to_train_alone(clients):
    algorithm = ct.FedAvg(LOCAL)
    object.__setattr__(algorithm, "local", None)
    with pytest.raises(ct.errors.ConfigError, match=r"needs alone=ct\.Local"):
        ct.training.fit_guarded(algorithm, clients, TASK, rounds=1)
