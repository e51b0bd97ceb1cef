"""The coordinates of a private run: histograms whitened by a private mean, with a private clip.

Let p̃ be a private mean of all users. A user sends φ(q) = clip_c[Diag(p̃)^(-1/2) (q − p̃)]. In these coordinates a change
of a rare token weighs as much as it does in KL (½‖φ‖² ≈ KL), so that one amount of noise suits all tokens. The paper's
Algorithm 3 clips each coordinate at c/√d, and uses a mean with too much noise (errata H07, H12).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import row_sums
from coterie.estimation.histograms.private.crowd import Crowd
from coterie.estimation.histograms.user_rows import Weighting
from coterie.privacy import JointSum, Line, Quantile, Released, combine
from coterie.privacy.account import Account

STEPS = 8  # halvings of a quantile's range
RANGE = 256.0  # a quantile looks between its upper bound and this fraction of it
FLOOR = 0.02  # a centre gives each token at least so much of its share in p̃

MEAN_LINES = (Line("quantile of norms", 0.01, STEPS), Line("mean", 0.10))
CLIP_LINE = Line("quantile of whitened norms", 0.01, STEPS)
REDUCED_LINE = Line("quantile of reduced norms", 0.01, STEPS)


@dataclass(frozen=True)
class Space:
    """p̃ (``base``, positive, sums to 1) and the clip c of whitened histograms."""

    base: Floats
    clip: float

    def centers(self, means: Floats) -> Floats:
        """Histograms p̃ + Diag(p̃)^(1/2) v, floored and renormalised (erratum H09)."""
        raw = np.maximum(self.base + np.sqrt(self.base) * means, FLOOR * self.base)
        return np.asarray(raw / raw.sum(axis=1, keepdims=True), dtype=np.float64)


def whitened(block: Counts, base: Floats) -> Floats:
    """Diag(p̃)^(-1/2) (q − p̃) of every user, dense and not clipped yet; a user without tokens gets zeros."""
    root = np.sqrt(base)
    dense = block.toarray()
    dense /= root
    dense -= root
    dense[np.diff(block.indptr) == 0] = 0.0
    return np.asarray(dense, dtype=np.float64)


def whitened_norms(block: Counts, base: Floats) -> Floats:
    """Their L2 norms without making them dense: ‖φ‖² = Σ q²/p̃ − 1, as both sum to one. NaN without tokens."""
    squares = block.data**2 / base[block.indices]
    rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    norms = np.sqrt(np.maximum(np.bincount(rows, squares, block.shape[0]) - 1, 0.0))
    norms[np.diff(block.indptr) == 0] = np.nan
    return np.asarray(norms, dtype=np.float64)


@dataclass(frozen=True)
class Below:
    """How many users have a histogram of norm ‖q‖₂ ≤ ``threshold``; one without tokens is not counted."""

    weighting: ClassVar[Weighting] = "user"
    threshold: float

    def whole(self, block: Counts) -> Ints:
        norms = np.sqrt(row_sums(block.power(2)))
        return np.array([((norms > 0) & (norms <= self.threshold)).sum()], np.int64)


@dataclass(frozen=True)
class Mean:
    """Users' clipped histograms."""

    weighting: ClassVar[Weighting] = "user"
    clip: float

    def whole(self, block: Counts) -> Ints:
        return JointSum("mean", block.shape[1], self.clip, 1.0).partial(block.toarray())


@dataclass(frozen=True)
class WhitenedBelow:
    """How many users have a whitened histogram of norm ≤ ``threshold``."""

    weighting: ClassVar[Weighting] = "user"
    base: Floats
    threshold: float

    def whole(self, block: Counts) -> Ints:
        norms = whitened_norms(block, self.base)
        return np.array([(np.isfinite(norms) & (norms <= self.threshold)).sum()], np.int64)


def private_quantile(
    crowd: Crowd, account: Account, name: str, below: Callable[[float], Any], level: float, high: float
) -> Released[float]:
    """The level quantile of one number per user, at most ``high``; ``below(threshold)`` asks for the count."""
    z, adjacency = account.noise_multiplier(name), account.privacy.adjacency
    mechanism = Quantile(name, level, high / RANGE, high, z, crowd.users, STEPS, adjacency)
    return mechanism.search(lambda threshold: crowd.release(below(threshold), mechanism, account))


def private_mean(crowd: Crowd, account: Account, level: float = 0.95) -> Released[Floats]:
    """p̃: a private quantile of ‖q‖₂ (at most ``Privacy.clip``) is the clip of the sum; floored at its noise.

    A histogram has ‖q‖₂ ≤ 1, so clip = 1 leaves the choice to the quantile. The sum is scaled to 1: no count is needed."""
    clip = private_quantile(crowd, account, "quantile of norms", Below, level, account.privacy.clip)
    z, adjacency = account.noise_multiplier("mean"), account.privacy.adjacency
    mechanism = JointSum("mean", crowd.width, clip.value, z, adjacency)
    noisy = crowd.release(Mean(clip.value), mechanism, account)
    sigma = crowd.louder * mechanism.sigma

    def scaled(values: Floats, _: float) -> Floats:
        floor = max(sigma / 2, 1e-4 * float(np.abs(values).sum()) / crowd.width)
        positive = np.maximum(values, floor)
        return np.asarray(positive / positive.sum(), dtype=np.float64)

    return combine(scaled, noisy, clip)


def private_space(
    crowd: Crowd, base: Released[Floats], account: Account, level: float, line: Line = CLIP_LINE
) -> Released[Space]:
    """A private quantile of the whitened norms is the clip; ``Privacy.clip``·√d bounds it.

    (Whitening by a uniform p̃ multiplies norms by √d, so the bound is the same in both units.)"""
    high = account.privacy.clip * math.sqrt(len(base.value))
    clip = private_quantile(crowd, account, line.name, lambda t: WhitenedBelow(base.value, t), level, high)
    return combine(Space, base, clip)
