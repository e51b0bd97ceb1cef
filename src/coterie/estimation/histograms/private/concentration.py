"""A private choice of α, and whether clustering pays: one Gaussian release of clipped losses over a grid.

For each α of a public grid a user computes how well λP + (1−λ)Q̂ predicts each of its tokens when that token is left out,
λ = α/(α + m − 1). Leaving one token out needs no random split, and avoids the bias of choosing λ on a part of the tokens.
The same losses with p̃ in place of the user's centre show how much the clusters gain after fine-tuning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import row_sums
from coterie.estimation.histograms.private.crowd import Crowd
from coterie.estimation.histograms.user_rows import Weighting
from coterie.privacy import JointSum, Line, Released, combine
from coterie.privacy.account import Account

GRID = np.geomspace(3.0, 30_000.0, 21)
CLIP = 2.0  # nats, of the joint vector of a user's losses
LINE = Line("tuning", 0.02)
_SCALE = 10.0  # how much more a difference between the two models counts than a difference between two α


@dataclass(frozen=True)
class Tuning:
    """α for users with clusters; ``gain``: nats per user that clusters save after fine-tuning, with its error."""

    concentration: float
    gain: float
    gain_error: float

    @property
    def pays(self) -> bool:
        """Whether the gain is above two deviations of its noise."""
        return self.gain > 2 * self.gain_error

    @property
    def sentence(self) -> str:
        """The advice in one sentence."""
        found = f"{self.gain:.4f} ± {2 * self.gain_error:.4f} nats per user"
        if self.pays:
            return f"Clustering pays: after fine-tuning it saves {found} against one histogram for all."
        return (
            f"Clustering does not clearly pay: after fine-tuning it saves {found} against one histogram for all; "
            "use FedAvgHistogram(lam=None), or more users or a larger budget."
        )


def _left_out_labels(counts: Counts, centers: Floats) -> Ints:
    """For each entry (u, x): the nearest centre of user u when one token x is left out."""
    logs = np.log(centers)
    scores = np.asarray(counts @ np.ascontiguousarray(logs.T))
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    labels: Ints = scores.argmax(axis=1)[rows]
    if len(centers) == 1:
        return labels
    top = np.partition(scores, -2, axis=1)
    close = (top[:, -1] - top[:, -2] < 2 * np.ptp(logs, axis=0).max())[rows]
    labels[close] = (scores[rows[close]] - logs[:, counts.indices[close]].T).argmax(axis=1)
    return labels


def left_out_losses(counts: Counts, centers: Floats, grid: Floats) -> Floats:
    """users × grid: −Σ_x (n_x/m) log(λ P_x + (1−λ)(n_x − 1)/(m − 1)), in nats; 0 without tokens."""
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    tokens = row_sums(counts)
    rest = np.maximum(tokens - 1, 0.0)[rows]
    own = np.divide(np.maximum(counts.data - 1, 0.0), rest, out=np.zeros_like(rest), where=rest > 0)
    shared = centers[_left_out_labels(counts, centers), counts.indices]
    share = counts.data / tokens[rows]
    out = np.empty((counts.shape[0], len(grid)))
    for column, alpha in enumerate(grid):
        lam = alpha / (alpha + rest)
        out[:, column] = -np.bincount(rows, share * np.log(lam * shared + (1 - lam) * own), counts.shape[0])
    return out


@dataclass(frozen=True)
class LeftOut:
    """A user's losses minus their mean over the grid, for both models, and the clusters' gain."""

    weighting: ClassVar[Weighting] = "token"
    centers: Floats
    base: Floats

    @staticmethod
    def mechanism(z: float, adjacency: str) -> JointSum:
        return JointSum(LINE.name, 2 * len(GRID), CLIP, z, adjacency)

    def whole(self, block: Counts) -> Ints:
        clustered, alone = left_out_losses(block, self.centers, GRID), left_out_losses(block, self.base[None], GRID)
        saved = _SCALE * (alone - clustered) / math.sqrt(len(GRID))
        told = np.hstack([clustered - clustered.mean(axis=1, keepdims=True), saved])
        return self.mechanism(1.0, "zero-out").partial(told)


def private_tuning(
    crowd: Crowd, centers: Released[Floats], base: Released[Floats], account: Account
) -> Released[Tuning]:
    mechanism = LeftOut.mechanism(account.noise_multiplier(LINE.name), account.privacy.adjacency)
    noisy = crowd.release(LeftOut(centers.value, base.value), mechanism, account)
    error = crowd.louder * mechanism.sigma / crowd.users
    return combine(lambda sums, *_: _decide(sums / crowd.users, error), noisy, centers, base)


def _decide(means: Floats, error: float) -> Tuning:
    """The best α with clusters; the gain compares the best of both models."""
    size = len(GRID)
    clustered, saved = means[:size], means[size:] * math.sqrt(size) / _SCALE
    (best, place), (best_alone, _) = _lowest(clustered), _lowest(clustered + saved)
    gain = float((clustered + saved)[best_alone] - clustered[best])
    alpha = float(np.exp(np.interp(place, np.arange(size), np.log(GRID))))
    return Tuning(alpha, gain, error * math.hypot(math.sqrt(2), math.sqrt(size) / _SCALE))


def _lowest(losses: Floats) -> tuple[int, float]:
    """The lowest of the losses averaged in threes, and the place of the lowest point of a parabola through five of them."""
    padded = np.concatenate([losses[:1], losses, losses[-1:]])
    best = int((padded[:-2] + 2 * padded[1:-1] + padded[2:]).argmin())
    middle = min(max(best, 2), len(losses) - 3)
    curve, slope, _ = np.polyfit(np.arange(-2, 3), losses[middle - 2 : middle + 3], 2)
    place = middle - slope / (2 * curve) if curve > 0 else float(best)
    return best, float(np.clip(place, best - 1, best + 1))
