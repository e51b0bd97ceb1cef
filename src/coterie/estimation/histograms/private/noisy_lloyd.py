"""Lloyd's rounds with one joint Gaussian each: [w·counts ; sums of φ] of all clusters.

Post-processing of the noisy sums costs no privacy: clusters whose noisy count is below four deviations are reseeded, the
sums of the late rounds are averaged, and means are shrunk according to the known variance of the noise (James and Stein
1961, in the form of Efron and Morris 1973 for coordinates whose signal differs).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.private.crowd import Crowd
from coterie.estimation.histograms.private.space import Space, whitened
from coterie.estimation.histograms.user_rows import Weighting
from coterie.estimation.private_means import late_sum
from coterie.privacy import GroupSums, Released, combine, public
from coterie.privacy.account import Account

KEPT_BYTES = 2**29
SPREAD = 0.3  # of the free start p̃·exp(0.3·N(0, 1))


@dataclass(frozen=True)
class Shared:
    """The public results of a private run: centres, and the shares of the clusters."""

    centers: Floats
    weights: Floats


def free_start(base: Floats, clusters: int, rng: np.random.Generator) -> Floats:
    """p̃·exp(0.3·N(0, I)), which uses only p̃ and public coins."""
    raw = base * np.exp(SPREAD * rng.normal(size=(clusters, len(base))))
    return np.asarray(raw / raw.sum(axis=1, keepdims=True), dtype=np.float64)


def nearest(block: Counts, centers: Floats) -> Ints:
    """Each user's cluster, argmax_k q·log P_k, on its own device; −1 without tokens."""
    labels: Ints = np.asarray(block @ np.ascontiguousarray(np.log(centers).T)).argmax(axis=1)
    labels[np.diff(block.indptr) == 0] = -1
    return labels


@dataclass(frozen=True)
class Round:
    """Counts and sums of whitened histograms by the nearest centre. A user without tokens is left out.

    Users' rows on the lattice stay the same over the rounds, so ``kept`` has those of blocks that stay in memory."""

    weighting: ClassVar[Weighting] = "user"
    base: Floats
    clip: float
    centers: Floats
    kept: dict[int, NDArray[np.int32]] | None = field(default=None, repr=False, compare=False)

    def mechanism(self, name: str, z: float, adjacency: str) -> GroupSums:
        clusters, width = self.centers.shape
        return GroupSums(name, clusters, width, self.clip, z, self.clip / 2, adjacency)

    def whole(self, block: Counts) -> Ints:
        mechanism, labels = self.mechanism("rounds", 1.0, "zero-out"), nearest(block, self.centers)
        found = None if self.kept is None else self.kept.get(id(block))
        if found is None:
            used = block[np.diff(block.indptr) > 0]
            found = mechanism.lattice.round(whitened(used, self.base)).astype(np.int32)
            if self.kept is not None:
                self.kept[id(block)] = found
        return mechanism.add_up(found, labels[labels >= 0])


@dataclass(frozen=True)
class Sums:
    """Noisy counts and sums of some rounds added up, with the noise's variance in each sum and count."""

    counts: Floats
    sums: Floats
    variance: float
    count_variance: float

    def __add__(self, other: Sums) -> Sums:
        mine, theirs = (self.counts, self.sums), (other.counts, other.sums)
        counts, sums = (a + b for a, b in zip(mine, theirs, strict=True))
        return Sums(counts, sums, self.variance + other.variance, self.count_variance + other.count_variance)

    @property
    def least(self) -> float:
        """A cluster with a count below this, four deviations of the noise, cannot be distinguished from an empty one."""
        return 4 * math.sqrt(self.count_variance)


def _summed(variance: float, count_variance: float, told: tuple[Floats, Floats]) -> Sums:
    return Sums(*told, variance, count_variance)


def shrunken(found: Sums, space: Space) -> Floats:
    """Means v_k (0 for a cluster too small to be seen), each coordinate shrunk by τ²p̃/(τ²p̃ + noise).

    A relative change of P of variance τ² makes whitened coordinates of variance τ²p̃. τ² = ‖v‖² − d·noise is unbiased."""
    counts = np.maximum(found.counts, found.least)[:, None]
    means = found.sums / counts
    noise = found.variance / counts**2
    signal = np.maximum(np.square(means).sum(axis=1, keepdims=True) - means.shape[1] * noise, 0.0) * space.base
    seen = (found.counts >= found.least)[:, None]
    return np.asarray(np.where(seen, means * signal / (signal + noise), 0.0), dtype=np.float64)


def private_lloyd(
    crowd: Crowd,
    space: Released[Space],
    start: Released[Floats],
    account: Account,
    name: str,
    rounds: int,
    rng: np.random.Generator,
    late: int,
) -> Released[Shared]:
    """``rounds`` joint releases, fixed in advance; the last ``late`` ones are averaged."""
    kept: dict[int, NDArray[np.int32]] | None = (
        {} if crowd.keeps and 4 * crowd.users * crowd.width <= KEPT_BYTES else None
    )
    question, centers = Round(space.value.base, space.value.clip, start.value, kept), start
    mechanism = question.mechanism(name, account.noise_multiplier(name), account.privacy.adjacency)
    averaged: Released[Any] = public(None)
    for number in range(rounds):
        released = crowd.release(replace(question, centers=centers.value), mechanism, account)
        variance = (crowd.louder * mechanism.sigma) ** 2
        now = released.map(partial(_summed, variance, variance / mechanism.count_weight**2))
        early = number < rounds - late  # and the first of the late rounds starts the average
        coins = rng if early else None
        averaged = late_sum(averaged, now, number, rounds, late)
        centers = combine(lambda found, here, coins=coins: _recentred(found, here, coins), averaged, space)
    return combine(lambda c, found: Shared(c, _shares(found)), centers, averaged)


def _recentred(found: Sums, space: Space, rng: np.random.Generator | None) -> Floats:
    """New centres from noisy sums alone; with ``rng`` (in the early rounds) small clusters are replaced.

    A cluster whose count is below four deviations of its noise, or below a quarter of an equal share, is replaced: it and
    the largest cluster start anew on two opposite sides of the largest one's centre."""
    centers, counts = space.centers(shrunken(found, space)), found.counts.copy()
    if rng is None:
        return centers
    least = max(found.least, counts.clip(0).sum() / (4 * len(counts)))
    for small in np.flatnonzero(counts < least):
        largest = int(counts.argmax())
        if counts[largest] < 2 * least:
            break
        step = np.exp(SPREAD / 2 * rng.normal(size=centers.shape[1]))
        centers[small], centers[largest] = centers[largest] * step, centers[largest] / step
        counts[small] = counts[largest] = counts[largest] / 2
    return np.asarray(centers / centers.sum(axis=1, keepdims=True), dtype=np.float64)


def _shares(found: Sums) -> Floats:
    counts = np.maximum(found.counts, 0.0)
    total = counts.sum()
    return np.asarray(counts / total if total > 0 else np.full(len(counts), 1 / len(counts)), dtype=np.float64)
