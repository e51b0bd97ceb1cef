"""Theorem 5 and Algorithm 1: exact posterior means, the contraction of the paper's rounds, EM at the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from coterie.estimation.mixtures import MixtureMeans, log_joint
from reproductions.generate import mixture_clients
from reproductions.printed.mixtures import PrintedMixtureMeans

CENTERS = np.array([[-1.0], [0.0], [1.0]])
THIRDS = np.full(3, 1 / 3)


def error(model, data):
    return float(np.square(model.estimates_ - data.truth).sum(1).mean())


def mixture_risk(
    proportions: np.ndarray,
    centers: np.ndarray,
    *,
    samples: float,
    noise_variance: float,
    component_variance: float = 0.0,
    draws: int = 20_000,
    seed: int = 0,
) -> float:
    """Bayes risk E‖θ̂_i − θ_i‖² under the known mixture.

    Exact (Gauss–Hermite) where the centres lie on a line, for then only one direction matters; else over ``draws``
    seeded samples of X̄ from each component.
    """
    p, mu = np.asarray(proportions, dtype=np.float64), np.asarray(centers, dtype=np.float64)
    mu = mu[:, None] if mu.ndim == 1 else mu
    v = noise_variance / samples
    total = component_variance + v
    own = component_variance / total if total > 0 else 1.0
    _, spread, axes = np.linalg.svd(mu - mu.mean(0), full_matrices=False)
    rank = int((spread > 1e-12 * float(spread[0])).sum())
    points = (mu - mu.mean(0)) @ axes[:rank].T  # the risk only depends on X̄ within the span of the centres
    within = mu.shape[1] * own * v
    if rank == 0:
        return float(within)
    if rank == 1:
        node, mass = np.polynomial.hermite_e.hermegauss(200)
        node, mass = node[:, None], mass / mass.sum()
    else:
        node = np.random.default_rng(seed).standard_normal((draws, rank))
        mass = np.full(draws, 1 / draws)
    between = 0.0
    for share, centre in zip(p, points, strict=True):
        x = centre + np.sqrt(total) * node
        w = softmax(log_joint(x, p, points, np.full(len(x), total)), axis=1)
        variance = w @ np.square(points).sum(1) - np.square(w @ points).sum(1)
        between += float(share * (mass @ variance))
    return float((1 - own) ** 2 * between + within)


def test_bayes_risk_of_two_points():
    assert mixture_risk([0.5, 0.5], [-1, 1], samples=1, noise_variance=1) == pytest.approx(0.449600, abs=1e-6)
    assert mixture_risk([0.5, 0.5], [-1, 1], samples=4, noise_variance=1) == pytest.approx(0.068597, abs=1e-6)
    tilted = mixture_risk([0.5, 0.5], [[-0.6, -0.8], [0.6, 0.8]], samples=1, noise_variance=1)
    assert tilted == pytest.approx(0.449600, abs=1e-6)  # only the line through the centres matters
    assert mixture_risk([1.0], [3.0], samples=2, noise_variance=1, component_variance=1) == pytest.approx(1 / 3)


def test_bayes_risk_is_reached():
    rng = np.random.default_rng(0)
    centers = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.5]])
    data = mixture_clients(40_000, 3, centers, noise_variance=1.0, component_variance=0.2, rng=rng)
    model = MixtureMeans(prior=(THIRDS, centers), noise_variance=1.0, component_variance=0.2).fit(data.samples)
    square = np.square(model.estimates_ - data.truth).sum(1)
    risk = mixture_risk(THIRDS, centers, samples=3, noise_variance=1.0, component_variance=0.2)
    margin = 4 * square.std() / 200
    assert abs(square.mean() - risk) < margin + 0.005
    assert abs(square.mean() - model.risk_) < margin


def test_gaussian_components():
    model = MixtureMeans(
        prior=(np.array([0.3, 0.7]), np.array([-1.0, 2.0])), noise_variance=1.0, component_variance=0.25
    )
    assert model.fit(np.full((1, 3), 0.4)).estimates_[0] == pytest.approx(0.59856, abs=1e-5)
    point = MixtureMeans(prior=(np.array([0.3, 0.7]), np.array([-1.0, 2.0])), noise_variance=1.0)
    assert point.fit(np.full((1, 3), 0.4)).estimates_[0] == pytest.approx(0.4605, abs=1e-4)


def test_printed_weights_underflow_and_ours_do_not():
    samples = np.random.default_rng(0).normal(size=(2, 4000)) + np.array([[1.0], [-1.0]])
    printed = np.exp(-np.square(samples[:, :, None] - np.array([-1.0, 1.0])).sum(1) / 2)
    assert printed.max() == 0.0
    model = MixtureMeans(prior=(np.array([0.5, 0.5]), np.array([-1.0, 1.0])), noise_variance=1.0).fit(samples)
    np.testing.assert_allclose(model.estimates_, [1.0, -1.0])


@pytest.mark.slow
def test_paper_contracts_and_em_reaches_the_oracle():
    rounds = {t: [] for t in (1, 2, 5, 10)}
    em, oracle, local = [], [], []
    for seed in range(6):
        data = mixture_clients(3000, 4, CENTERS, noise_variance=1.0, rng=np.random.default_rng(seed))
        for t, errors in rounds.items():
            errors.append(error(PrintedMixtureMeans(3, noise_variance=1.0, max_iter=t).fit(data.samples), data))
        em.append(error(MixtureMeans(3, noise_variance=1.0).fit(data.samples), data))
        known = MixtureMeans(prior=(THIRDS, CENTERS), noise_variance=1.0).fit(data.samples)
        oracle.append(error(known, data))
        local.append(known.local_risk_)
    for t, expected in ((1, 0.1677), (2, 0.1654), (5, 0.2905), (10, 0.678)):
        assert np.mean(rounds[t]) == pytest.approx(expected, rel=0.08)
    assert np.mean(oracle) == pytest.approx(0.158, rel=0.02)
    assert np.mean(em) < 1.015 * np.mean(oracle)
    assert np.mean(rounds[10]) > 2.5 * np.mean(local) > 3.5 * np.mean(em)


def test_the_hull_collapses_to_a_point():
    data = mixture_clients(3000, 4, CENTERS, noise_variance=1.0, rng=np.random.default_rng(7))
    paper = PrintedMixtureMeans(3).fit(data.samples)
    em = MixtureMeans(3).fit(data.samples)
    assert np.ptp(paper.centers_) < 0.1
    assert np.ptp(em.centers_) > 1.8


def test_em_with_ragged_clients_and_learned_spread():
    rng = np.random.default_rng(1)
    centers = np.array([[0.0, 0.0], [4.0, 0.0]])
    data = mixture_clients(
        2000, (1, 20), centers, noise_variance=2.0, component_variance=0.3, proportions=[0.3, 0.7], rng=rng
    )
    model = MixtureMeans(2, component_variance=None).fit(data.samples)
    order = np.argsort(model.centers_[:, 0])
    np.testing.assert_allclose(model.centers_[order], centers, atol=0.12)
    np.testing.assert_allclose(model.proportions_[order], [0.3, 0.7], atol=0.05)
    assert model.component_variance_ == pytest.approx(0.3, rel=0.15)
    low, high = model.interval(0.9)
    assert abs(((low < data.truth) & (data.truth < high)).mean() - 0.9) < 0.02
    assert (model.labels_ == order[data.labels]).mean() > 0.95
    assert error(model, data) == pytest.approx(model.risk_, rel=0.06)
    assert error(model, data) < 0.9 * error(MixtureMeans(2).fit(data.samples), data)


@pytest.mark.parametrize(("centers", "clients"), [(CENTERS, 500), (np.array([[-2.0], [2.0]]), 40)])
def test_intervals_of_point_masses_cover(centers, clients):
    """On the average over runs: within a run all clients of a group share its centre's error, and miss together."""
    covered = []
    for seed in range(60):
        data = mixture_clients(clients, 8, centers, noise_variance=1.0, rng=np.random.default_rng(seed))
        low, high = MixtureMeans(len(centers), n_init=3).fit(data.samples).interval(0.9)
        covered.append(((low <= data.truth) & (data.truth <= high)).mean())
    assert abs(np.mean(covered) - 0.9) < 4 * np.std(covered) / np.sqrt(60)
    assert np.std(covered) < 0.25


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_coinciding_centres_do_not_blow_up_the_risk():
    """Groups that overlap this much may get two centres at one place, whose own positions the data hardly tell."""
    data = mixture_clients(500, 2, CENTERS, noise_variance=1.0, rng=np.random.default_rng(1))
    model = MixtureMeans(3, tol=1e-9).fit(data.samples)
    assert np.diff(np.sort(model.centers_.ravel())).min() < 0.05
    assert error(model, data) < model.risk_ < 2.5
    low, high = model.interval(0.9)
    assert (high - low).max() < 6
    assert ((low < data.truth) & (data.truth < high)).mean() > 0.9


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 30), st.integers(1, 3), st.sampled_from([MixtureMeans, PrintedMixtureMeans]), st.integers(0, 1000)
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimates_stay_in_the_hull_and_weights_sum_to_one(m, k, kind, seed):
    samples = np.random.default_rng(seed).normal(size=(m, 3, 2))
    model = kind(min(k, m), max_iter=5, n_init=1).fit(samples)
    np.testing.assert_allclose(model.weights_.sum(1), 1)
    np.testing.assert_allclose(model.estimates_, model.weights_ @ model.centers_)
    assert model.proportions_.sum() == pytest.approx(1)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_em_never_lowers_the_likelihood():
    data = mixture_clients(300, 4, CENTERS, noise_variance=1.0, rng=np.random.default_rng(3))
    values = [
        MixtureMeans(3, noise_variance=1.0, max_iter=t, tol=0).fit(data.samples).log_likelihood_ for t in range(1, 30)
    ]
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] > values[0] + 0.1


def test_equal_clients_are_one_cluster_in_effect():
    model = MixtureMeans(2, noise_variance=1.0).fit(np.ones((5, 2)))
    np.testing.assert_allclose(model.estimates_, 1.0)
    assert clone(model).clusters == 2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"clusters": 4}, "at most the number of clients, 3"),
        ({"clusters": 0}, "whole number ≥ 1"),
        ({"prior": (np.array([0.5, 0.4]), np.array([0.0, 1.0]))}, "summing to 1"),
        ({"prior": (np.array([0.5, 0.5]), np.ones((2, 3)))}, "prior must be"),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_bad_parameters_get_a_clear_sentence(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MixtureMeans(**kwargs).fit(np.random.default_rng(0).normal(size=(3, 4)))


def test_far_from_zero_and_without_noise():
    rng = np.random.default_rng(0)
    samples = rng.normal(np.array([-3.0, 3.0])[rng.integers(2, size=100)][:, None], 1, size=(100, 5))
    here, far = MixtureMeans(2).fit(samples), MixtureMeans(2).fit(samples + 1e8)
    np.testing.assert_allclose(far.estimates_ - 1e8, here.estimates_, atol=1e-5)
    certain = MixtureMeans(2, noise_variance=0).fit(samples)
    assert np.isfinite(certain.estimates_).all()
    assert set(certain.weights_.ravel()) <= {0.0, 1.0}


@pytest.mark.parametrize("gap", [4.0, 40.0])
def test_learned_spread_of_groups_far_apart(gap):
    """The centres are right from the first round; the spread takes more, and the intervals need it."""
    variances, covered = [], []
    for seed in range(20):
        data = mixture_clients(
            100,
            (3, 12),
            [[0.0, 0.0], [gap, 0.0]],
            noise_variance=4.0,
            component_variance=0.9,
            rng=np.random.default_rng(seed),
        )
        model = MixtureMeans(2, component_variance=None, n_init=2).fit(data.samples)
        low, high = model.interval(0.9)
        variances.append(model.component_variance_)
        covered.append(((low < data.truth) & (data.truth < high)).mean())
    assert abs(np.mean(variances) - 0.9) < 4 * np.std(variances) / np.sqrt(20) + 0.02
    assert abs(np.mean(covered) - 0.9) < 0.02


def test_equal_groups_find_no_spread_and_few_rounds_warn():
    data = mixture_clients(200, 5, [[-3.0], [3.0]], noise_variance=1.0, rng=np.random.default_rng(0))
    assert MixtureMeans(2, component_variance=None).fit(data.samples).component_variance_ < 0.06
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        MixtureMeans(2, max_iter=1).fit(data.samples)


def test_the_density_of_a_component_is_normalised():
    """log p_l + log N(x; μ_l, T I), as SciPy has it: the likelihood that judges variances and restarts needs all of it."""
    rng = np.random.default_rng(0)
    means, centers, total = rng.normal(size=(5, 3)), rng.normal(size=(2, 3)), rng.uniform(0.5, 2.0, 5)
    shares = np.array([0.3, 0.7])
    expected = [
        [np.log(p) + multivariate_normal(c, t).logpdf(x) for p, c in zip(shares, centers, strict=True)]
        for x, t in zip(means, total, strict=True)
    ]
    np.testing.assert_allclose(log_joint(means, shares, centers, total), expected)
