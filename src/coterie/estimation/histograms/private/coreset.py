"""Design B+ for many users: private directions, a private coreset in them, k-means++ on the coreset.

The noisy power method finds the K leading directions of the whitened users. In these few coordinates users are sent to the
nearest of 200 public points, and one joint release of counts and sums turns the points into a small noisy copy of the
data. k-means on that copy is post-processing and costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from coterie.base.kmeans import kmeans
from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.private.crowd import Crowd
from coterie.estimation.histograms.private.noisy_lloyd import Sums
from coterie.estimation.histograms.private.space import Space, whitened
from coterie.estimation.histograms.user_rows import Weighting
from coterie.privacy import GroupSums, Line, NoisyPower, Released, combine, public
from coterie.privacy.account import Account
from coterie.privacy.mechanisms.lattice import products

ITERATIONS, POINTS = 4, 200
POWER_LINE, CORESET_LINE = Line("directions", 0.30, ITERATIONS), Line("coreset", 0.18)


@dataclass(frozen=True)
class Directions:
    """An orthonormal basis (d × K) and the mean square of the users along each direction, as far as noise shows it."""

    basis: Floats
    squares: Floats


@dataclass(frozen=True)
class Product:
    """Σ φ clip(Qᵀφ)ᵀ: a step of the power method. ``projected`` is the clip along the directions."""

    weighting: ClassVar[Weighting] = "user"
    base: Floats
    clip: float
    projected: float
    basis: Floats

    def mechanism(self, z: float, adjacency: str) -> NoisyPower:
        width, n_components = self.basis.shape
        return NoisyPower(POWER_LINE.name, width, n_components, self.clip, z, ITERATIONS, self.projected, adjacency)

    def whole(self, block: Counts) -> Ints:
        return self.mechanism(1.0, "zero-out").partial(whitened(block, self.base), self.basis)


@dataclass(frozen=True)
class Near:
    """Counts and sums of projected users by the nearest of public points."""

    weighting: ClassVar[Weighting] = "user"
    base: Floats
    clip: float
    basis: Floats
    points: Floats

    def mechanism(self, z: float, adjacency: str) -> GroupSums:
        points, dimension = self.points.shape
        return GroupSums(CORESET_LINE.name, points, dimension, self.clip, z, self.clip, adjacency)

    def whole(self, block: Counts) -> Ints:
        projected = products(whitened(block, self.base), self.basis)
        labels = (products(projected, self.points.T) - np.square(self.points).sum(axis=1) / 2).argmax(axis=1)
        labels[np.diff(block.indptr) == 0] = -1
        return self.mechanism(1.0, "zero-out").partial(projected, labels)


def private_directions(
    crowd: Crowd, space: Released[Space], clusters: int, account: Account, rng: np.random.Generator
) -> Released[Directions]:
    """The noisy power method, block by block, so that users may stay on disk."""
    width, n_components = len(space.value.base), min(clusters, len(space.value.base))
    # Along K directions a user is much shorter than in all d: a quarter of the clip leaves nearly all of it.
    projected = space.value.clip * max(1 / 4, math.sqrt(n_components / width))
    start = np.linalg.qr(rng.normal(size=(width, n_components)))[0]
    found = combine(lambda _, q: Directions(q, np.ones(n_components)), space, public(start))
    question = Product(space.value.base, space.value.clip, projected, start)
    mechanism = question.mechanism(account.noise_multiplier(POWER_LINE.name), account.privacy.adjacency)
    for _ in range(ITERATIONS):
        noisy = crowd.release(replace(question, basis=found.value.basis), mechanism, account)
        found = combine(lambda old, y: _next(old, y / crowd.users), found, noisy)
    return found


def _next(old: Directions, product: Floats) -> Directions:
    """Orthonormal directions by size: M·Q = U S Vᵀ, and S estimates the mean squares along U."""
    left, sizes, _ = np.linalg.svd(product, full_matrices=False)
    return Directions(np.asarray(left), np.asarray(sizes))


def coreset_start(
    crowd: Crowd,
    space: Released[Space],
    directions: Released[Directions],
    clusters: int,
    account: Account,
    rng: np.random.Generator,
) -> Released[Floats]:
    """First centres for the full rounds."""
    found = directions.value
    points = rng.normal(size=(POINTS, len(found.squares))) * np.sqrt(found.squares)
    clip = min(space.value.clip, 2 * math.sqrt(float(found.squares.sum())))
    question = Near(space.value.base, clip, found.basis, points)
    mechanism = question.mechanism(account.noise_multiplier(CORESET_LINE.name), account.privacy.adjacency)
    released = crowd.release(question, mechanism, account)
    variance, seed = (crowd.louder * mechanism.sigma) ** 2, int(rng.integers(2**31))

    def finish(pair: tuple[Floats, Floats], here: Space, axes: Directions) -> Floats:
        means = _cluster(Sums(*pair, variance, variance / mechanism.count_weight**2), clusters, seed)
        return here.centers(means @ axes.basis.T)

    return combine(finish, released, space, directions)


def _cluster(coreset: Sums, clusters: int, seed: int) -> Floats:
    """k-means++ on the points that hold enough users to be seen, weighted by their counts."""
    seen = coreset.counts > coreset.least / 4
    if seen.sum() < clusters:
        seen = coreset.counts >= np.sort(coreset.counts)[-clusters]
    weights = np.maximum(coreset.counts[seen], math.sqrt(coreset.count_variance))
    points = coreset.sums[seen] / weights[:, None]
    fitted = kmeans(points, clusters, restarts=20, seed=seed, weights=weights)
    return np.asarray(fitted.cluster_centers_, dtype=np.float64)
