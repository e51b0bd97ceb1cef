"""Synthetic clients with known truth, one generator per estimator of the package."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import truncnorm

from coterie.errors import ConfigError
from coterie.estimation.conventions import Array, Ints

POPULATIONS = ("normal", "uniform", "spikes", "beta", "constant")


@dataclass(frozen=True)
class MeansData:
    """`truth` (m, d) and one (n_i, d) array of samples per client; `labels` (m,) where there are clusters."""

    truth: Array
    samples: list[Array]
    labels: Ints | None = None


@dataclass(frozen=True)
class RatesData:
    truth: Array
    successes: Ints
    trials: Ints


@dataclass(frozen=True)
class RegressionData:
    """Rows of all clients; row j belongs to client `groups[j]` with coefficients `truth[groups[j]]`."""

    truth: Array
    mean: Array
    X: Array
    y: Array
    groups: Ints
    labels: Ints | None = None


def _sizes(clients: int, samples: int | tuple[int, int], rng: np.random.Generator) -> Ints:
    low, high = (samples, samples) if isinstance(samples, int) else samples
    return rng.integers(low, high + 1, clients)


def _around(truth: Array, sizes: Ints, noise_variance: float, rng: np.random.Generator) -> list[Array]:
    rows = np.repeat(truth, sizes, axis=0)
    rows = rows + np.sqrt(noise_variance) * rng.standard_normal(rows.shape)
    return np.split(rows, np.cumsum(sizes)[:-1])


def gaussian_clients(
    clients: int,
    samples: int | tuple[int, int],
    dimension: int = 1,
    *,
    prior_variance: float,
    noise_variance: float,
    mean: float = 0.0,
    rng: np.random.Generator,
) -> MeansData:
    """θ_i ~ N(mean, σ_θ² I), X_ij ~ N(θ_i, σ_x² I). `samples` is n, or (low, high) for clients of different sizes."""
    truth = mean + np.sqrt(prior_variance) * rng.standard_normal((clients, dimension))
    return MeansData(truth, _around(truth, _sizes(clients, samples, rng), noise_variance, rng))


def mixture_clients(
    clients: int,
    samples: int | tuple[int, int],
    centers: ArrayLike,
    *,
    noise_variance: float,
    component_variance: float = 0.0,
    proportions: list[float] | None = None,
    rng: np.random.Generator,
) -> MeansData:
    """θ_i = μ_l + N(0, component_variance I) with probability p_l."""
    mu = np.atleast_2d(np.asarray(centers, dtype=np.float64))
    labels = rng.choice(len(mu), clients, p=proportions).astype(np.int64)
    truth = mu[labels] + np.sqrt(component_variance) * rng.standard_normal((clients, mu.shape[1]))
    return MeansData(truth, _around(truth, _sizes(clients, samples, rng), noise_variance, rng), labels)


def bernoulli_clients(
    clients: int, trials: int | tuple[int, int], population: str, *, rng: np.random.Generator
) -> RatesData:
    """The paper's populations: N(.5, .15²) truncated to [0, 1], uniform, spikes at ¼ ½ ¾, Beta(4, 4); and p = ½ for
    every client."""
    if population not in POPULATIONS:
        raise ConfigError(f"population must be one of {', '.join(POPULATIONS)}; got {population!r}.")
    if population == "normal":
        truth = truncnorm.rvs(-0.5 / 0.15, 0.5 / 0.15, loc=0.5, scale=0.15, size=clients, random_state=rng)
    elif population == "uniform":
        truth = rng.random(clients)
    elif population == "spikes":
        truth = rng.choice([0.25, 0.5, 0.75], clients)
    else:
        truth = rng.beta(4, 4, clients) if population == "beta" else np.full(clients, 0.5)
    n = _sizes(clients, trials, rng)
    return RatesData(np.asarray(truth, dtype=np.float64), rng.binomial(n, truth), n)


def regression_clients(
    clients: int,
    samples: int | tuple[int, int],
    dimension: int,
    *,
    prior_variance: float,
    noise_variance: float | None,
    mean_scale: float = 0.1,
    feature_variance: float = 1.0,
    centers: ArrayLike | None = None,
    rng: np.random.Generator,
) -> RegressionData:
    """θ_i ~ N(μ, σ_θ² I) with μ ~ N(0, mean_scale² I), or around one of `centers`; noise_variance None makes y
    binary (logistic)."""
    mu = mean_scale * rng.standard_normal((1, dimension)) if centers is None else np.asarray(centers, dtype=np.float64)
    labels = rng.integers(len(mu), size=clients)
    truth = mu[labels] + np.sqrt(prior_variance) * rng.standard_normal((clients, dimension))
    groups: NDArray[np.int64] = np.repeat(np.arange(clients), _sizes(clients, samples, rng))
    X = np.sqrt(feature_variance) * rng.standard_normal((len(groups), dimension))
    score = np.einsum("nd,nd->n", X, truth[groups])
    if noise_variance is None:
        y = (rng.random(len(groups)) < expit(score)).astype(np.float64)
    else:
        y = score + np.sqrt(noise_variance) * rng.standard_normal(len(groups))
    return RegressionData(truth, mu.mean(0), X, y, groups, None if centers is None else labels)
