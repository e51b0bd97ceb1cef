"""Generators: the truth that is returned is the truth that made the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.datasets import blobs, cluster_quadratics, linear_model
from coterie.errors import ConfigError, DataError


def cluster_data(fed: object, k: int) -> tuple[np.ndarray, np.ndarray]:
    owner = np.repeat(fed.clusters, fed.n_samples)  # type: ignore[attr-defined]
    return fed.x.numpy()[owner == k], fed.y.numpy()[owner == k]  # type: ignore[attr-defined]


def test_least_squares_with_known_clusters_has_the_textbook_error() -> None:
    """E‖θ̂ − θ*‖² = σ² d / (N − d − 1) for Gaussian features; four standard errors over 40 draws."""
    d, sigma, errors = 20, 0.5, []
    for seed in range(20):
        fed, truth = linear_model(
            clients=10, samples=20, features=d, noise_variance=sigma**2, seed=seed, dtype="float64"
        )
        for k in range(2):
            x, y = cluster_data(fed, k)
            errors.append(float(np.sum((np.linalg.lstsq(x, y)[0] - truth.parameters[k]) ** 2)))
    expected = sigma**2 * d / (100 - d - 1)
    assert np.mean(errors) == pytest.approx(expected, abs=4 * np.std(errors) / np.sqrt(len(errors)))


def test_the_two_scales_of_the_linear_model() -> None:
    _, coordinate = linear_model(clients=2, samples=1, features=1000, radius=0.5)
    assert set(np.unique(coordinate.parameters)) == {0.0, 0.5}
    assert np.linalg.norm(coordinate.parameters[0]) == pytest.approx(0.5 * np.sqrt(500), rel=0.1)
    _, norm = linear_model(clients=2, samples=1, features=1000, radius=0.5, scale="norm")
    np.testing.assert_allclose(np.linalg.norm(norm.parameters, axis=1), 0.5)
    assert norm.separation == pytest.approx(0.5, rel=0.1)  # cosine ½: the distance is about R
    with pytest.raises(ConfigError, match="scale must be"):
        linear_model(scale="max")  # type: ignore[arg-type]


def test_the_linear_model_has_test_rows_and_the_asked_type() -> None:
    fed, truth = linear_model(
        clients=7, clusters=3, samples=5, features=4, test_samples=2, noise_variance=0.0, dtype="float64"
    )
    assert fed.kind == "regression"
    assert fed.x.dtype == torch.float64
    assert set(fed.n_train) == {5}
    assert set(fed.n_test) == {2}
    x, y = fed.test(4)
    np.testing.assert_allclose(y.numpy(), x.numpy() @ truth.of(4), rtol=1e-12)
    assert not np.allclose(y.numpy(), x.numpy() @ truth.of(5))
    assert linear_model(clients=2, samples=2, features=3)[0].x.dtype == torch.float32


def test_cluster_quadratics_follow_their_definition() -> None:
    fed, truth = cluster_quadratics(dtype="float64")
    assert len(fed) == 300
    assert fed.clusters is not None
    assert np.bincount(fed.clusters).tolist() == [75] * 4
    for k in range(4):
        x, y = cluster_data(fed, k)
        assert x.mean() == pytest.approx(k + 1, abs=4 / np.sqrt(x.size))
        np.testing.assert_allclose(y, x @ truth.parameters[k], atol=1e-10)
    x, _ = fed.train(0)
    assert np.linalg.matrix_rank(x.numpy()) == 9  # ten unknowns: underdetermined alone


def test_curvature_of_the_quadratics_grows_with_the_cluster() -> None:
    """L of (1/2n)‖Ax − y‖² over a cluster's pooled rows ≈ 1 + d k²."""
    fed, _ = cluster_quadratics(seed=1, dtype="float64")
    for k in range(4):
        x, _ = cluster_data(fed, k)
        assert np.linalg.eigvalsh(x.T @ x / len(x)).max() == pytest.approx(1 + 10 * (k + 1) ** 2, rel=0.1)


def test_blobs_share_their_centres_over_noise_levels() -> None:
    fed, near = blobs(noise_variance=0.25)
    _, far = blobs(noise_variance=16.0)
    np.testing.assert_array_equal(near.centres, far.centres)
    assert len(fed) == 90
    for sample, sigma in ((near, 0.5), (far, 4.0)):
        residual = sample.points - sample.centres[sample.clusters]
        assert residual.std() == pytest.approx(sigma, rel=4 / np.sqrt(2 * residual.size))
    x, _ = fed.train(11)
    np.testing.assert_allclose(x[0].numpy(), near.points[11], rtol=1e-6)


def test_generators_are_reproducible_and_refuse_nonsense() -> None:
    for make in (linear_model, cluster_quadratics, blobs):
        small = {} if make is not linear_model else {"features": 3, "samples": 4}
        assert torch.equal(make(seed=1, **small)[0].x, make(seed=1, **small)[0].x)
        assert not torch.equal(make(seed=1, **small)[0].x, make(seed=2, **small)[0].x)
    with pytest.raises(DataError, match="must be positive"):
        linear_model(samples=0)
    with pytest.raises(DataError, match="Every cluster needs a client"):
        blobs(points=3, clusters=4)
