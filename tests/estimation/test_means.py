"""Theorems 1 and 2: the closed-form risk is reached, the weights are optimal, and the edges are refused or handled."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from coterie.estimation.means import GaussianMeans, combine
from coterie.estimation.quantiser import Quantiser, clipping_radius
from reproductions.generate import gaussian_clients
from reproductions.private_means import printed_radius


class Noise:
    """Additive Gaussian noise as a mechanism."""

    def __init__(self, deviation, radius=np.inf):
        self.variance, self.radius = deviation**2, radius

    def __call__(self, x, rng):
        return x + np.sqrt(self.variance) * rng.standard_normal(x.shape)


def gaussian_risk(
    *,
    clients: int,
    samples: float,
    dimension: int = 1,
    prior_variance: float,
    noise_variance: float,
    mechanism_variance: float = 0.0,
) -> float:
    """E‖θ̂_i − θ_i‖² for equal n: d·v·(a + (1−a)/m), an equality (erratum E01). Local estimation has d·v."""
    noise = np.full(clients, noise_variance / samples)
    return dimension * float(combine(noise, prior_variance, mechanism_variance).risk[0])


def test_closed_form_risks():
    assert gaussian_risk(clients=10, samples=5, dimension=3, prior_variance=1, noise_variance=1) == pytest.approx(0.51)
    ratio = gaussian_risk(clients=10_000, samples=100, prior_variance=1e-3, noise_variance=10) / (10 / 100)
    assert ratio == pytest.approx(0.0100, abs=1e-4)
    risk = gaussian_risk(
        clients=20, samples=5, dimension=3, prior_variance=0.25, noise_variance=1, mechanism_variance=4
    )
    assert risk == pytest.approx(0.42741, abs=1e-5)
    assert combine(np.full(20, 0.2), 0.25, 4.0).own[0] == pytest.approx(0.69721, abs=1e-5)


@pytest.mark.parametrize(
    ("delta", "expected"),
    [(1e-5, (0.01642, 0.01573, 0.01372, 0.01029)), (1e-4, (0.01636, 0.01554, 0.01326, 0.00979))],
)
def test_closed_form_risk_of_the_private_figure(delta, expected):
    model = {"clients": 10_000, "samples": 15, "prior_variance": 0.01, "noise_variance": 0.25}
    assert gaussian_risk(**model) == pytest.approx(0.006251, abs=1e-6)
    b = printed_radius(**model)
    assert b == pytest.approx(1.0531, abs=1e-4)
    for epsilon, risk in zip((0.1, 0.2, 0.4, 0.8), expected, strict=True):
        noise = (b / epsilon) ** 2 * 8 * np.log(2 / delta)
        assert gaussian_risk(**model, mechanism_variance=noise) == pytest.approx(risk, abs=1e-5)


@pytest.mark.parametrize("mechanism", [None, Noise(2.0)])
def test_simulated_risk_is_the_closed_form(mechanism):
    rng = np.random.default_rng(0)
    prior, m = (1.0, 10) if mechanism is None else (0.25, 20)
    errors = []
    for seed in range(800):
        data = gaussian_clients(m, 5, 3, prior_variance=prior, noise_variance=1.0, rng=rng)
        model = GaussianMeans(prior, 1.0, mechanism, random_state=seed).fit(data.samples)
        errors.append(np.square(model.estimates_ - data.truth).sum(1).mean())
    margin = 4 * np.std(errors) / np.sqrt(len(errors))
    assert abs(np.mean(errors) - model.risk_) < margin
    assert margin < 0.05 * model.risk_


def test_ragged_clients_reach_their_own_risk_and_beat_equal_weights():
    rng = np.random.default_rng(1)
    sizes = np.array([1, 1, 2, 50] * 5)
    errors, equal = np.zeros((600, 20)), np.zeros((600, 20))
    for t in range(600):
        truth = rng.normal(3.0, 1.0, 20)
        samples = [rng.normal(x, 2.0, n) for x, n in zip(truth, sizes, strict=True)]
        model = GaussianMeans(1.0, 4.0).fit(samples)
        errors[t] = np.square(model.estimates_ - truth)
        means = np.array([s.mean() for s in samples])
        equal[t] = np.square(model.weights_ * means + (1 - model.weights_) * means.mean() - truth)
    error = errors.mean(0)
    assert np.all(np.abs(error - model.client_risk_) < 4.5 * errors.std(0) / np.sqrt(600))
    assert errors.mean() < equal.mean()  # the precision-weighted mean is the better centre
    assert model.weights_[3] > 0.9 > 0.3 > model.weights_[0]


def test_variances_are_estimated_and_intervals_cover():
    data = gaussian_clients(
        3000, (1, 9), 2, prior_variance=0.5, noise_variance=2.0, mean=1, rng=np.random.default_rng(2)
    )
    model = GaussianMeans().fit(data.samples)
    assert model.prior_variance_ == pytest.approx(0.5, rel=0.1)
    assert model.noise_variance_ == pytest.approx(2.0, rel=0.05)
    low, high = model.interval(0.9)
    covered = ((low < data.truth) & (data.truth < high)).mean()
    assert abs(covered - 0.9) < 4 * np.sqrt(0.09 / 6000) + 0.005
    assert model.risk_ < 0.6 * model.local_risk_


def test_equal_n_uses_the_moment_estimates_of_the_theorem():
    block = np.random.default_rng(3).normal(size=(6, 4, 2)) + np.arange(6)[:, None, None]
    model = GaussianMeans().fit(block)
    means = block.mean(1)
    noise = np.square(block - means[:, None]).sum() / (6 * 3 * 2)
    prior = np.square(means - means.mean(0)).sum() / (5 * 2) - noise / 4
    assert model.noise_variance_ == pytest.approx(noise)
    assert model.prior_variance_ == pytest.approx(prior)
    a = prior / (prior + noise / 4)
    np.testing.assert_allclose(model.estimates_, a * means + (1 - a) * means.mean(0))
    np.testing.assert_allclose(GaussianMeans().fit(list(block)).estimates_, model.estimates_)


def test_joint_map_is_not_what_we_estimate():
    """Erratum E19: the joint-MAP fixed point of σ_θ² is far from the truth V − v that the moment estimate finds."""

    def joint_map(v, V):
        prior = V
        for _ in range(20_000):
            prior = (prior / (prior + v)) ** 2 * V
        return prior

    for V, fixed in ((0.3, 0.0), (0.5, 0.261803), (1.1, 0.888748)):
        assert joint_map(0.1, V) == pytest.approx(fixed, abs=1e-4)
        means = np.array([-1.0, 1.0]) * np.sqrt(V / 2)  # sample variance V with m − 1
        samples = means[:, None] + np.sqrt(0.1) * np.array([[-1.0, 1.0]])  # σ_x² = .2, n = 2, v = .1
        assert GaussianMeans().fit(samples).prior_variance_ == pytest.approx(V - 0.1)


def test_zero_mechanism_is_the_plain_estimator_and_quantiser_costs_little():
    data = gaussian_clients(50, 5, 2, prior_variance=1.0, noise_variance=1.0, rng=np.random.default_rng(4))
    plain = GaussianMeans(1.0, 1.0).fit(data.samples)
    np.testing.assert_allclose(GaussianMeans(1.0, 1.0, Noise(0.0)).fit(data.samples).estimates_, plain.estimates_)
    radius = clipping_radius(clients=50, samples=5, dimension=2, prior_variance=1, noise_variance=1)
    coarse = GaussianMeans(1.0, 1.0, Quantiser(8, radius)).fit(data.samples)
    assert coarse.clipped_ == 0
    assert np.abs(coarse.estimates_ - plain.estimates_).max() < 0.05
    assert GaussianMeans(1.0, 1.0, Quantiser(8, 0.1)).fit(data.samples).clipped_ > 10


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=8),
    st.floats(0, 5),
    st.floats(0.1, 5),
    st.floats(-10, 10),
    st.integers(0, 100),
)
def test_shift_order_and_range(sizes, prior, noise, shift, seed):
    rng = np.random.default_rng(seed)
    samples = [rng.normal(size=(n, 2)) for n in sizes]
    model = GaussianMeans(prior, noise).fit(samples)
    moved = GaussianMeans(prior, noise).fit([s + shift for s in samples])
    np.testing.assert_allclose(moved.estimates_, model.estimates_ + shift, atol=1e-9)
    back = GaussianMeans(prior, noise).fit(samples[::-1])
    np.testing.assert_allclose(back.estimates_[::-1], model.estimates_, atol=1e-9)
    assert ((model.weights_ >= 0) & (model.weights_ <= 1)).all()
    assert model.risk_ <= model.local_risk_ + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 3), st.floats(0, 3), st.lists(st.floats(0.05, 3), min_size=3, max_size=6), st.floats(0, 1))
def test_no_other_weight_has_less_risk(prior, quantising, noise, other):
    v = np.array(noise)
    best = combine(v, prior, quantising)
    total = prior + v + quantising
    gap = best.shares**2 @ total + prior * (1 - 2 * best.shares)
    risk = other**2 * v + (1 - other) ** 2 * gap + 2 * other * (1 - other) * best.shares * v
    assert (risk >= best.risk - 1e-12).all()


def test_edges():
    alone = GaussianMeans(1.0, 1.0).fit([np.array([2.0, 4.0])])
    assert alone.estimates_.tolist() == [3.0]
    assert alone.risk_ == pytest.approx(0.5)
    same = GaussianMeans().fit(np.ones((4, 3)))
    assert same.estimates_.tolist() == [1.0] * 4
    one_each = GaussianMeans(noise_variance=1.0).fit(np.array([[0.0], [4.0], [9.0]]))
    assert 0 < one_each.weights_[0] < 1
    assert GaussianMeans(0.0, 1.0).fit([[1.0], [3.0]]).estimates_.tolist() == [2.0, 2.0]
    assert clone(GaussianMeans(1.0, 2.0)).get_params()["noise_variance"] == 2.0


@pytest.mark.parametrize(
    ("samples", "kwargs", "message"),
    [
        ([[1.0], [2.0]], {}, "two or more samples"),
        ([[1.0, 2.0]], {}, "two or more clients"),
        ([[1.0, np.nan], [1.0]], {}, "finite"),
        ([[1.0], []], {}, "client 1 has none"),
        ([], {}, "empty list"),
        ([np.ones((2, 2)), np.ones((2, 3))], {}, "one d for all"),
        (np.ones(3), {}, r"\(m, n, d\)"),
        (["ab", "c"], {}, "numbers"),
        ("abc", {}, "list of arrays"),
        (np.ones((3, 3)), {"noise_variance": -1.0}, "at least 0"),
        (np.ones((3, 3)), {"mechanism": Quantiser(2)}, "both variances"),
    ],
)
def test_bad_input_gets_a_clear_sentence(samples, kwargs, message):
    with pytest.raises(ValueError, match=message):
        GaussianMeans(**kwargs).fit(samples)


def test_interval_needs_a_fit_and_a_level():
    with pytest.raises(ValueError, match="not fitted yet"):
        GaussianMeans().interval()
    with pytest.raises(ValueError, match="between 0 and 1"):
        GaussianMeans().fit(np.random.default_rng(0).normal(size=(3, 3))).interval(95)
