"""What is proved of Threshold-Clustering: T-F1 (error), T-F2 (robustness), T-F3 (lower bound), the percentile's limit."""

import math

import numpy as np
import pytest
import torch

from coterie.aggregation.radius import Fixed, Percentile, Proof, Theory
from coterie.aggregation.threshold import threshold_centers, threshold_clustering


def blobs(seed, n, clusters, separation, dim=10):
    """n points a cluster with E‖z − Ez‖² = 1, means exactly `separation` apart; points, each point's mean."""
    means = np.eye(clusters, dim) * separation / np.sqrt(2)
    own = np.repeat(means, n, 0)
    return own + np.random.default_rng(seed).normal(size=own.shape) / np.sqrt(dim), own


def inner_rounds(delta, separation):
    return max(1, math.ceil(math.log(1 / separation) / math.log(1 - delta / 2)))


def mean_error(n, clusters, separation, repeats, rule=Theory, **more):
    """E‖v − Ez_i‖² with v_0 = z_i, over all points and repeats, and its standard error."""
    errors = []
    for repeat in range(repeats):
        z, own = blobs([n, clusters, repeat], n, clusters, separation)
        radius = rule(1 / clusters, 1.0, separation, **more)
        got = threshold_clustering(z, z, radius, inner_rounds(1 / clusters, separation), history=False)
        errors.append(((got.centers - own) ** 2).sum(1).mean())
    return np.mean(errors), np.std(errors) / np.sqrt(repeats)


SETTINGS = [(20, 2, 8), (20, 2, 400), (80, 2, 40), (320, 2, 400), (20, 4, 20), (80, 4, 16), (160, 4, 100), (10, 4, 400)]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "clusters", "separation"), SETTINGS)
def test_error_of_theorem_1(n, clusters, separation):
    error, se = mean_error(n, clusters, separation, repeats=max(3, 600 // (n * clusters)))
    bound = 1 / n + 1 / separation
    assert error + 4 * se <= 4 * bound
    assert error + 4 * se >= 0.9 / n  # the mean of n points is not better
    assert error + 4 * se < 0.2  # v_0 = z_i has error σ² = 1: clustering helped


def test_error_falls_with_cluster_size_and_with_separation():
    small, se_small = mean_error(10, 2, 100, 20)
    large, se_large = mean_error(160, 2, 100, 5)
    assert small - large > 4 * math.hypot(se_small, se_large)
    near, se_near = mean_error(80, 4, 8, 4)
    far, se_far = mean_error(80, 4, 100, 4)
    assert near - far > 4 * math.hypot(se_near, se_far)


def test_the_proofs_radius_meets_the_bound_too():
    error, se = mean_error(40, 2, 40, 6, rule=Proof, members=40)
    assert error + 4 * se <= 4 * (1 / 40 + 1 / 40)


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5])
def test_error_shrinks_by_exactly_one_minus_delta(share):
    """No noise within the cluster and a ball that holds exactly the cluster."""
    inside = int(share * 16)
    z = np.concatenate([np.tile([1.0, -2.0, 0.5], (inside, 1)), np.full((16 - inside, 3), 90.0)])
    start = z[0] + np.array([0.6, 0.0, -0.8])
    for rule in (Fixed(3.0), Percentile(100 * share)):
        for rounds in (1, 2, 5, 30):
            error = threshold_clustering(z, start, rule, rounds).centers[0] - z[0]
            np.testing.assert_allclose(np.linalg.norm(error), (1 - share) ** rounds, rtol=1e-9, atol=1e-12)


def test_percentile_must_not_exceed_the_clusters_share():
    """Four equal clusters, 50 σ apart: the 20th and 25th percentile stay in the cluster, the 30th does not."""

    def error(p):
        z, own = blobs(0, 25, 4, 50)
        return ((threshold_clustering(z, z, Percentile(p), history=False).centers - own) ** 2).sum(1).mean()

    assert error(25) < error(20) < 0.46
    assert error(30) > 18


# ---- T-F2 ------------------------------------------------------------------------------------------------------------


def edge_attack(malicious, seed, n=200, separation=50.0, rounds=20):
    """β N points move along with the centre, just inside its ball (A-4). Squared error, and what the attack can reach."""
    rng = np.random.default_rng(seed)
    z, _ = blobs(seed, n // 2, 2, separation)
    bad = np.zeros(n, bool)
    bad[1 + rng.permutation(n - 1)[: int(malicious * n)]] = True
    good = np.flatnonzero(~bad[: n // 2])
    tau, direction = math.sqrt(0.5 * separation), np.eye(z.shape[1])[5]
    v = z[0]
    for _ in range(rounds):
        z[bad] = v + 0.999 * tau * direction
        v = threshold_clustering(z, v, Fixed(tau), rounds=1, history=False).centers[0]
    drift = bad.mean() * 0.999 * tau / (len(good) / n)
    center = z[good].mean(0)
    return float(((v - blobs(seed, 1, 2, separation)[1][0]) ** 2).sum()), v - center - drift * direction


@pytest.mark.parametrize(("malicious", "about"), [(0.0, 0.01), (0.05, 0.28), (0.1, 1.2), (0.2, 6.0)])
def test_edge_attack_does_no_more_than_the_theorem_says(malicious, about):
    runs = [edge_attack(malicious, seed) for seed in range(5)]
    errors = [error for error, _ in runs]
    assert max(errors) < 1 / 100 + 1 / 50 + malicious * 50  # σ²/n + σ³/Δ + βσΔ
    assert about / 2 < np.mean(errors) < 2 * about
    for _, rest in runs:  # the fixed point of v ← v + δ(mean − v) + β · 0.999 τ u
        assert np.linalg.norm(rest) < 0.01


def test_without_thresholding_the_same_attack_is_unbounded():
    z, own = blobs(0, 100, 2, 50.0)
    z[1:21] = 1e6
    assert np.linalg.norm(z[:100].mean(0) - own[0]) > 1e5
    assert np.linalg.norm(threshold_clustering(z, z[0], Fixed(5.0)).centers[0] - own[0]) < 0.5


# ---- T-F3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separation", [2.0, 3.0, 10.0])
def test_lower_bound_no_estimator_beats(separation):
    """Two mixtures with the same points: D_1 is `gap` with probability p else 0 (D_2 the reverse), or D̃_1 = 0, D̃_2 = gap.
    The worse of the two errors is at least σ⁴/(S + Δ)², S = √(4σ² + Δ²) (erratum EC-14)."""
    root = math.sqrt(4 + separation**2)
    p = 0.5 - separation / (2 * root)
    gap = separation / (1 - 2 * p)
    assert gap**2 * p * (1 - p) == pytest.approx(1.0)  # σ = 1
    value = 1 / (root + separation) ** 2
    assert gap**2 * p**2 / 4 == pytest.approx(value)
    assert value <= 1 / (4 * separation**2)  # so the printed constant ¼ is an upper bound
    if separation**2 >= 2:
        assert value >= 1 / (7.47 * separation**2)
    z = np.repeat([0.0, gap], 100)[:, None]

    def worst(estimate):
        return max((estimate - gap * p) ** 2, estimate**2)

    assert worst(gap * p / 2) == pytest.approx(value)
    for rule in (Theory(0.5, 1.0, separation), Percentile(50), Percentile(20), Fixed(2 * gap)):
        estimate = float(threshold_clustering(z, [[0.0]], rule, 30).centers[0, 0])
        assert worst(estimate) >= value
        if rule != Fixed(2 * gap):  # within the upper bound; a ball around everything is not
            assert worst(estimate) <= 1 / separation


# ---- the inner step of Federated-Clustering on the failure examples X-1 and X-2 --------------------------------------


def federated_clustering(gradients, x, lr, radius, rounds):
    """x_i ← x_i − η v_i, v_i the centre that starts at g_i(x_i) among everybody's gradients at x_i. All models by round."""
    path = [list(x)]
    for _ in range(rounds):
        centers = []
        for i, at in enumerate(path[-1]):
            points = torch.tensor([[g(at)] for g in gradients], dtype=torch.float64)
            centers.append(float(threshold_centers([(points, points[i])], radius, 10)[0][0]))
        path.append([at - lr * v for at, v in zip(path[-1], centers, strict=True)])
    return path


@pytest.mark.slow
def test_saddle_example():
    lr = 0.05
    gradients = (
        lambda x: x / (3 * lr),
        lambda x: 12 * (x - 1) ** 2 + 12 * (x - 1) ** 3 if x < 1 else (x - 1) / lr,
        lambda x: (x - 2) / lr,
    )
    path = federated_clustering(gradients, [1.5] * 3, lr, 1 / (2 * lr), 400)
    np.testing.assert_allclose(path[1], [1, 1, 2], atol=1e-4)
    np.testing.assert_allclose(path[2], [5 / 6, 5 / 6, 2], atol=1e-4)
    np.testing.assert_allclose(path[-1], [0, 0, 2], atol=1e-2)


def test_two_clients_example():
    path = federated_clustering((lambda x: 2 * x + 1, lambda x: 2 * x - 1), [-1.5, 0.0], 0.1, 1.9, 10)
    for t, (a, b) in enumerate(path):
        assert a + 0.5 == pytest.approx(-(0.8**t))
        assert b - 0.5 == pytest.approx(-0.5 * 0.8**t)
