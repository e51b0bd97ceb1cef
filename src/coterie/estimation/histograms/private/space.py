"""The coordinates of a private run: histograms whitened by a private mean, with a private clip.

Let p̃ be a private mean of all users. A user sends φ(q) = clip_c[Diag(p̃)^(-1/2) (q − p̃)]. In these coordinates a change
of a rare token weighs as much as it does in KL (½‖φ‖² ≈ KL), so that one amount of noise suits all tokens. The paper's
Algorithm 3 clips each coordinate at c/√d, and uses a mean with too much noise (errata H07, H12).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coterie.estimation.histograms.counts import Counts, Floats
from coterie.estimation.histograms.kl import row_sums
from coterie.estimation.histograms.user_rows import HistogramRows
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

    def rows(self, block: Counts) -> Floats:
        """Diag(p̃)^(-1/2) (q − p̃) of every user, not clipped yet."""
        return whitened(block, self.base)

    def centers(self, means: Floats) -> Floats:
        """Histograms p̃ + Diag(p̃)^(1/2) v, floored and renormalised (erratum H09)."""
        raw = np.maximum(self.base + np.sqrt(self.base) * means, FLOOR * self.base)
        return np.asarray(raw / raw.sum(axis=1, keepdims=True), dtype=np.float64)


def whitened(block: Counts, base: Floats) -> Floats:
    """Dense rows; a user without tokens gets zeros."""
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


def private_quantile(account: Account, name: str, values: Floats, level: float, high: float) -> Released[float]:
    """The level quantile of one number per user, at most ``high``; NaN is not counted."""
    z, adjacency = account.noise_multiplier(name), account.privacy.adjacency
    mechanism = Quantile(name, level, high / RANGE, high, z, len(values), STEPS, adjacency)
    return mechanism(values, account.noise, account.book)


def private_mean(rows: HistogramRows, width: int, account: Account, level: float = 0.95) -> Released[Floats]:
    """p̃: a private quantile of ‖q‖₂ (at most ``Privacy.clip``) is the clip of the sum; floored at its noise.

    A histogram has ‖q‖₂ ≤ 1, so clip = 1 leaves the choice to the quantile. The sum is scaled to 1: no count is needed."""
    norms = np.concatenate(rows.map(lambda start, stop, block: np.sqrt(row_sums(block.power(2)))))
    norms[norms == 0] = np.nan
    clip = private_quantile(account, "quantile of norms", norms, level, account.privacy.clip)
    z, adjacency = account.noise_multiplier("mean"), account.privacy.adjacency
    mechanism = JointSum("mean", width, clip.value, z, adjacency)
    total = rows.total(lambda start, stop, block: mechanism.partial(block.toarray()))
    noisy = mechanism.give_out(total, account.noise, account.book)

    def scaled(values: Floats, _: float) -> Floats:
        floor = max(mechanism.sigma / 2, 1e-4 * float(np.abs(values).sum()) / width)
        positive = np.maximum(values, floor)
        return np.asarray(positive / positive.sum(), dtype=np.float64)

    return combine(scaled, noisy, clip)


def private_space(
    rows: HistogramRows, base: Released[Floats], account: Account, level: float, line: Line = CLIP_LINE
) -> Released[Space]:
    """A private quantile of the whitened norms is the clip; ``Privacy.clip``·√d bounds it.

    (Whitening by a uniform p̃ multiplies norms by √d, so the bound is the same in both units.)"""
    norms = np.concatenate(rows.map(lambda start, stop, block: whitened_norms(block, base.value)))
    high = account.privacy.clip * math.sqrt(len(base.value))
    clip = private_quantile(account, line.name, norms, level, high)
    return combine(Space, base, clip)
