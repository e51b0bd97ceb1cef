"""FedEM and the discrete prior: EM's likelihood, one model, unseen clients, and the printed collapse."""

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.fedem import log_joint
from coterie.base.tree import row
from coterie.learning.predictors import WEIGHTS
from reproductions.printed.discrete_prior import PrintedDiscretePrior

LOCAL = ct.LocalSGD(steps=3, lr=0.05, batch_size=5)


def likelihood(result):
    """Mean log-likelihood of all training rows under the clients' own mixtures."""
    live = result.evaluation

    def of(ctx, _):
        model = live.algorithm.personal(ctx, live.state)
        models = [row({k: t for k, t in model.items() if k != WEIGHTS}, m) for m in range(len(model[WEIGHTS]))]
        each = torch.logsumexp(log_joint(ctx, models, model[WEIGHTS]), 0)
        return {"l": (each * ctx.mask).sum() / ctx.n}

    return float(live.each(of)["l"].mean())


def test_one_component_is_fedavg(fed, task):
    em, one = (
        ct.fit(a, fed, task, rounds=3, alone=False) for a in (ct.FedEM(clusters=1, local=LOCAL), ct.FedAvg(LOCAL))
    )
    for name, t in one.state.model.items():
        torch.testing.assert_close(em.state.models[name][0], t, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(em.scores()["accuracy"], one.scores()["accuracy"])


def test_the_likelihood_never_falls(fed64, task):
    """Full-batch gradient EM with everybody: from round to round, and from one E-step to the next."""
    steps = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
    values = [
        likelihood(ct.fit(ct.FedEM(clusters=2, e_steps=1, local=steps), fed64, task, rounds=r, alone=False))
        for r in range(0, 9, 2)
    ]
    assert (np.diff(values) > 0).all()
    by_e_step = [
        likelihood(ct.fit(ct.FedEM(clusters=3, e_steps=e, local=steps), fed64, task, rounds=2, alone=False))
        for e in (1, 2, 5, 20)
    ]
    assert (np.diff(by_e_step) > 0).all()


def test_the_weights_of_a_client_by_hand(world):
    """Models w = 0 and w = 10 and one sample y = 4: q ∝ π exp(−(w − y)²), and π = q."""
    fed = world.quadratics([[4.8]])
    result = ct.fit(ct.FedEM(clusters=2, e_steps=1), fed, world.linear(1), rounds=0, alone=False)
    models = {"weight": torch.tensor([[[0.0]], [[10.0]]], dtype=torch.float64)}
    live = result.evaluation
    state = type(result.state)(models)
    got = live.each(lambda ctx, _: live.algorithm.personal(ctx, state))
    odds = np.exp(-(5.2**2) + 4.8**2)
    np.testing.assert_allclose(got[WEIGHTS][0], [1 / (1 + odds), odds / (1 + odds)], rtol=1e-9)


@pytest.mark.parametrize("algorithm", [ct.FedEM(clusters=2, local=LOCAL), ct.DiscretePrior(clusters=2, local=LOCAL)])
def test_clients_that_never_took_part_find_their_own_weights(algorithm, make_fed, task):
    fed = make_fed(sizes=(60,) * 12)
    result = ct.fit(algorithm, fed, task, rounds=60, cohort=ct.training.FixedSize(4), alone=False)
    never = result.evaluation.env.states
    weights = result.evaluation.personal(result.evaluation.everyone())[WEIGHTS]
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert float(weights[:, 0].max() - weights[:, 0].min()) > 0.2
    assert never is not None


@pytest.mark.parametrize("algorithm", [ct.FedEM(clusters=2, local=LOCAL), ct.DiscretePrior(clusters=2, local=LOCAL)])
def test_a_clients_module_predicts_as_it_is_scored_and_survives_the_disk(algorithm, fed, task, tmp_path):
    result = ct.fit(algorithm, fed, task, rounds=2, alone=False, out=tmp_path)
    for one in (result, ct.Result.load(tmp_path)):
        for client in fed.clients[:3]:
            x, y = fed.test(client)
            with torch.no_grad():
                right = float((one.model(client)(x).argmax(-1) == y).float().mean())
            assert right == pytest.approx(result.scores().loc[client, "accuracy"])
    assert np.isfinite(result.evaluation.train_losses()).all()


def test_a_discrete_prior_finds_the_groups(world):
    fed, theta = world.planted(3, 18)
    algorithm = ct.DiscretePrior(clusters=3, local=ct.LocalSGD(steps=20, lr=0.1, batch_size=None))
    result = ct.fit(algorithm, fed, world.linear(4), rounds=10, alone=False)
    assert ct.metrics.cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1
    models = result.state.models["weight"][:, 0].numpy()
    assert np.linalg.norm(models[:, None] - theta[None], axis=2).min(1).max() < 0.1


def test_its_fixed_point_is_the_em_step_in_closed_form(world):
    """μ_l = (Σ_i w_il X_iᵀX_i)⁻¹ Σ_i w_il X_iᵀY_i, with one gradient step a round: no drift of local steps."""
    fed, _ = world.planted(2, 8, noise=0.5)
    algorithm = ct.DiscretePrior(clusters=2, noise_variance=20.0, local=ct.LocalSGD(steps=1, lr=0.2, batch_size=None))
    result = ct.fit(algorithm, fed, world.linear(4), rounds=120, alone=False)
    live = result.evaluation
    weights = live.personal(live.everyone())[WEIGHTS].numpy()
    data = [tuple(t.numpy() for t in fed.train(c)) for c in fed.clients]
    for j in range(2):
        a = sum(w * x.T @ x for w, (x, _) in zip(weights[:, j], data, strict=True))
        b = sum(w * x.T @ y for w, (x, y) in zip(weights[:, j], data, strict=True))
        np.testing.assert_allclose(result.state.models["weight"][j, 0], np.linalg.solve(a, b), atol=2e-3)


def test_the_printed_rounds_contract_the_models(world):
    """E11: with overlapping posteriors the centres run into each other; the EM repair keeps them apart."""
    fed, _ = world.planted(3, 18, noise=0.5)
    gaps = {}
    for kind in (PrintedDiscretePrior, ct.DiscretePrior):
        algorithm = kind(clusters=3, noise_variance=30.0, local=ct.LocalSGD(steps=20, lr=0.05, batch_size=None))
        models = ct.fit(algorithm, fed, world.linear(4), rounds=12, alone=False).state.models["weight"].flatten(1)
        gaps[kind] = float(torch.pdist(models).min())
    assert gaps[PrintedDiscretePrior] < 0.1 * gaps[ct.DiscretePrior]


def test_a_private_discrete_prior_is_sums_alone_and_beats_one_model():
    """Its private form starts from random models. Two planted groups of 30 clients, three seeds."""
    fed = ct.datasets.digits(transform="rotate", clusters=2, clients=60, seed=0)
    task, steps = ct.Task(ct.models.linear(64, 10)), ct.LocalSGD(steps=5, lr=0.5, batch_size=None)
    budget = ct.Privacy(20, 1e-3, clip=1.0, noise="simulation")
    assert ct.DiscretePrior().private() == ct.DiscretePrior(start="random")

    def accuracy(algorithm, seed):
        run = ct.fit(algorithm, fed, task, rounds=12, seed=seed, privacy=budget, alone=False)
        assert run.receipt is not None
        return run.scores()["accuracy"].mean()

    gains = [accuracy(ct.DiscretePrior(local=steps), s) - accuracy(ct.FedAvg(steps), s) for s in range(3)]
    assert np.mean(gains) > 0
    with pytest.raises(ct.errors.ConfigError, match="no additive form"):
        ct.fit(ct.MixturePrior(), fed, task, rounds=1, privacy=budget)
