"""The Dirichlet mixture: its moments, the Bayes rule, the exact risk, maximum likelihood, EM, and the baselines."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import digamma, polygamma
from scipy.stats import dirichlet
from sklearn.base import clone

from coterie.estimation.histograms.baselines import FedAvgHistogram, IFCAHistograms, LocalHistograms
from coterie.estimation.histograms.mixture import HistogramMixture, kl_rows, mean_kl
from coterie.estimation.histograms.model import sample_histograms
from coterie.estimation.histograms.reduction import TokenReduction, second_moment
from coterie.estimation.histograms.soft import DirichletMultinomialMixture
from coterie.estimation.histograms.user_rows import HistogramRows
from reproductions.histogram_worlds import bayes_histograms, fine_tuning_risk

P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def rows_of(counts):
    return HistogramRows.in_memory(sp.csr_array(counts, dtype=float), threads=1)


def mixture(seed=0, users=4000, tokens=100, clusters=4, vocabulary=100, concentration=150.0):
    rng = np.random.default_rng(seed)
    centers = rng.dirichlet(np.full(vocabulary, 0.5), clusters) * (1 - 1e-3) + 1e-3 / vocabulary
    return centers, sample_histograms(centers, users=users, tokens=tokens, concentration=concentration, rng=rng)


# The generator


def test_generator_has_the_moments_of_the_model():
    users, alpha, m = 200_000, 10.0, 20
    data = sample_histograms(P[None], users=users, tokens=m, concentration=alpha, rng=np.random.default_rng(0))
    q, covariance = data.histograms, (np.diag(P) - np.outer(P, P)) / (alpha + 1)
    assert (np.abs(q.mean(axis=0) - P) < 4 * np.sqrt(np.diag(covariance) / users)).all()
    products = (q - P)[:, :, None] * (q - P)[:, None, :]
    assert (np.abs(products.mean(axis=0) - covariance) < 4 * products.std(axis=0) / np.sqrt(users)).all()
    empirical = data.counts.toarray() / m
    second = empirical[:, :, None] * empirical[:, None, :]
    given_q = (1 - 1 / m) * q[:, :, None] * q[:, None, :] + q[:, :, None] * np.eye(5) / m
    difference = second - given_q
    assert (np.abs(difference.mean(axis=0)) < 4 * difference.std(axis=0) / np.sqrt(users)).all()


# Fine-tuning


def test_exact_risk_of_fine_tuning():
    expected = {
        1: 0.169427,
        0.5: 0.068092,
        0.4: 0.062049,
        1 / 3: 0.0607998,
        0.3: 0.061144,
        0.2: 0.067158,
        0.1: 0.085783,
        0.01: 0.158699,
    }
    for weight, value in expected.items():
        assert fine_tuning_risk(P, 10, 20, weight) == pytest.approx(value, abs=6e-7)
    assert fine_tuning_risk(P, 10, 20, 0.0) == np.inf


@settings(max_examples=25, deadline=None)
@given(st.floats(0.5, 200), st.integers(2, 60), st.integers(0, 1000))
def test_the_bayes_weight_is_optimal(alpha, m, seed):
    center = np.random.default_rng(seed).dirichlet(np.ones(4)) * 0.96 + 0.01
    best = minimize_scalar(
        lambda w: fine_tuning_risk(center, alpha, m, w), bounds=(1e-6, 1), method="bounded", options={"xatol": 1e-7}
    )
    assert fine_tuning_risk(center, alpha, m, alpha / (alpha + m)) <= best.fun + 1e-10


def test_monte_carlo_agrees_with_the_exact_risk():
    data = sample_histograms(P[None], users=100_000, tokens=20, concentration=10, rng=np.random.default_rng(1))
    loss = kl_rows(data.histograms, bayes_histograms(data.counts, P[None], 10))
    assert abs(loss.mean() - fine_tuning_risk(P, 10, 20, 1 / 3)) < 4 * loss.std() / np.sqrt(len(loss))


def test_oracle_without_labels_is_no_better_than_with_them_and_beats_any_other_rule():
    centers, data = mixture(users=3000, tokens=15, concentration=20.0, vocabulary=10)
    with_labels = mean_kl(data.histograms, bayes_histograms(data.counts, centers, 20, labels=data.labels))
    without = mean_kl(data.histograms, bayes_histograms(data.counts, centers, 20))
    hard = HistogramMixture(4, init=centers, concentration=20.0).fit(data.counts)
    assert with_labels < without < mean_kl(data.histograms, hard.personalise(data.counts), 1e-4)


# Maximum likelihood


def test_fedavg_minimises_the_sum_of_divergences():
    rng = np.random.default_rng(0)
    counts = rng.poisson(3.0, size=(30, 8)) + 1
    center = FedAvgHistogram().fit(counts).centers_[0]
    least = kl_rows(counts, center).sum()
    for _ in range(200):
        other = np.abs(center + 0.02 * rng.normal(size=8))
        assert kl_rows(counts, other / other.sum()).sum() > least
    two = np.array([[0.7, 0.3], [0.2, 0.8]])
    weighted = FedAvgHistogram(weighting="token").fit(two * [[1.0], [3.0]]).centers_[0]  # t = 3/4
    np.testing.assert_allclose(weighted, 0.25 * two[0] + 0.75 * two[1])


def dirichlet_mean_mle(histograms: np.ndarray, concentration: float) -> np.ndarray:
    """P maximising Σ_u log Dirichlet(Q_u; αP) for a known α: ψ(αP_x) = mean log Q_u(x) + constant.

    It is not the arithmetic mean, which the paper calls the MLE (H06).
    """
    target = np.log(histograms).mean(axis=0)

    def excess(shift: float) -> float:
        return float(inverse_digamma(target + shift).sum() - concentration)

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    shift = brentq(excess, low, high, xtol=1e-13)
    return np.asarray(inverse_digamma(target + shift) / concentration, dtype=np.float64)


def inverse_digamma(value: np.ndarray) -> np.ndarray:
    """ψ⁻¹ by Newton's method from Minka's starting point; five steps give full precision."""
    x = np.where(value >= -2.22, np.exp(np.minimum(value, 700.0)) + 0.5, -1 / (value - digamma(1.0)))
    for _ in range(6):
        x = x - (digamma(x) - value) / polygamma(1, x)
    return np.asarray(x, dtype=np.float64)


def test_the_mle_of_a_dirichlet_centre_is_not_the_mean():
    draws = np.random.default_rng(0).dirichlet(3 * np.array([0.7, 0.2, 0.1]), size=50)

    def likelihood(center):
        return sum(dirichlet.logpdf(q / q.sum(), 3 * center / center.sum()) for q in draws)

    mle, mean = dirichlet_mean_mle(draws, 3.0), draws.mean(axis=0)
    assert mle.sum() == pytest.approx(1.0)
    assert np.abs(mle - mean).max() > 3e-3
    assert likelihood(mle) > likelihood(mean)
    rng = np.random.default_rng(1)
    for _ in range(50):
        assert likelihood(np.abs(mle + 0.01 * rng.normal(size=3))) < likelihood(mle)


@pytest.mark.parametrize("alpha", [5.0, 50.0, 500.0])
def test_concentration_is_estimated_by_maximum_likelihood(alpha):
    rng = np.random.default_rng(0)
    center = rng.dirichlet(np.ones(20))[None]
    data = sample_histograms(center, users=3000, tokens=rng.integers(20, 200, size=3000), concentration=alpha, rng=rng)
    assert FedAvgHistogram().fit(data.counts).concentration_ == pytest.approx(alpha, rel=0.05)


def test_em_never_lowers_the_likelihood_and_finds_the_model():
    rng = np.random.default_rng(0)
    centers = rng.dirichlet(np.ones(12), 3)
    labels = np.repeat([0, 1, 2], [1800, 900, 300])
    alphas = np.array([20.0, 60.0, 200.0])
    q = np.array([rng.dirichlet(alphas[k] * centers[k] + 1e-12) for k in labels])
    counts = rng.multinomial(60, q)
    model = DirichletMultinomialMixture(3, tol=1e-9, max_iter=300).fit(counts)
    assert (np.diff(model.history_) >= -1e-6).all()
    order = np.argsort(-model.weights_)
    np.testing.assert_allclose(model.weights_[order], [0.6, 0.3, 0.1], atol=0.04)
    np.testing.assert_allclose(model.concentration_[order], alphas, rtol=0.2)
    np.testing.assert_allclose(model.responsibilities_.sum(axis=1), 1.0)
    share = np.array([0.6, 0.3, 0.1])
    oracle = kl_rows(q, bayes_histograms(counts, centers, alphas, share))
    mine, hard = (
        kl_rows(q, model.personalise(counts)),
        kl_rows(q, HistogramMixture(3).fit(counts).personalise(counts), 1e-4),
    )
    assert mine.mean() < hard.mean() - 4 * (mine - hard).std() / np.sqrt(len(q))  # soft beats hard when α differs
    assert mine.mean() == pytest.approx(oracle.mean(), rel=0.02)


# IFCA and Local


def test_fixed_points_of_ifca_and_lloyd_coincide():
    _, data = mixture(users=400, vocabulary=10, tokens=60)
    lloyd = HistogramMixture(4, tol=0.0).fit(data.counts)
    from_there = IFCAHistograms(4, max_iter=30, learning_rate=3.0, init=lloyd.centers_, smoothing=1e-12).fit(
        data.counts
    )
    np.testing.assert_allclose(from_there.centers_, lloyd.centers_, atol=1e-9)
    start = 0.7 * lloyd.centers_ + 0.3 * lloyd.centers_.mean(axis=0)
    descended = IFCAHistograms(4, max_iter=3000, learning_rate=3.0, init=start, smoothing=1e-12).fit(data.counts)
    np.testing.assert_allclose(descended.centers_, lloyd.centers_, atol=1e-4)
    assert np.abs(start - lloyd.centers_).max() > 0.05


@pytest.mark.parametrize("start", ["kl++", "mean"])
def test_ifca_learns_clusters(start):
    _, data = mixture(users=1000, vocabulary=20, tokens=100)
    model = IFCAHistograms(4, max_iter=100, learning_rate=5.0, init=start).fit(data.counts)
    assert model.history_[-1] < 0.8 * FedAvgHistogram().fit(data.counts).objective_
    assert model.predict(data.counts).shape == (1000,)


def test_local_depends_on_its_smoothing_and_serves_empty_users():
    counts = np.array([[3, 1, 0], [0, 0, 0]])
    model = LocalHistograms(smoothing=0.3).fit(np.array([[1, 1, 1], [2, 0, 1]]))
    np.testing.assert_allclose(model.personalise(counts), [[0.85 / 1.3, 0.35 / 1.3, 0.1 / 1.3], [1 / 3] * 3])


@pytest.mark.parametrize(
    "model",
    [HistogramMixture(2), FedAvgHistogram(), LocalHistograms(), IFCAHistograms(2), DirichletMultinomialMixture(2)],
)
def test_all_estimators_share_an_interface(model):
    _, data = mixture(users=80, clusters=2, vocabulary=15)
    fitted = clone(model).fit(data.counts)
    assert fitted.personalise(data.counts).shape == (80, 15)
    np.testing.assert_allclose(fitted.personalise(data.counts).sum(axis=1), 1.0)
    assert fitted.predict(data.counts).shape == fitted.labels_.shape == (80,)
    assert fitted.transform(data.counts).shape == (80, len(fitted.centers_))
    assert np.isfinite(fitted.objective_)


# Reduction


def second_moment_of_mixture(centers: np.ndarray, concentration: float, tokens: float = np.inf) -> np.ndarray:
    """E[V̂V̂ᵀ] of an equally weighted Dirichlet mixture, empirical histograms of m tokens (∞: true ones).

    The printed identity loses three terms (H10); this one has K − 1 informative eigenvalues above a flat floor
    (α + m)/(m(α + 1)) and an exact zero along √Q̄.
    """
    alpha, one_over_m = concentration, 1 / tokens
    mean = centers.mean(axis=0)
    scaled = (centers - mean) / np.sqrt(mean)
    between = scaled.T @ scaled / len(centers)
    root = np.sqrt(mean)
    floor = (alpha * one_over_m + 1) / (alpha + 1)
    return np.asarray(
        alpha * (1 - one_over_m) / (alpha + 1) * between + floor * (np.eye(len(mean)) - np.outer(root, root)),
        dtype=np.float64,
    )


def test_second_moment_identity_and_its_floor():
    """The specification's Monte-Carlo: d=8, K=3, α=30, m=12, 4·10⁵ users."""
    rng = np.random.default_rng(0)
    centers = rng.dirichlet(np.full(8, 2.0), 3) * 0.9 + 0.1 / 8
    data = sample_histograms(centers, users=400_000, tokens=12, concentration=30, rng=rng)
    expected = second_moment_of_mixture(centers, 30, 12)
    measured = second_moment(rows_of(data.counts), centers.mean(axis=0))
    assert np.abs(measured - expected).max() < 2e-3
    mean = centers.mean(axis=0)
    printed = (centers.T @ centers / 3) / np.sqrt(np.outer(mean, mean))  # without the three missing terms
    assert np.abs(measured - printed).max() > 0.1
    spectrum = np.linalg.eigvalsh(expected)
    np.testing.assert_allclose(spectrum[1:6], 0.1129, atol=5e-5)
    assert abs(spectrum[0]) < 1e-12
    np.testing.assert_allclose(expected @ np.sqrt(mean), 0.0, atol=1e-12)


def test_spectrum_of_the_synthetic_experiment():
    _, data = mixture()
    total = data.counts.toarray().mean(axis=0) / 100
    fitted = TokenReduction(keep=10).fit(rows_of(data.counts), total, 4)
    assert fitted.spectrum[2] > 0.2 > 0.04 > fitted.spectrum[3]
    assert fitted.spectrum[-1] < 1e-12
    assert fitted.spectrum[3:-1].mean() == pytest.approx(250 / (100 * 151), rel=0.1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9))
def test_lumping_never_increases_a_divergence(seed, keep):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1.0, size=(20, 10)) + np.eye(20, 10)
    mean = (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
    fitted = TokenReduction(keep=keep).fit(rows_of(counts), mean, 3)
    a, b = rng.dirichlet(np.ones(10), 5), rng.dirichlet(np.ones(10), 5)
    lumped = [fitted.reduce(sp.csr_array(x)).toarray() for x in (a, b)]
    np.testing.assert_allclose(lumped[0].sum(axis=1), 1.0)
    assert (kl_rows(lumped[0], lumped[1]) <= kl_rows(a, b) + 1e-12).all()


def test_reduction_lifts_back_and_costs_little():
    _, data = mixture()
    full = HistogramMixture(4).fit(data.counts)
    reduced = HistogramMixture(4, reduction=TokenReduction(keep=20)).fit(data.counts)
    mean = data.counts.toarray().mean(axis=0) / 100
    dropped = np.setdiff1d(np.arange(100), reduced.reduction_.kept)
    np.testing.assert_allclose(reduced.centers_.sum(axis=1), 1.0)
    ratio = reduced.centers_[:, dropped] / mean[dropped]
    np.testing.assert_allclose(
        ratio, np.broadcast_to(ratio[:, :1], ratio.shape)
    )  # shared out in proportion to the mean
    np.testing.assert_array_equal(reduced.predict(data.counts), reduced.labels_)
    risks = [mean_kl(data.histograms, m.centers_[m.labels_], 1e-4) for m in (full, reduced)]
    assert risks[0] < risks[1] < 0.75 * mean_kl(data.histograms, mean)


def test_all_tokens_kept_is_no_reduction():
    _, data = mixture(users=500)
    plain = HistogramMixture(4).fit(data.counts)
    kept = HistogramMixture(4, reduction=TokenReduction(threshold=0.0)).fit(data.counts)
    np.testing.assert_allclose(np.sort(kept.centers_[:, 0]), np.sort(plain.centers_[:, 0]), atol=1e-12)
