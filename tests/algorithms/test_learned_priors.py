"""Learned priors: known-prior solutions in closed form, their ends, and what the server learns of the population."""

import numpy as np
import pytest
import torch

import coterie as ct

LOCAL = ct.LocalSGD(steps=3, lr=0.05, batch_size=5)
SOLVE = ct.LocalSGD(steps=600, lr=0.05, batch_size=None)
PRIORS = [ct.GaussianPrior, ct.LaplacePrior]


def test_with_a_known_gaussian_prior_it_is_the_posterior_mean(world):
    """M_i = I/σ_θ² + XᵀX/σ_x², θ̂_i = M_i⁻¹(XᵀY/σ_x² + μ/σ_θ²); pulled towards μ, not away from it (E12)."""
    fed, _ = world.planted(2, 4)
    mu = {"weight": torch.tensor([[1.0, -1.0, 0.5, 0.0]], dtype=torch.float64)}
    algorithm = ct.GaussianPrior(scale=0.3, noise_variance=0.7, learn=False, local=SOLVE)
    result = ct.fit(algorithm, fed, world.linear(4), rounds=1, start=mu, alone=False)
    for client, found in zip(fed.clients, world.personal(result), strict=True):
        x, y = (t.numpy() for t in fed.train(client))
        m = np.eye(4) / 0.3**2 + x.T @ x / 0.7
        np.testing.assert_allclose(
            found, np.linalg.solve(m, x.T @ y / 0.7 + mu["weight"].numpy()[0] / 0.3**2), rtol=1e-8
        )
    np.testing.assert_allclose(result.state.model["weight"][0], world.personal(result).mean(0), rtol=1e-12)


def test_with_a_known_laplace_prior_it_is_a_soft_threshold(world):
    """(w − c)²/2 + (2σ_x²/n)|w − μ|/b in each of d = 2 coordinates: shrunk towards μ = 0 by 2·0.5/2/b."""
    fed, zero = world.quadratics([[3.0, 0.2], [-0.6, -2.0]]), {"weight": torch.zeros(1, 2, dtype=torch.float64)}
    algorithm = ct.LaplacePrior(scale=1.0, learn=False, local=SOLVE)
    result = ct.fit(algorithm, fed, world.linear(2), rounds=1, start=zero, alone=False)
    np.testing.assert_allclose(world.personal(result), [[2.5, 0.0], [-0.1, -1.5]], atol=1e-9)


@pytest.mark.parametrize("prior", PRIORS)
def test_a_wide_prior_is_training_alone(world, prior):
    fed, _ = world.planted(2, 6)
    one, two = (
        ct.fit(a, fed, world.linear(4), rounds=4, alone=False)
        for a in (prior(scale=1e9, learn=False, local=LOCAL), ct.Local(LOCAL))
    )
    np.testing.assert_allclose(world.personal(one), world.personal(two), rtol=1e-6)


def test_a_narrow_prior_leads_to_one_model_for_all(world):
    """Its fixed point: μ is the minimiser of the mean loss, and θ_i is near it."""
    fed = world.quadratics([[0.0], [10.0], [2.0]])
    step = ct.LocalSGD(steps=1, lr=0.2, batch_size=None)
    result = ct.fit(ct.GaussianPrior(scale=0.2, learn=False, local=step), fed, world.linear(1), rounds=400, alone=False)
    pull = 2 * 0.5 / 0.2**2
    np.testing.assert_allclose(result.state.model["weight"].item(), 4.0, rtol=1e-6)
    np.testing.assert_allclose(
        world.personal(result).ravel(), [(2 * c + pull * 4) / (2 + pull) for c in (0, 10, 2)], rtol=1e-5
    )


def population(draw, *, clients=150, n=12, d=3, noise=0.5):
    """θ_i drawn around (1, 2, 3) by `draw`; no test rows."""
    rng = np.random.default_rng(0)
    theta = np.array([1.0, 2.0, 3.0]) + draw(rng, (clients, d))
    x = rng.normal(size=(clients, n, d))
    y = np.einsum("isd,id->is", x, theta) + noise * rng.normal(size=(clients, n))
    return ct.Federation.from_flat(
        x.reshape(-1, d), y.ravel(), sizes=np.full(clients, n), clients=range(clients), kind="regression",
        n_test=np.zeros(clients, np.int64), dtype="float64",
    )  # fmt: skip


@pytest.mark.parametrize("per", ["all", "layer", "parameter"])
def test_the_spread_of_the_population_is_learned_and_does_not_collapse(world, per):
    """σ_θ = 0.4 of 150 × 3 draws has a standard error of 0.013; learned together with θ it would go to 0 (E19)."""
    fed = population(lambda rng, shape: 0.4 * rng.normal(size=shape))
    algorithm = ct.GaussianPrior(
        scale=1.0, noise_variance=0.25, per=per, probes=12, local=ct.LocalSGD(steps=30, lr=0.1, batch_size=None)
    )
    state = ct.fit(algorithm, fed, world.linear(3), rounds=25, alone=False).state
    np.testing.assert_allclose(state.model["weight"][0], [1, 2, 3], atol=4 * 0.4 / np.sqrt(150))
    scale = state.scale["weight"]
    assert scale.shape == ((1, 3) if per == "parameter" else ())
    np.testing.assert_allclose(scale.mean(), 0.4, atol=0.07)


def test_the_width_does_not_depend_on_its_start(world):
    """From an eighth and from five times the truth to within 3 % of one another; the same for a network, layer by layer."""
    fed = population(lambda rng, shape: 0.4 * rng.normal(size=shape))
    steps = ct.LocalSGD(steps=30, lr=0.1, batch_size=None)
    ends = [
        float(ct.fit(ct.GaussianPrior(scale=start, noise_variance=0.25, local=steps), fed, world.linear(3), rounds=12,
                     alone=False).state.scale["weight"])
        for start in (0.05, 2.0)
    ]  # fmt: skip
    assert ends[0] == pytest.approx(ends[1], rel=0.03)
    digits, task = ct.datasets.digits(clients=12, samples=60, seed=0), ct.Task(ct.models.mlp(64, 16, 10))
    widths = [
        ct.fit(ct.GaussianPrior(scale=start, local=ct.LocalSGD(steps=10, lr=0.3, batch_size=16)), digits, task, rounds=30,
               alone=False).state.scale
        for start in (0.1, 1.0)
    ]  # fmt: skip
    for name, width in widths[0].items():
        assert float(width) == pytest.approx(float(widths[1][name]), rel=0.25)


def test_a_laplace_prior_learns_its_scale(world):
    fed = population(lambda rng, shape: rng.laplace(scale=0.4, size=shape))
    algorithm = ct.LaplacePrior(
        scale=1.0, noise_variance=0.25, per="all", probes=12, local=ct.LocalSGD(steps=30, lr=0.1, batch_size=None)
    )
    state = ct.fit(algorithm, fed, world.linear(3), rounds=25, alone=False).state
    np.testing.assert_allclose(state.scale["weight"], 0.4, atol=0.1)


def test_a_mixture_finds_the_groups_and_their_means(world):
    fed, theta = world.planted(3, 18)
    algorithm = ct.MixturePrior(clusters=3, scale=5.0, local=ct.LocalSGD(steps=20, lr=0.1, batch_size=None))
    result = ct.fit(algorithm, fed, world.linear(4), rounds=10, alone=False)
    assert ct.metrics.cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1
    means = result.state.means["weight"][:, 0].numpy()
    distance = np.linalg.norm(means[:, None] - theta[None], axis=2).min(1)
    assert distance.max() < 0.2
    np.testing.assert_allclose(result.state.shares, 1 / 3, atol=1e-6)


@pytest.mark.parametrize("mixture", ["Gaussian", "discrete"])
def test_clients_that_come_one_at_a_time_do_not_share_a_cluster(world, mixture):
    """Two clients with losses w² and (w − 10)²: each has the place of its own group."""
    local = ct.LocalSGD(steps=20, lr=0.1, batch_size=None)
    if mixture == "Gaussian":
        algorithm, rounds = ct.MixturePrior(clusters=2, scale=10.0, floor=10.0, local=local), 6
    else:
        algorithm, rounds = ct.DiscretePrior(clusters=2, local=local), 2
    start = {"weight": torch.tensor([[4.0]], dtype=torch.float64)}
    fed, task = world.quadratics([[0.0], [10.0]]), world.linear(1)
    result = ct.fit(algorithm, fed, task, rounds=rounds, cohort=world.InTurns(), start=start, alone=False)
    found = result.state.means if mixture == "Gaussian" else result.state.models
    np.testing.assert_allclose(sorted(found["weight"].flatten().tolist()), [0, 10], atol=0.3)


def test_one_cluster_is_the_gaussian_prior(world):
    fed, _ = world.planted(2, 6)
    mixture, single = (
        ct.fit(a, fed, world.linear(4), rounds=1, alone=False)
        for a in (ct.MixturePrior(clusters=1, local=LOCAL), ct.GaussianPrior(learn=False, local=LOCAL))
    )
    np.testing.assert_allclose(world.personal(mixture), world.personal(single), rtol=1e-9)


def test_a_client_that_never_took_part_gets_the_best_model_under_the_prior(world):
    fed = world.quadratics([[0.0], [10.0], [20.0]])
    step = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
    result = ct.fit(ct.GaussianPrior(scale=1.0, learn=False, local=step), fed, world.linear(1), rounds=3,
                    cohort=world.These(0, 1), alone=False)  # fmt: skip
    mu = result.state.model["weight"].item()
    np.testing.assert_allclose(world.personal(result)[2], mu - 0.1 * 2 * (mu - 20))


@pytest.mark.parametrize("make", [lambda: ct.GaussianPrior(scale=0.0), lambda: ct.LaplacePrior(per="x"),
                                  lambda: ct.MixturePrior(floor=0.0)])  # fmt: skip
def test_settings_that_cannot_be_meant(make):
    with pytest.raises(ct.errors.ConfigError, match="got"):
        make()
