"""What is proved of IFCA (option I): T-I1 … T-I6, on linear models y = ⟨x, θ*_j⟩ + ε with f = (y − ⟨x, θ⟩)²."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.learning.metrics import parameter_distance


def world(theta, clients, samples, *, noise=0.1, scales=1.0, shares=None, seed=0):
    """Client i belongs to cluster i mod k, or to clusters in these shares; x ~ N(0, diag(scales²))."""
    rng = np.random.default_rng(seed)
    k, d = theta.shape
    own = (
        np.arange(clients) % k if shares is None else np.repeat(np.arange(k), np.multiply(shares, clients).astype(int))
    )
    x = rng.normal(size=(clients, samples, d)) * scales
    y = np.einsum("isd,id->is", x, theta[own]) + noise * rng.normal(size=(clients, samples))
    fed = ct.Federation.from_flat(
        x.reshape(-1, d),
        y.ravel(),
        sizes=np.full(clients, samples),
        clients=range(clients),
        n_test=np.zeros(clients, np.int64),
        clusters=own,
        kind="regression",
        dtype="float64",
    )
    return fed, ct.Task(lambda: nn.Linear(d, 1, bias=False), loss="mse")


def run(fed, task, models, lr, rounds, **options):
    """All models after 0, 1, …, rounds, shape (rounds + 1, k, d); and the result."""
    ifca = ct.IFCA(
        clusters=len(models),
        local=ct.LocalSGD(steps=1, lr=lr, batch_size=None),
        option="gradient",
        start="random",
        **options,
    )
    state = ct.fit(ifca, fed, task, rounds=0, alone=False).state
    state = replace(state, models={"weight": torch.tensor(models).unsqueeze(1)})
    path = [np.array(models)]
    result = ct.fit(
        ifca,
        fed,
        task,
        rounds=rounds,
        start=state,
        alone=False,
        callbacks=[lambda row, s: path.append(s.models["weight"].squeeze(1).numpy())],
    )
    return np.stack(path), result


def shifted(theta, share):
    """Both models moved by `share`·Δ in one direction: cluster 1's own away from it, cluster 0's towards it (share ≥ ½ and
    the wrong model is the nearer one). Moving the two towards each other would not change who is nearer."""
    return theta + share * (theta[1] - theta[0])


def pair(d=5, gap=1.0):
    return np.stack([np.full(d, 0.5), np.full(d, 0.5)]) + np.array([[0.5], [-0.5]]) * gap * np.eye(d)[0]


# ---- T-I1: contraction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.3, 0.5, 0.8])
def test_the_population_step_contracts_by_one_minus_two_gamma_p(step):
    """XᵀX/n = I exactly and no noise; clusters of shares 1/4 and 3/4; γ = step / p_j for the first."""
    d, theta = 3, pair(3, 4.0)
    own = np.array([0, 1, 1, 1])
    fed = ct.Federation.from_flat(
        np.tile(math.sqrt(d) * np.eye(d), (4, 1)),
        math.sqrt(d) * theta[own].ravel(),
        sizes=np.full(4, d),
        clients=range(4),
        n_test=np.zeros(4, np.int64),
        kind="regression",
        dtype="float64",
    )
    task = ct.Task(lambda: nn.Linear(d, 1, bias=False), loss="mse")
    start = theta + 0.3 * np.random.default_rng(0).normal(size=theta.shape)
    for j, share in enumerate((0.25, 0.75)):
        gamma = step / share
        path, result = run(fed, task, start, gamma, 1)
        assert result.clusters.tolist() == [0, 1, 1, 1] or step / 0.25 * 0.75 > 1
        np.testing.assert_allclose(path[1][j] - theta[j], (1 - 2 * gamma * share) * (start[j] - theta[j]), atol=1e-12)
    # step = ½, γ = 1/(2 p_j), is convergence in one step
    assert step != 0.5 or np.allclose(path[1][1], theta[1], atol=1e-12)


@pytest.mark.slow
def test_on_finite_data_it_converges_iff_gamma_p_lambda_max_is_below_one():
    theta = pair(6, 20.0)
    fed, task = world(theta, 8, 10, noise=0.0)
    rows = [np.concatenate([fed.train(i)[0].numpy() for i in range(8) if i % 2 == j]) for j in (0, 1)]
    spectra = [np.linalg.eigh(x.T @ x / len(x)) for x in rows]
    j = int(np.argmax([values[-1] for values, _ in spectra]))  # the cluster that diverges first
    values, vectors = spectra[j]
    start = theta.copy()
    start[j] += 1e-6 * vectors[:, -1]
    for factor in (0.98, 1.02):
        path, _ = run(fed, task, start, factor / (0.5 * values[-1]), 120)
        grown = np.linalg.norm(path[-1][j] - theta[j]) / 1e-6
        assert grown == pytest.approx(abs(1 - 2 * factor) ** 120, rel=1e-3)
        assert (grown < 0.01) == (factor < 1)
        assert (grown > 100) == (factor > 1)


# ---- T-I2: misassignment ---------------------------------------------------------------------------------------------


def misassigned(samples, share, *, noise=1.0, clients=4000, seed=0):
    theta = pair(5, 1.0)
    fed, task = world(theta, clients, samples, noise=noise, seed=seed)
    _, result = run(fed, task, shifted(theta, share), 0.0, 0)
    risky = fed.clusters == 1
    return float((result.clusters.to_numpy() != fed.clusters)[risky].mean())


def test_misassignment_falls_exponentially_with_the_samples():
    """Models (½ − α)Δ from the truth, α = ¼, ρ = 1: −log P grows at least in proportion to n'."""
    sizes = np.array([10, 20, 40, 80])
    rates = np.array([misassigned(n, 0.25) for n in sizes])
    assert (rates > 0).all()
    error = np.sqrt((1 - rates) / rates / 4000)  # of log P
    slopes = -np.diff(np.log(rates)) / np.diff(sizes)
    spread = np.hypot(error[1:], error[:-1]) / np.diff(sizes)
    assert (slopes > 4 * spread).all()
    c2 = slopes[-1] / (0.25 / 2) ** 2  # the exponent's constant, from the largest n'
    assert 0.5 < c2 < 10
    assert slopes[-1] > 0.4 * slopes[0]  # a power law would lose a factor of four over these sizes


@pytest.mark.slow
def test_misassignment_depends_on_the_closeness_and_on_the_noise():
    near, far, beyond = (misassigned(20, share) for share in (0.1, 0.4, 0.6))
    assert near < far < 0.5 < beyond  # closer than Δ/2 most are right, farther most are wrong
    more, wrong = misassigned(200, 0.4), misassigned(200, 0.6)
    assert more < far  # with more data right becomes certain on one side
    assert wrong > beyond  # and wrong on the other
    assert misassigned(20, 0.25, noise=0.3) < 0.2 * misassigned(20, 0.25, noise=1.0)


# ---- T-I3, T-I4: convergence to the floor ----------------------------------------------------------------------------


def errors(path, theta):
    return np.linalg.norm(path - theta, axis=2)  # (rounds + 1, k)


@pytest.mark.parametrize("resample", [None, 6])
def test_every_step_halves_the_error_down_to_the_floor(resample):
    """γ = 1/(3p): the population factor is 1/3; start at (½ − 0.15)Δ. Also on disjoint parts of the data."""
    d, m, n = 5, 40, 240
    theta = pair(d)
    for seed in range(3):
        fed, task = world(theta, m, n, noise=0.2, seed=seed)
        path, result = run(fed, task, shifted(theta, 0.35), 2 / 3, 6, resample=resample)
        e = errors(path, theta)
        part = n if resample is None else n / (2 * resample)
        floor = 2 * (0.2 / 0.5) * math.sqrt(d / (m * part))
        assert (e[1:] <= 0.5 * e[:-1] + floor).all()
        assert (e[-1] < 0.02 * e[0] + 2 * floor).all()
        assert (result.clusters.to_numpy() == fed.clusters).all()


def test_the_distance_never_rises_and_the_promised_rounds_suffice():
    d, m, n, noise = 5, 40, 60, 0.1
    theta = pair(d)
    for seed in range(3):
        fed, task = world(theta, m, n, noise=noise, seed=seed)
        path, _ = run(fed, task, shifted(theta, 0.4), 2 / 3, 15)
        dist = np.array([parameter_distance(models, theta) for models in path])
        epsilon = 2 * (noise / 0.5) * math.sqrt(d / (m * n))
        assert (dist[1:] <= np.maximum(dist[:-1], epsilon)).all()  # below ε it may settle at the empirical minimum
        closeness = 0.5 - errors(path, theta).max(1)  # α_t, Δ = 1
        assert (closeness[1:] >= np.minimum(closeness[:-1], 0.5 - epsilon)).all()
        assert closeness[2] >= 0.25
        rounds = math.ceil(2 + math.log2(1 / (4 * epsilon)))  # log₂: erratum EC-6
        assert dist[rounds] <= epsilon


def floor(clients, samples, noise, seeds=6):
    theta = pair(5)
    found = []
    for seed in range(seeds):
        fed, task = world(theta, clients, samples, noise=noise, seed=seed)
        found.append(parameter_distance(run(fed, task, shifted(theta, 0.3), 2 / 3, 15)[0][-1], theta))
    return np.mean(found), np.std(found, ddof=1) / math.sqrt(seeds)


@pytest.mark.slow
def test_the_floor_is_proportional_to_the_noise_and_to_one_over_the_root_of_all_samples():
    small, se_small = floor(20, 50, 0.05)
    double, se_double = floor(20, 50, 0.1)
    assert double / small == pytest.approx(2, abs=0.02)  # same draws, scaled: exact while all identities are right
    more_clients, se_clients = floor(180, 50, 0.1)
    more_samples, se_samples = floor(20, 450, 0.1)
    for more, se in ((more_clients, se_clients), (more_samples, se_samples)):
        ratio, error = double / more, double / more * math.hypot(se_double / double, se / more)
        assert abs(ratio - 3) < 4 * error
    assert small == pytest.approx(0.05 * math.sqrt(5 / (20 * 50 / 2 - 6)), rel=4 * se_small / small)  # least squares


# ---- T-I5, T-I6: strongly convex losses ------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [60, 240])
def test_misassignment_is_below_chebyshevs_bound(samples):
    """Lemma 3: P ≤ 8η²/(α²λ²Δ⁴n'); here λ = L = 2, η² = max Var f = 2(σ² + ‖δ‖²)² over the two models."""
    alpha, noise = 0.25, 0.3
    far = (0.5 + alpha) ** 2  # squared distance of the wrong model
    bound = 8 * 2 * (noise**2 + far) ** 2 / (alpha**2 * 4 * samples)
    assert misassigned(samples, 0.5 - alpha, noise=noise) <= bound
    assert samples < 240 or bound < 0.15  # says something
    assert misassigned(samples, 0.75, noise=noise) > 0.5  # and fails beyond Δ/2


ANISOTROPIC = np.array([1.0, 1.0, 0.8, 0.6, 0.5])  # λ/L = ¼


def test_steps_contract_as_theorem_2_says():
    """γ = 1/L with L = 2, λ = ½, p = ½; start within (½ − α)√(λ/L)Δ; factor 1 − pλ/(8L) and a small rest."""
    theta = pair(5, 2.0)
    fed, task = world(theta, 40, 400, noise=0.1, scales=ANISOTROPIC)
    start = shifted(theta, 0.4 * 0.5)
    path, _ = run(fed, task, start, 0.5, 60)
    e = errors(path, theta)
    rest = 2 * 0.1 / math.sqrt(0.5 * 40 * 400)
    assert (e[1:] <= (1 - 0.5 * 0.25 / 8) * e[:-1] + rest).all()
    assert (e[-1] < 0.05 * e[0]).all()
    slow = np.array([start[0] + 0.2 * np.eye(5)[4], start[1]])  # an error along the flattest direction
    e = errors(run(fed, task, slow, 0.5, 12)[0], theta)[:, 0]
    assert e[-1] / e[0] > (1 - 0.5 * 1.0) ** 12 * 10  # p, λ and L are felt: with λ = L it would be far faster


@pytest.mark.slow
def test_after_the_promised_rounds_the_error_falls_like_one_over_the_root_of_all_samples():
    """T = (8L/pλ) log(2Δ/ε): with clusters of size n_j = mn/2 the error ratio for 16 times the data is 4."""
    theta = pair(5, 2.0)

    def final(clients, samples, seed):
        fed, task = world(theta, clients, samples, noise=0.2, scales=ANISOTROPIC, seed=seed)
        epsilon = 0.2 / math.sqrt(clients * samples)
        rounds = math.ceil(8 * 4 / 0.5 * math.log(4 / epsilon) / 8)  # the proof's rate is 8 times too careful here
        return parameter_distance(run(fed, task, shifted(theta, 0.2), 0.5, rounds)[0][-1], theta)

    few = np.array([final(10, 40, s) for s in range(5)])
    many = np.array([final(40, 160, s) for s in range(5)])
    ratio = few.mean() / many.mean()
    error = ratio * math.hypot(*(a.std(ddof=1) / a.mean() / math.sqrt(5) for a in (few, many)))
    assert abs(ratio - 4) < 4 * error
    assert error < 0.6
