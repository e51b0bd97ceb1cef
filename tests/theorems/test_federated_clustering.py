"""What is proved of Federated-Clustering and Momentum-Clustering: T-F4 … T-F7."""

import math

import numpy as np
import pytest
from torch import nn

import coterie as ct
from coterie.training.run import Run

# ---- T-F4: strongly convex clients with a common optimum -------------------------------------------------------------


def hessians(rng, clients, d, low, high):
    """Random symmetric matrices with eigenvalues in [μ, L], both attained."""
    bases = np.linalg.qr(rng.normal(size=(clients, d, d)))[0]
    values = rng.uniform(low, high, (clients, d))
    values[:, 0], values[:, -1] = low, high
    return np.einsum("cij,cj,ckj->cik", bases, values, bases)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ratio", [1.5, 5.0])
def test_lemma_1_on_random_quadratics(seed, ratio):
    """A4 with A = 2L/μ; A5 with D² = 2(1 + (L/μ)²) and Δ = min‖∇f_j(x*_i)‖/√2 (erratum EC-9: min, not max)."""
    rng = np.random.default_rng([seed, int(10 * ratio)])
    d, mu, lip = 4, 0.7, 0.7 * ratio
    own = np.repeat(np.arange(3), 4)
    optimum = rng.normal(size=(3, d)) * 3
    h = hessians(rng, 12, d, mu, lip)
    x = np.repeat(optimum, 60, 0) + rng.normal(size=(180, d)) * np.tile(np.logspace(-2, 2, 60), 3)[:, None]
    gradient = np.einsum("cij,pcj->pci", h, x[:, None] - optimum[own])  # (points, clients, d)
    mean = np.stack([gradient[:, own == k].mean(1) for k in own], 1)
    ratios = (np.sum((gradient - mean) ** 2, 2) / np.sum(mean**2, 2)).max()
    assert ratios <= (2 * ratio) ** 2
    at_optimum = np.linalg.norm(np.einsum("cij,kcj->kci", h, optimum[:, None] - optimum[own]), axis=2)  # ∇f_j(x*_k)
    for i in range(12):
        others = own != own[i]
        delta = at_optimum[own[i]][others].min() / math.sqrt(2)
        apart = np.sum((gradient[:, others] - gradient[:, i : i + 1]) ** 2, 2)
        bound = delta**2 - 2 * (1 + ratio**2) * np.sum(gradient[:, i] ** 2, 1)
        assert (apart >= bound[:, None]).all()
        assert bound.max() > 0  # it says something near the optimum


def test_the_printed_maximum_is_refuted():
    """½x², ½(x − 1)², ½(x − 100)² at x = 0, clients 1 and 2: the left side is 1, the printed right side 5000."""
    gradients = np.array([0.0, -1.0, -100.0])
    left = (gradients[0] - gradients[1]) ** 2
    assert left == 1
    assert left < np.abs(gradients[1:]).max() ** 2 / 2 == 5000
    assert left >= np.abs(gradients[1:]).min() ** 2 / 2


# ---- T-F5: Federated-Clustering --------------------------------------------------------------------------------------


def quadratic_clients(per_cluster, d=3, seed=0):
    """Noise-free least squares: everyone in a cluster has the same optimum, its own curvature in [1, 2]."""
    rng = np.random.default_rng(seed)
    clients = 2 * per_cluster
    own = np.arange(clients) % 2
    root = np.linalg.cholesky(hessians(rng, clients, d, 1.0, 2.0))  # F = ‖Rᵀ(w − x*)‖² / d
    x = np.swapaxes(root, 1, 2) * math.sqrt(d / 2)  # so that ∇F = H(w − x*)
    optimum = np.stack([np.full(d, 30.0), np.full(d, -30.0)])
    y = np.einsum("cij,cj->ci", x, optimum[own])
    fed = ct.Federation.from_flat(
        x.reshape(-1, d),
        y.ravel(),
        sizes=np.full(clients, d),
        clients=range(clients),
        n_test=np.zeros(clients, np.int64),
        clusters=own,
        kind="regression",
        dtype="float64",
    )
    return fed, ct.Task(lambda: nn.Linear(d, 1, bias=False), loss="mse"), optimum[own]


@pytest.mark.slow
def test_without_noise_every_clients_gradient_vanishes_like_one_over_t():
    """η = 1/L, full batches, two clusters: Σ_t ‖∇f_i‖² stays bounded, so its mean is O(1/T)."""
    fed, task, optimum = quadratic_clients(3)
    errors = []
    algorithm = ct.FederatedClustering(lr=0.5, radius=ct.robust.Percentile(50))
    ct.fit(
        algorithm,
        fed,
        task,
        rounds=40,
        alone=False,
        callbacks=[
            lambda row, s: errors.append(np.linalg.norm(s.models["weight"].squeeze(1).numpy() - optimum, axis=1))
        ],
    )
    square = np.array(errors) ** 2  # within a factor L² = 4 of the squared gradient norms
    assert (square[-1] < 1e-10).all()
    assert square[20:].sum() < 1e-4 * square[:20].sum()
    global_model = ct.fit(ct.FedAvg(algorithm.local), fed, task, rounds=40, alone=False).state.model["weight"]
    assert np.linalg.norm(global_model.numpy() - optimum, axis=1).min() > 10  # one model serves nobody


def noisy_clients(per_cluster, gap=40.0, samples=20):
    """f_i(w) = (w − c_k)² + 1: targets c_k ± 1, half each, so a sample's gradient has exactly σ² = 4."""
    clients = 2 * per_cluster
    own = np.arange(clients) % 2
    y = np.where(own, gap / 2, -gap / 2)[:, None] + np.tile([1.0, -1.0], samples // 2)
    fed = ct.Federation.from_flat(
        np.ones((clients * samples, 1)),
        y.ravel(),
        sizes=np.full(clients, samples),
        clients=range(clients),
        n_test=np.zeros(clients, np.int64),
        clusters=own,
        kind="regression",
        dtype="float64",
    )
    return fed, ct.Task(lambda: nn.Linear(1, 1, bias=False), loss="mse"), np.where(own, gap / 2, -gap / 2)


def floor(algorithm, per_cluster, rounds, burn, seeds=1):
    """Mean of (w_i − c_k)² over clients and late rounds, and its error (rounds apart by `burn` count as independent)."""
    means = []
    for seed in range(seeds):
        fed, task, centre = noisy_clients(per_cluster)
        path = []

        def note(row, state, path=path):
            path.append(state.models["weight"].reshape(-1).numpy())

        ct.fit(algorithm, fed, task, rounds=rounds, seed=seed, alone=False, callbacks=[note])
        means.append(((np.array(path)[burn:] - centre) ** 2).mean())
    return float(np.mean(means)), float(np.std(means, ddof=1) / math.sqrt(seeds)) if seeds > 1 else 0.0


@pytest.mark.slow
def test_the_noise_floor_falls_with_the_size_of_the_cluster():
    """One sample a step. Alone the stationary value is η²σ²/(1 − (1−2η)²); n clients that listen to each other share it."""
    lr, sigma = 0.2, 2.0
    alone = lr**2 * sigma**2 / (1 - (1 - 2 * lr) ** 2)
    radius = ct.robust.Theory(
        0.5, sigma, 80.0
    )  # √(δσΔ) = 9: far beyond the noise, far below the other cluster's gradients
    algorithm = ct.FederatedClustering(lr=lr, radius=radius, batch_size=1, inner=20)
    one, _ = floor(algorithm, 1, 60, 15, seeds=3)
    four, _ = floor(algorithm, 4, 60, 15, seeds=3)
    assert one == pytest.approx(alone, rel=0.3)
    assert four == pytest.approx(alone / 4, rel=0.5)
    assert one > 2 * four


# ---- T-F6: momentum --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0])
def test_the_variance_of_the_momentum(alpha):
    """Lemma 14: Var(m_t) ≤ ασ², stationary ασ²/(2 − α); models that do not move (η = 0), 1000 clients."""
    fed, task, _ = noisy_clients(500, gap=0.0)
    algorithm = ct.MomentumClustering(clusters=1, lr=0.0, alpha=alpha, batch_size=1, warm=False, inner=1)
    for rounds in (1, 2, 25):
        result = ct.fit(algorithm, fed, task, rounds=rounds, alone=False)
        m = result.evaluation.env.states.values["momentum"]["weight"].reshape(-1).numpy()[:1000]
        exact = alpha / (2 - alpha) * (1 - (1 - alpha) ** (2 * rounds)) * 4
        error = exact * math.sqrt(2 / len(m))  # of a variance; two-point noise varies less
        assert abs(m.var() - exact) < 4 * error
        assert m.var() <= alpha * 4 + 4 * error
        w = float(result.evaluation.env.initial["weight"])
        bias = 1 - (1 - alpha) ** rounds  # what starting at m_0 = 0 costs (erratum EC-18)
        assert m.mean() == pytest.approx(2 * w * bias, abs=4 * math.sqrt(exact / len(m)))


# ---- T-F7: Momentum-Clustering ---------------------------------------------------------------------------------------


def momentum_path(algorithm, per_cluster, rounds, seed=0):
    fed, task, centre = noisy_clients(per_cluster)
    run = Run(algorithm, fed, task, seed, ct.training.Everyone(), (), ct.engines.LocalEngine(workers=1), None)
    run.begin(resume=False, overwrite=False)
    path = []
    for _ in range(rounds):
        run.one_round()
        path.append(run.env.states.values["model"]["weight"].reshape(-1).numpy()[: len(fed)].copy())
    return (np.array(path) - centre) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("per_cluster", [2, 16])
def test_the_mean_squared_gradient_meets_the_bound_of_theorem_4(per_cluster):
    """Single samples, T = 100, η, α and the radius as the theorem says; constants of the bound one, times ten."""
    rounds, lip, sigma, gap, excess = 100, 2.0, 2.0, 80.0, 20.0**2
    floor = sigma**2 / per_cluster + sigma**3 / gap
    lr = min(1 / lip, math.sqrt(excess / (lip * rounds * floor)))
    alpha = min(1.0, lip * lr)
    radius = ct.robust.Theory(0.5, math.sqrt(alpha) * sigma, gap)
    algorithm = ct.MomentumClustering(clusters=2, lr=lr, alpha=alpha, radius=radius, batch_size=1)
    square = 4 * momentum_path(algorithm, per_cluster, rounds).mean()
    bound = 10 * math.sqrt(lip * excess * floor / rounds)
    assert square < bound < 0.05 * (2 * 20) ** 2  # a model for all has the gradient 2 · 20


@pytest.mark.slow
def test_longer_training_lowers_the_mean_squared_gradient():
    """The way to the noise is a matter of a few rounds; averaged over T rounds it falls with T."""
    algorithm = ct.MomentumClustering(
        clusters=2, lr=0.1, alpha=0.3, radius=ct.robust.Theory(0.5, 1.0, 80.0), batch_size=1
    )
    square = momentum_path(algorithm, 8, 200).mean(1)
    assert square[:200].mean() < 0.3 * square[:25].mean()
