"""E-2q: unbiased, within the variance bound; and the clipping radius of Theorem 2, printed and corrected."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.estimation.quantiser import Quantiser, VectorQuantiser, clipping_radius, sent
from reproductions.private_means import printed_radius


def variance_at(q, x):
    """The exact variance at x: (2b/L)² f(1−f), with f the fractional part of L(x+b)/(2b)."""
    fraction = np.modf(q.levels * (x + q.radius) / (2 * q.radius))[0]
    return (2 * q.radius / q.levels) ** 2 * fraction * (1 - fraction)


def test_mean_and_variance_at_a_point():
    q = Quantiser(2, 1.0)
    draws = q(np.full(200_000, 0.37), np.random.default_rng(0))
    assert float(variance_at(q, 0.37)) == pytest.approx(0.0231, abs=1e-4)
    assert abs(draws.mean() - 0.37) < 4 * np.sqrt(0.0231 / 200_000)
    assert draws.var() == pytest.approx(0.0231, rel=0.03)
    assert q.variance == pytest.approx(1 / 9)
    assert len(np.unique(draws)) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.floats(0.01, 100), st.floats(-1, 1), st.integers(0, 50))
def test_rounds_to_a_neighbour_and_bounds_the_variance(bits, radius, where, seed):
    q, x = Quantiser(bits, radius), where * radius
    codes = q.encode(np.full(10, x), np.random.default_rng(seed))
    assert codes.min() >= 0
    assert codes.max() <= q.levels
    assert np.abs(q.decode(codes) - x).max() <= 2 * radius / q.levels * (1 + 1e-9)
    assert float(variance_at(q, x)) <= q.variance * (1 + 1e-9)


def test_ends_are_exact():
    q = Quantiser(3, 2.0)
    np.testing.assert_allclose(q([-2.0, 2.0], np.random.default_rng(0)), [-2.0, 2.0])


def test_printed_radius_clips_too_often_and_ours_does_not():
    model = {"clients": 100, "samples": 10, "prior_variance": 1.0, "noise_variance": 1e-12}
    means = np.random.default_rng(0).standard_normal((20_000, 100))
    clipped = [(np.abs(means) > radius(**model)).any(1).mean() for radius in (printed_radius, clipping_radius)]
    assert clipped[0] == pytest.approx(0.068, abs=0.008)  # the paper claims at most .002
    assert clipped[1] <= 2 / 1000


@pytest.mark.parametrize(("bits", "radius"), [(0, 1.0), (1.5, 1.0), (60, 1.0), (2, 0.0), (2, np.nan)])
def test_refuses_bad_parameters(bits, radius):
    with pytest.raises(ValueError, match=r"bits|radius"):
        Quantiser(bits, radius)


def test_refuses_values_outside():
    with pytest.raises(ValueError, match="Clip x first"):
        Quantiser(2, 1.0)([1.5], np.random.default_rng(0))
    with pytest.raises(ValueError, match="samples must be a finite number of at least 1"):
        clipping_radius(clients=2, samples=0, prior_variance=1, noise_variance=1)


def test_a_vector_quantiser_is_unbiased_and_reaches_its_variance():
    q, x = VectorQuantiser(3, 2.0), np.array([0.9, -1.0, 0.0, 0.2, 0.4])
    draws = q(np.broadcast_to(x, (100_000, 5)), np.random.default_rng(0))
    assert (np.abs(draws.mean(0) - x) < 4 * draws.std(0) / np.sqrt(len(draws))).all()
    assert np.square(draws - x).sum(1).mean() / 5 == pytest.approx((4 - x @ x / 5) / 3, rel=0.02)
    assert q.variance >= np.square(draws - x).sum(1).mean() / 5
    assert len(np.unique(VectorQuantiser(1, 2.0)(draws[:50] / 20, np.random.default_rng(1)), axis=0)) <= 10
    assert q.bits(5) == 3 * 4


def test_what_is_sent_is_clipped_to_the_ball_or_the_box():
    rows = np.array([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(sent(VectorQuantiser(200_000, 1.0), rows, 0)[0], [[0.6, 0.8], [0.3, 0.4]], atol=0.02)
    np.testing.assert_allclose(sent(Quantiser(20, 1.0), rows, 0)[0], [[1.0, 1.0], [0.3, 0.4]], atol=1e-5)
    assert {sent(kind, rows, 0)[1] for kind in (VectorQuantiser(5, 1.0), Quantiser(5, 1.0))} == {1}
    with pytest.raises(ValueError, match="norm_bound"):
        VectorQuantiser(2, 1.0)([0.8, 0.8], np.random.default_rng(0))
