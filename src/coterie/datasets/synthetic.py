"""Generators with known truth: every function returns `(federation, truth)`.

Clients are numbered 0 … m−1 and client i belongs to cluster i mod K, as in the image federations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.base.annotations import guarded
from coterie.base.deprecated import renamed
from coterie.data.federation import DType, Federation, Ints
from coterie.errors import DataError

Matrix = npt.NDArray[np.float64]


@renamed
@dataclass(frozen=True, eq=False)
class Truth:
    """What generated the data: row k of `parameters` belongs to cluster k; `clusters[i]` is client i's cluster."""

    parameters: Matrix
    clusters: Ints
    noise_variance: float = 0.0

    @property
    def separation(self) -> float:
        """Δ, the smallest distance between two clusters' parameters (infinite for one cluster)."""
        gaps = np.linalg.norm(self.parameters[:, None] - self.parameters[None], axis=2)
        np.fill_diagonal(gaps, np.inf)
        return float(gaps.min())

    def of(self, client: int) -> Matrix:
        """The true parameters of one client."""
        return np.asarray(self.parameters[self.clusters[client]])


@guarded
def linear_model(
    *,
    clusters: int = 2,
    clients: int = 100,
    samples: int = 100,
    features: int = 1000,
    radius: float = 1.0,
    noise_variance: float = 0.01,
    scale: Literal["coordinate", "norm"] = "coordinate",
    test_samples: int = 0,
    seed: int = 0,
    dtype: DType = "float32",
) -> tuple[Federation, Truth]:
    """IFCA, section 6.1: y = ⟨x, θ*_j⟩ + ε with x ~ N(0, I_d) and ε ~ N(0, σ²).

    k = `clusters`, m = `clients`, n = `samples`, d = `features`, R = `radius`, σ² = `noise_variance`. The coordinates of
    θ* are Bernoulli(½), times R (scale="coordinate", what the authors' code does) or rescaled to norm R (scale="norm", what
    the text says; then Δ ≈ R, and the Bernoulli start lies far outside).
    """
    _check(clusters, clients, samples, features, noise_variance)
    if scale not in ("coordinate", "norm"):
        raise DataError(f"scale must be 'coordinate' or 'norm'; got {scale!r}. Choose one of them.")
    rng = np.random.default_rng(seed)
    theta = rng.integers(0, 2, (clusters, features)).astype(np.float64)
    if scale == "norm":
        theta /= np.maximum(np.linalg.norm(theta, axis=1, keepdims=True), 1e-12)
    theta *= radius
    cluster = np.arange(clients) % clusters
    rows = samples + test_samples
    x = rng.standard_normal((clients, rows, features), np.dtype(dtype).type)
    y = np.einsum("irf,if->ir", x, theta[cluster].astype(dtype), optimize=True)
    y = y + np.sqrt(noise_variance) * rng.standard_normal((clients, rows))
    return _regression(x, y, test_samples, cluster, dtype), Truth(theta, cluster, noise_variance)


@guarded
def cluster_quadratics(
    *,
    clusters: int = 4,
    clients_per_cluster: int = 75,
    samples: int = 9,
    features: int = 10,
    test_samples: int = 0,
    seed: int = 0,
    dtype: DType = "float32",
) -> tuple[Federation, Truth]:
    """Werner, section 2.4: A_i ∈ R^{d×n} with N(k, 1) entries and y_i = A_iᵀ x*_k without noise, k = 1 … K.

    x*_k ~ N(0, I_d) is our choice; the source leaves it open. Row s of a client's x is column s of A_i. With d = 10 and
    n = 9 a client alone is *under*determined (the source says over-). The entries' mean k is the cluster index + 1, so
    curvature grows with the cluster: L ≈ d k², and a common step size is slow for the first clusters.
    """
    _check(clusters, clusters * clients_per_cluster, samples, features)
    rng = np.random.default_rng(seed)
    cluster = np.arange(clusters * clients_per_cluster) % clusters
    truth = rng.standard_normal((clusters, features))
    x = rng.standard_normal((len(cluster), samples + test_samples, features)) + (cluster + 1.0)[:, None, None]
    y = np.einsum("irf,if->ir", x, truth[cluster])
    return _regression(x, y, test_samples, cluster, dtype), Truth(truth, cluster)


@dataclass(frozen=True, eq=False)
class Blobs:
    """Points (n, d), the cluster of each, and the centres they were drawn around."""

    points: Matrix
    clusters: Ints
    centres: Matrix


@guarded
def blobs(
    *,
    points: int = 90,
    clusters: int = 10,
    features: int = 10,
    noise_variance: float = 1.0,
    box: float = 10.0,
    seed: int = 0,
) -> tuple[Federation, Blobs]:
    """Werner, figure 2.7: Gaussian points of variance σ² = `noise_variance` around centres uniform in [−box, box]^d.

    The centres depend on the seed only, not on the noise, so runs over σ share them. Every point is one client with a
    single sample (its target is its cluster), ready for clustering the clients themselves.
    """
    _check(clusters, points, 1, features, noise_variance)
    if not box >= 0:
        raise DataError(f"box must be ≥ 0, half the width of the cube of centres; got {box}. Use for example 10.")
    centres = np.random.default_rng([seed, 0]).uniform(-box, box, (clusters, features))
    cluster = np.arange(points) % clusters
    z = centres[cluster] + np.sqrt(noise_variance) * np.random.default_rng([seed, 1]).standard_normal(
        (points, features)
    )
    federation = Federation.from_flat(
        z,
        cluster,
        sizes=np.ones(points, np.int64),
        clients=range(points),
        n_test=np.zeros(points, np.int64),
        clusters=cluster,
        kind="classification",
        classes=range(clusters),
        one_class="allow",
    )
    return federation, Blobs(z, cluster, centres)


def _regression(x: npt.NDArray[Any], y: npt.NDArray[Any], test_samples: int, cluster: Ints, dtype: DType) -> Federation:
    clients, rows, features = x.shape
    return Federation.from_flat(
        x.reshape(-1, features),
        y.ravel(),
        sizes=np.full(clients, rows),
        clients=range(clients),
        n_test=np.full(clients, test_samples),
        clusters=cluster,
        kind="regression",
        dtype=dtype,
    )


def _check(clusters: int, clients: int, samples: int, features: int, noise_variance: float = 0.0) -> None:
    if noise_variance < 0:
        raise DataError(f"noise_variance must be ≥ 0; got {noise_variance}. Use for example 0.01.")
    if min(clusters, samples, features) < 1:
        raise DataError(
            f"clusters, samples and features must be positive; got {clusters}, {samples}, {features}. "
            "Use 1 or more for each."
        )
    if clients < clusters:
        raise DataError(f"Every cluster needs a client; got {clients} clients for {clusters} clusters. Add clients.")
