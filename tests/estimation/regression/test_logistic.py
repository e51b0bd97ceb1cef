"""Algorithm 3 and empirical Bayes for logistic clients."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp, softmax
from sklearn.linear_model import LogisticRegression

from coterie.estimation.regression.expectation_propagation import (
    Population,
    client_posteriors,
    laplace_sites,
    move,
    settle,
    tilted_slopes,
)
from coterie.estimation.regression.grouped import group_rows
from coterie.estimation.regression.logistic import LogisticModels
from coterie.estimation.regression.newton import make_blocks
from reproductions.generate import regression_clients

Paper = partial(LogisticModels, fit_intercept=False, covariance_type="spherical")  # one variance for all


def error(model, data):
    return float(np.square(model.coef_ - data.truth).sum(1).mean())


@pytest.mark.parametrize("samples", [4, 30, (1, 20)])  # fewer rows than features (the dual form), more, ragged
def test_known_prior_gives_the_mode(samples):
    data = regression_clients(
        12, samples, 6, prior_variance=0.5, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(0)
    )
    model = Paper(prior=(data.mean, 0.5)).fit(data.X, data.y, data.groups)
    for i in range(12):
        X, y = data.X[data.groups == i], data.y[data.groups == i]

        def loss(theta, X=X, y=y):
            score = X @ theta
            return (np.logaddexp(0, score) - y * score).sum() + np.square(theta - data.mean).sum() / (2 * 0.5)

        best = minimize(loss, data.mean, tol=1e-12).x
        np.testing.assert_allclose(model.coef_[i], best, atol=1e-4)


@pytest.mark.parametrize("samples", [1, 20])  # fewer rows than features, and more
def test_known_prior_gives_the_moments_of_the_exact_posterior(samples):
    """Two features: the posterior by quadrature. Its skewness sets mean and mode apart, and Laplace's deviation off."""
    rng = np.random.default_rng(8)
    data = regression_clients(40, samples, 2, prior_variance=3.0, noise_variance=None, mean_scale=1.0, rng=rng)
    model = Paper(prior=(data.mean, 3.0)).fit(data.X, data.y, data.groups)
    node, mass = np.polynomial.hermite_e.hermegauss(100)
    theta = data.mean + np.sqrt(3.0) * np.array(np.meshgrid(node, node)).reshape(2, -1).T
    score = data.X @ theta.T
    rows = data.y[:, None] * score - np.logaddexp(0, score)
    weight = softmax(np.add.reduceat(rows, np.arange(0, len(rows), samples)) + np.log(np.outer(mass, mass).ravel()), 1)
    exact = weight @ theta
    deviation = np.sqrt(weight @ np.square(theta) - np.square(exact))
    assert np.abs((model.posterior_mean_ - exact) / deviation).max() < 0.03
    np.testing.assert_allclose(model.standard_errors_, deviation, rtol=0.002 if samples == 1 else 0.08)
    assert np.abs((model.coef_ - exact) / deviation).max() > 0.1
    risk = (np.square(deviation) + np.square(model.coef_ - exact)).sum(1)
    np.testing.assert_allclose(model.client_risk_, risk, rtol=0.002 if samples == 1 else 0.12)


@pytest.mark.parametrize("deviation", [1e-7, 0.3, 1.0, 1.9, 2.1, 5.0])
def test_tilted_slopes_are_those_of_the_log_integral(deviation):
    """Against a fine grid, for likely and most unlikely labels."""
    c = np.array([-40.0, -5.0, -1.0, 0.0, 1.0, 5.0]) * max(deviation, 1.0)
    slope, curve = tilted_slopes(c, np.full(6, deviation**2))
    s = c[:, None] + np.linspace(-12, 12 + deviation, 40_001) * deviation
    weight = softmax(log_expit(s) - np.square(s - c[:, None]) / (2 * deviation**2), axis=1)
    q = expit(-s)
    mean = (weight * q).sum(1)
    np.testing.assert_allclose(slope, mean, rtol=0.02, atol=0.001 / max(deviation, 1.0))
    np.testing.assert_allclose(
        curve,
        (weight * (q - np.square(q - mean[:, None]) - np.square(q))).sum(1),
        atol=0.01 / max(deviation, 1.0) ** 2,
    )


def test_agrees_with_scikit_learn_for_one_client():
    data = regression_clients(1, 200, 3, prior_variance=1.0, noise_variance=None, rng=np.random.default_rng(1))
    ours = Paper(prior=(0.0, 2.0)).fit(data.X, data.y, data.groups)
    theirs = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10).fit(data.X, data.y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    rows, groups = data.X[:5], data.groups[:5]
    np.testing.assert_allclose(ours.predict_proba(rows, groups), theirs.predict_proba(rows), atol=1e-5)


@pytest.mark.slow
def test_empirical_bayes_comes_close_to_the_known_prior():
    ratios, priors = [], []
    for seed in range(5):
        data = regression_clients(
            300, 30, 4, prior_variance=0.5, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(seed)
        )
        model = Paper().fit(data.X, data.y, data.groups)
        known = Paper(prior=(data.mean, 0.5)).fit(data.X, data.y, data.groups)
        alone = Paper(prior=(0.0, 1.0)).fit(data.X, data.y, data.groups)
        ratios.append([error(model, data) / error(known, data), error(alone, data) / error(known, data)])
        priors.append(model.prior_variance_)
    learned, local = np.mean(ratios, axis=0)
    assert learned < 1.06
    assert local > 1.15
    assert np.mean(priors) == pytest.approx(0.5, rel=0.2)


def test_the_population_is_that_of_the_exact_marginal_likelihood():
    """Two features: the marginal likelihood by quadrature; the intervals cover."""
    rng = np.random.default_rng(3)
    data = regression_clients(150, 20, 2, prior_variance=0.3, noise_variance=None, mean_scale=1.0, rng=rng)
    model = Paper().fit(data.X, data.y, data.groups)
    node, mass = np.polynomial.hermite_e.hermegauss(15)
    grid = np.array(np.meshgrid(node, node)).reshape(2, -1)
    log_mass = np.log(np.outer(mass, mass).ravel() / mass.sum() ** 2)

    def loss(point):
        score = data.X @ (point[:2, None] + np.exp(point[2] / 2) * grid)
        rows = data.y[:, None] * score - np.logaddexp(0, score)
        return -logsumexp(np.add.reduceat(rows, np.arange(0, 3000, 20)) + log_mass, axis=1).sum()

    exact = minimize(loss, [*model.mean_, np.log(0.3)], method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3}).x
    assert model.prior_variance_ == pytest.approx(np.exp(exact[2]), rel=0.05)
    np.testing.assert_allclose(model.mean_, exact[:2], atol=0.02)
    low, high = model.interval(0.9)
    assert 0.84 < ((low < data.truth) & (data.truth < high)).mean() < 0.95


def test_few_binary_rows_stay_finite_and_beat_the_clients_alone():
    """Fewer rows than features separate every client; Laplace's marginal likelihood then runs to σ_θ² = ∞."""
    data = regression_clients(
        400, 6, 10, prior_variance=0.2, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(2)
    )
    model = Paper().fit(data.X, data.y, data.groups)
    alone = Paper(prior=(0.0, 1.0)).fit(data.X, data.y, data.groups)
    assert 0.02 < model.prior_variance_ < 0.5
    assert error(model, data) < 0.4 * error(alone, data)


@pytest.mark.slow
def test_intervals_cover_with_fewer_rows_than_features():
    """A σ_θ² misjudged by half, as by Laplace's or a variational average, costs these intervals 17 percent."""
    covered, ratios = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        data = regression_clients(1000, 6, 10, prior_variance=1.0, noise_variance=None, mean_scale=1.0, rng=rng)
        model = Paper().fit(data.X, data.y, data.groups)
        low, high = model.interval(0.9)
        covered.append(((low < data.truth) & (data.truth < high)).mean())
        ratios.append(model.prior_variance_)
    assert abs(np.mean(covered) - 0.9) < 4 * np.std(covered) / np.sqrt(10) + 0.005
    assert np.std(covered) < 0.06
    assert np.exp(np.mean(np.log(ratios))) == pytest.approx(1.0, rel=0.25)


@pytest.mark.slow
def test_a_hundred_features_and_ten_rows():
    """(μ, σ_θ) up to a factor is all that such clients tell clearly; the factor must not run away."""
    rng = np.random.default_rng(0)
    data = regression_clients(2000, 10, 100, prior_variance=0.05, noise_variance=None, rng=rng)
    model = Paper().fit(data.X, data.y, data.groups)
    assert (
        abs(np.log(model.prior_variance_ / 0.05)) < 4 * 0.27
    )  # the standard error read off the likelihood's curvature
    assert error(model, data) == pytest.approx(model.risk_, rel=0.2)
    known = Paper(prior=(data.mean, 0.05)).fit(data.X, data.y, data.groups)
    assert error(model, data) < 1.05 * error(known, data)


def test_degenerate_rows_stay_finite():
    rng = np.random.default_rng(1)
    X, groups = rng.normal(size=(600, 3)), np.repeat(np.arange(20), 30)
    own = (X * rng.normal(size=(20, 3))[groups]).sum(1) > 0
    coin = rng.random(600) < 0.5
    cases = [(X, X[:, 0] > 0), (X, own), (np.ones((600, 1)), groups % 2), (X * 1e4, coin), (X * (X[:, :1] > 0), coin)]
    for rows, y in cases:
        for prior in ("estimate", (0.0, 1e6), (0.0, 1e-9)):
            model = Paper(prior=prior).fit(rows, y, groups)
            assert np.isfinite(model.interval()).all()
            assert np.isfinite(model.coef_).all()


def test_equal_clients_get_one_model():
    data = regression_clients(
        60, 20, 3, prior_variance=0.0, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(3)
    )
    model = Paper().fit(data.X, data.y, data.groups)
    pooled = LogisticRegression(C=1e4, fit_intercept=False).fit(data.X, data.y)
    assert model.weights_.mean() < 0.1
    assert np.abs(model.mean_ - pooled.coef_[0]).max() < 0.1


def test_gradient_with_known_prior_finds_the_same_modes():
    data = regression_clients(10, (2, 12), 3, prior_variance=0.5, noise_variance=None, rng=np.random.default_rng(4))
    newton = Paper(prior=(data.mean, 0.5)).fit(data.X, data.y, data.groups)
    for rate in (None, 0.05):
        slow = Paper(prior=(data.mean, 0.5), method="gradient", learning_rate=rate, max_iter=3000)
        np.testing.assert_allclose(slow.fit(data.X, data.y, data.groups).coef_, newton.coef_, atol=1e-6)


def test_algorithm_3_collapses_when_the_prior_is_unknown():
    data = regression_clients(
        100, 30, 3, prior_variance=0.5, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(5)
    )
    gradient = Paper(method="gradient").fit(data.X, data.y, data.groups)
    assert gradient.prior_variance_ < 1e-4
    assert error(gradient, data) > 1.5 * error(Paper().fit(data.X, data.y, data.groups), data)


def test_labels_names_and_new_clients():
    rng = np.random.default_rng(6)
    data = regression_clients(40, 25, 2, prior_variance=0.3, noise_variance=None, mean_scale=1.0, rng=rng)
    names = np.array([f"c{g:02d}" for g in data.groups], dtype=object)
    model = LogisticModels().fit(data.X, np.where(data.y > 0, "yes", "no"), names)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(data.X, np.where(data.y > 0, "yes", "no"), names) > 0.6
    chance = model.predict_proba(data.X[:3], ["new"] * 3)
    np.testing.assert_allclose(chance[:, 1], 1 / (1 + np.exp(-(data.X[:3] @ model.mean_ + model.mean_intercept_))))
    np.testing.assert_allclose(chance.sum(1), 1)


def test_clients_with_one_label_only():
    X = np.random.default_rng(7).normal(size=(30, 2))
    model = Paper().fit(X, np.repeat([0, 1, 1], 10), np.repeat([0, 1, 2], 10))
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize(
    ("y", "groups", "message"),
    [
        ([0, 1, 2, 0], [0, 0, 1, 1], "exactly two labels"),
        ([0, 0, 0, 0], [0, 0, 1, 1], "exactly two labels"),
        ([0, 1, 0, 1], [0, 0, 0, 0], "two or more clients"),
        ([0, 1, 0], [0, 0, 1, 1], "one row each"),
    ],
)
def test_bad_input_gets_a_clear_sentence(y, groups, message):
    with pytest.raises(ValueError, match=message):
        Paper().fit(np.random.default_rng(0).normal(size=(4, 2)), y, groups)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1e4])
def test_the_unit_of_the_features_does_not_matter(size):
    data = regression_clients(
        40, 10, 3, prior_variance=0.5, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(0)
    )
    one, other = (Paper().fit(data.X * s, data.y, data.groups) for s in (1.0, size))
    np.testing.assert_allclose(other.coef_ * size, one.coef_, rtol=1e-6)
    np.testing.assert_allclose(other.mean_ * size, one.mean_, rtol=1e-6)
    np.testing.assert_allclose(other.standard_errors_ * size, one.standard_errors_, rtol=1e-6)


@pytest.mark.parametrize("rows", [3, 8])
def test_the_error_of_the_mean_goes_through_the_whole_matrix(rows):
    """θ̂_i(μ) is differentiated numerically: diag A C Aᵀ with A = ∂θ̂_i/∂μ, the sites held."""
    r = np.random.default_rng(0)
    X = r.normal(size=(rows, 5)) @ np.linalg.cholesky(0.9 * np.ones((5, 5)) + 0.1 * np.eye(5)).T
    (block,) = make_blocks(group_rows(X, r.integers(2, size=rows), np.zeros(rows)))
    C = np.cov(r.normal(size=(5, 20)))
    _, _, variance, left = client_posteriors(block, Population(np.zeros(5), 0.8, covariance=C))
    post = settle(block, np.zeros(5), 0.8, laplace_sites(block, np.zeros(5), np.zeros((1, block.rank))))
    A = np.stack([mean + block.spread(move(block, mean, post).beta)[0] for mean in np.eye(5)], axis=1)
    A -= block.spread(post.beta)[0][:, None]
    np.testing.assert_allclose(variance[0], 0.8 * left[0] + np.diag(A @ C @ A.T), rtol=1e-3)


@pytest.mark.parametrize("gap", [np.nan, None])
def test_a_missing_label_gets_one_sentence(gap):
    y = np.array([0, 1, gap, 1, 0, 1], dtype=object if gap is None else float)
    with pytest.raises(ValueError, match="y must be one column of numbers or words"):
        Paper().fit(np.ones((6, 1)), y, [0, 0, 0, 1, 1, 1])


def test_one_huge_row_does_not_change_the_other_features():
    data = regression_clients(
        40, 10, 3, prior_variance=0.1, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(0)
    )
    plain = Paper().fit(data.X, data.y, data.groups)
    model = Paper().fit(np.vstack([data.X, [1e6, 0, 0]]), np.append(data.y, 1), np.append(data.groups, 0))
    assert np.isfinite(model.standard_errors_).all()
    np.testing.assert_allclose(model.mean_[1:], plain.mean_[1:], atol=0.3)


def test_intervals_lie_about_the_posterior_mean():
    data = regression_clients(
        8, 6, 3, prior_variance=2.0, noise_variance=None, mean_scale=1.0, rng=np.random.default_rng(0)
    )
    model = LogisticModels(prior=(data.mean, 2.0), fit_intercept=False).fit(data.X, data.y, data.groups)
    low, high = model.interval(0.9)
    np.testing.assert_allclose((low + high) / 2, model.posterior_mean_)
    np.testing.assert_allclose(high - low, 2 * 1.6448536 * model.standard_errors_)
    assert np.abs(model.posterior_mean_ - model.coef_).max() > 0.2  # posteriors of binary data are skew
