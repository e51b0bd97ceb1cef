"""Theorem 6 and Algorithm 2: exact posterior, empirical Bayes against the known prior, the collapse of joint MAP."""

import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from coterie.estimation.regression.gradient import descend
from coterie.estimation.regression.grouped import group_rows
from coterie.estimation.regression.linear import LinearModels
from coterie.estimation.regression.spherical import Free, Population
from reproductions.generate import regression_clients

Paper = partial(LinearModels, fit_intercept=False, covariance_type="spherical")  # the model of Theorem 6


def error(model, data):
    return float(np.square(model.coef_ - data.truth).sum(1).mean())


def posterior(X, y, mean, prior, noise):
    """Theorem 6 as printed."""
    M = np.eye(X.shape[1]) / prior + X.T @ X / noise
    return np.linalg.solve(M, X.T @ y / noise + mean / prior), np.linalg.inv(M)


@pytest.mark.parametrize("samples", [3, 8, (1, 12)])  # fewer rows than features, more, ragged
def test_known_prior_is_theorem_6(samples):
    rng = np.random.default_rng(0)
    data = regression_clients(30, samples, 5, prior_variance=0.5, noise_variance=0.3, mean_scale=1.0, rng=rng)
    model = Paper(prior=(data.mean, 0.5), noise_variance=0.3).fit(data.X, data.y, data.groups)
    for i in range(30):
        mine = data.groups == i
        theta, covariance = posterior(data.X[mine], data.y[mine], data.mean, 0.5, 0.3)
        np.testing.assert_allclose(model.coef_[i], theta, atol=1e-9)
        np.testing.assert_allclose(model.standard_errors_[i], np.sqrt(np.diag(covariance)), atol=1e-9)
        assert model.client_risk_[i] == pytest.approx(np.trace(covariance))
        assert model.weights_[i] == pytest.approx(1 - np.trace(covariance) / (5 * 0.5))


@pytest.mark.parametrize(
    ("d", "prior", "noise", "local", "known"),
    [
        (50, 0.01, 0.05, 1.07, 0.468),
        (100, 0.01, 0.05, 1.79, 0.951),
        (50, 0.05, 0.01, 2.47, 2.046),
        (100, 0.05, 0.01, 5.37, 4.52),
    ],
)
def test_closed_form_table(d, prior, noise, local, known):
    """n = 10 rows, μ entries N(0, .1²), X entries N(0, .05); the local risk depends on the μ drawn."""
    data = regression_clients(
        1500, 10, d, prior_variance=prior, noise_variance=noise, feature_variance=0.05, rng=np.random.default_rng(0)
    )
    model = Paper(prior=(data.mean, prior), noise_variance=noise).fit(data.X, data.y, data.groups)
    assert model.risk_ == pytest.approx(known, rel=0.004)
    spread = 0.01 * np.sqrt(2 * d)  # deviation of ‖μ‖², of which (1 − n/d) enters the local risk
    assert model.local_risk_ == pytest.approx(local, abs=4 * spread * (1 - 10 / d) + 0.02)
    assert error(model, data) == pytest.approx(model.risk_, rel=0.02)
    pinv = np.stack([np.linalg.pinv(data.X[i * 10 : i * 10 + 10]) @ data.y[i * 10 : i * 10 + 10] for i in range(300)])
    assert np.square(pinv - data.truth[:300]).sum(1).mean() == pytest.approx(model.local_risk_, rel=0.06)


def test_full_rank_check():
    data = regression_clients(
        4000, 20, 3, prior_variance=0.05, noise_variance=0.01, feature_variance=0.05, rng=np.random.default_rng(1)
    )
    model = Paper(prior=(data.mean, 0.05), noise_variance=0.01).fit(data.X, data.y, data.groups)
    assert model.local_risk_ == pytest.approx(0.0375, rel=0.03)
    assert model.risk_ == pytest.approx(0.0287, rel=0.03)


def test_em_comes_close_to_the_known_prior():
    rows = []
    for seed in range(10):
        data = regression_clients(
            400, 6, 4, prior_variance=0.25, noise_variance=1.0, mean_scale=1.0, rng=np.random.default_rng(seed)
        )
        model = Paper().fit(data.X, data.y, data.groups)
        known = Paper(prior=(data.mean, 0.25), noise_variance=1.0).fit(data.X, data.y, data.groups)
        rows.append([error(model, data), error(known, data), model.prior_variance_, model.noise_variance_])
    em, known_error, prior, noise = np.array(rows).T
    assert em.mean() == pytest.approx(0.533, rel=0.06)
    assert known_error.mean() == pytest.approx(0.530, rel=0.06)
    assert 1 < em.mean() / known_error.mean() < 1.02
    assert abs(prior.mean() - 0.25) < 4 * prior.std() / np.sqrt(10) + 0.003
    assert abs(noise.mean() - 1.0) < 4 * noise.std() / np.sqrt(10) + 0.005


def test_the_fit_is_a_fixed_point_of_em():
    """L-1em's own updates leave the result alone: the Fisher steps are only a shortcut to the same place."""
    data = regression_clients(
        200, (2, 9), 4, prior_variance=0.5, noise_variance=1.0, mean_scale=1.0, rng=np.random.default_rng(2)
    )
    model = Paper(tol=1e-10).fit(data.X, data.y, data.groups)
    prior, noise = model.prior_variance_, model.noise_variance_
    moved = left = 0.0
    for i in range(200):
        X, y = data.X[data.groups == i], data.y[data.groups == i]
        theta, covariance = posterior(X, y, model.mean_, prior, noise)
        np.testing.assert_allclose(theta, model.coef_[i], atol=1e-8)
        moved += np.square(theta - model.mean_).sum() + np.trace(covariance)
        left += np.square(y - X @ theta).sum() + np.trace(X.T @ X @ covariance)
    assert moved / (200 * 4) == pytest.approx(prior, rel=1e-6)
    assert left / len(data.y) == pytest.approx(noise, rel=1e-6)
    np.testing.assert_allclose(model.coef_.mean(0), model.mean_, atol=1e-7)


def test_joint_map_collapses_to_the_global_mean():
    data = regression_clients(
        400, 6, 4, prior_variance=0.25, noise_variance=1.0, mean_scale=1.0, rng=np.random.default_rng(0)
    )
    gradient = Paper(method="gradient").fit(data.X, data.y, data.groups)
    em = Paper().fit(data.X, data.y, data.groups)
    assert gradient.prior_variance_ < 1e-6
    assert error(gradient, data) == pytest.approx(np.square(data.truth - data.mean).sum(1).mean(), rel=0.03)
    assert error(gradient, data) > 1.7 * error(em, data)


def test_gradient_with_known_prior_converges_to_theorem_6():
    data = regression_clients(20, (2, 9), 3, prior_variance=0.5, noise_variance=0.5, rng=np.random.default_rng(1))
    exact = Paper(prior=(data.mean, 0.5), noise_variance=0.5).fit(data.X, data.y, data.groups)
    for rate in (None, 0.02):
        slow = Paper(prior=(data.mean, 0.5), noise_variance=0.5, method="gradient", learning_rate=rate, max_iter=2000)
        np.testing.assert_allclose(slow.fit(data.X, data.y, data.groups).coef_, exact.coef_, atol=1e-6)


def test_gradient_step_follows_the_objective():
    """One small step of Algorithm 2 is −η times the finite differences of objective (19)."""
    rng = np.random.default_rng(3)
    data = regression_clients(4, 5, 2, prior_variance=0.5, noise_variance=0.5, rng=rng)
    rows = group_rows(data.X, data.y, data.groups)
    theta, state = rng.normal(size=(4, 2)), Population(rng.normal(size=2), 0.7, 0.9)

    def objective(theta, mean, log_prior, log_noise):
        residual = np.square(rows.y - (rows.X * theta[rows.owner]).sum(1)).sum()
        prior = np.square(theta - mean).sum() / (2 * np.exp(log_prior)) + 4 * 2 / 2 * log_prior
        return residual / (2 * np.exp(log_noise)) + len(rows.y) / 2 * log_noise + prior

    eta, h = 1e-6, 1e-6
    moved_to, new = descend(rows, state, Free(True, True, True), 1, eta, theta=theta)
    logs = np.log([0.7, 0.9])

    def slope(**change):
        base = {"theta": theta, "mean": state.mean, "log_prior": logs[0], "log_noise": logs[1]}
        up, down = ({**base, **{k: base[k] + s * h * v for k, v in change.items()}} for s in (1, -1))
        return (objective(**up) - objective(**down)) / (2 * h)

    direction = rng.normal(size=(4, 2))
    moved = (theta - moved_to) / eta
    assert (moved * direction).sum() == pytest.approx(slope(theta=direction), rel=1e-5)
    assert (state.mean - new.mean)[0] / eta * 4 == pytest.approx(slope(mean=np.array([1.0, 0.0])), rel=1e-4)
    assert (logs[0] - np.log(new.prior_variance)) / eta * 4 == pytest.approx(slope(log_prior=1.0), rel=1e-4)
    assert (logs[1] - np.log(new.noise_variance)) / eta * 4 == pytest.approx(slope(log_noise=1.0), rel=1e-4)


def test_intercept_names_prediction_and_coverage():
    rng = np.random.default_rng(4)
    groups = np.repeat([f"shop {i:03d}" for i in range(300)], 8)
    theta = rng.normal([5.0, 1.0, -1.0], 0.5, (300, 3))
    X = rng.normal(size=(2400, 2))
    owner = np.repeat(np.arange(300), 8)
    y = theta[owner, 0] + (X * theta[owner, 1:]).sum(1) + rng.normal(size=2400)
    shuffled = rng.permutation(2400)
    model = LinearModels().fit(X[shuffled], y[shuffled], groups[shuffled])
    assert model.coef_.shape == (300, 2)
    assert model.clients_[7] == "shop 007"
    assert model.mean_intercept_ == pytest.approx(5, abs=0.2)
    low, high = model.interval(0.9)
    assert abs(((low < theta[:, 1:]) & (theta[:, 1:] < high)).mean() - 0.9) < 0.05
    seen = model.predict(X, groups)
    np.testing.assert_allclose(seen[9], model.intercept_[1] + X[9] @ model.coef_[1])
    np.testing.assert_allclose(
        model.predict(X[:2], ["nobody", "shop 999"]), model.mean_intercept_ + X[:2] @ model.mean_
    )
    assert model.score(X, y, groups) > 0.5
    assert clone(model).fit_intercept


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 1000))
def test_row_order_does_not_matter(clients, d, seed):
    rng = np.random.default_rng(seed)
    data = regression_clients(clients, (2, 9), d, prior_variance=0.5, noise_variance=0.5, rng=rng)
    order = rng.permutation(len(data.y))
    kwargs = {"prior": (0.0, 1.0), "noise_variance": 0.5}
    one = Paper(**kwargs).fit(data.X, data.y, data.groups)
    two = Paper(**kwargs).fit(data.X[order], data.y[order], data.groups[order])
    np.testing.assert_allclose(one.coef_, two.coef_, atol=1e-8)
    assert (one.client_risk_ <= d + 1e-9).all()  # never above the prior's


def test_equal_clients_get_the_pooled_fit():
    data = regression_clients(
        100, 8, 3, prior_variance=0.0, noise_variance=1.0, mean_scale=1.0, rng=np.random.default_rng(5)
    )
    model = Paper().fit(data.X, data.y, data.groups)
    pooled = np.linalg.lstsq(data.X, data.y)[0]
    assert np.abs(model.mean_ - pooled).max() < 0.05
    assert model.weights_.mean() < 0.15


def test_columns_of_zeros_and_repeats_do_no_harm():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(60, 2))
    X = np.column_stack([X, X[:, 0], np.zeros(60)])
    model = Paper().fit(X, X @ [1.0, 2.0, 0.0, 0.0] + 0.1 * rng.normal(size=60), np.repeat(np.arange(6), 10))
    assert np.isfinite(model.coef_).all()
    np.testing.assert_allclose(model.coef_[:, 3], 0, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "kwargs", "message"),
    [
        ({"X": np.full((6, 2), np.nan)}, {}, "finite"),
        ({"X": np.ones(6)}, {}, "Expected 2D array"),
        ({"y": np.ones(5)}, {}, "one row each"),
        ({"groups": np.zeros(6)}, {}, "two or more clients"),
        ({"groups": np.array([0, 0, 1, 1, np.nan, 1])}, {}, "groups must be one column .*none of them missing"),
        (
            {"groups": np.array(["a", None, "b", "b", "a", "b"], dtype=object)},
            {},
            "groups must be one column .*none of them missing",
        ),
        ({"X": np.zeros((6, 2))}, {}, "zero everywhere"),
        ({"X": np.ones((6, 1)), "groups": np.arange(6)}, {}, "cannot be separated"),
        ({}, {"prior": "guess"}, "'estimate'"),
        ({}, {"prior": (0.0, 0.0)}, "variance > 0"),
        ({}, {"prior": (np.zeros(3), 1.0)}, "known prior"),
        ({}, {"noise_variance": 0.0}, "above 0"),
        ({}, {"method": "sgd"}, "'em', 'gradient'"),
    ],
)
def test_bad_input_gets_a_clear_sentence(change, kwargs, message):
    rng = np.random.default_rng(0)
    data = {"X": rng.normal(size=(6, 2)), "y": rng.normal(size=6), "groups": np.array([0, 0, 0, 1, 1, 1]), **change}
    with pytest.raises(ValueError, match=message):
        Paper(**kwargs).fit(**data)


def test_predict_checks():
    rng = np.random.default_rng(0)
    model = Paper().fit(rng.normal(size=(20, 2)), rng.normal(size=20), np.repeat([0, 1, 2, 3], 5))
    with pytest.raises(ValueError, match="X has 3 features, but LinearModels is expecting 2"):
        model.predict(np.ones((2, 3)), [0, 1])
    with pytest.raises(ValueError, match="type used in fit"):
        model.predict(np.ones((2, 2)), ["a", "b"])
    with pytest.raises(ValueError, match="one client per row"):
        model.predict(np.ones((2, 2)), [0])
    with pytest.raises(ValueError, match="not fitted yet"):
        LinearModels().predict(np.ones((2, 2)), [0, 1])


@pytest.mark.slow
def test_ten_thousand_clients_take_seconds():
    data = regression_clients(
        10_000, 10, 100, prior_variance=0.05, noise_variance=0.01, feature_variance=0.05, rng=np.random.default_rng(0)
    )
    start = time.perf_counter()
    model = Paper().fit(data.X, data.y, data.groups)
    assert time.perf_counter() - start < 30
    assert error(model, data) < 1.01 * 4.53


@pytest.mark.parametrize("samples", [2, 8, (1, 12)])
def test_risk_and_deviations_count_the_error_of_the_mean_where_features_correlate(samples):
    """The flat-μ posterior M⁻¹ + A C Aᵀ with A = M⁻¹/σ_θ², client by client."""
    rng = np.random.default_rng(0)
    data = regression_clients(12, samples, 4, prior_variance=0.4, noise_variance=0.7, mean_scale=1.0, rng=rng)
    X = data.X @ np.linalg.cholesky(0.95 * np.ones((4, 4)) + 0.05 * np.eye(4)).T
    model = Paper().fit(X, data.y, data.groups)
    prior, noise = model.prior_variance_, model.noise_variance_
    M = [np.linalg.inv(np.eye(4) / prior + X[data.groups == i].T @ X[data.groups == i] / noise) for i in range(12)]
    C = np.linalg.inv(sum((np.eye(4) - Mi / prior) / prior for Mi in M))
    exact = np.array([np.diag(Mi + Mi @ C @ Mi / prior**2) for Mi in M])
    np.testing.assert_allclose(model.standard_errors_**2, exact, rtol=2e-3)
    np.testing.assert_allclose(model.client_risk_, exact.sum(1), rtol=2e-3)


def test_score_of_a_constant_y_is_scikit_learn_s():
    X, groups = np.arange(12.0).reshape(6, 2), np.repeat([0, 1, 2], 2)
    model = Paper(prior=(0.0, 1.0), noise_variance=1.0).fit(X, np.arange(6.0), groups)
    assert model.score(X, np.ones(6), groups) == 0.0
    assert model.score(0 * X, np.zeros(6), groups) == 1.0
