"""A private choice of K: one fit with the largest K, whose centres are merged, and one release that compares the results.

Merging the two nearest centres again and again, by the rise of Σ_k w_k KL(P_k‖·), needs no data. For each K that is
asked for, a user sends how many nats it saves against one histogram for all, with one token left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import safe_log
from coterie.estimation.histograms.private.concentration import CLIP, left_out_losses
from coterie.estimation.histograms.private.crowd import Crowd
from coterie.estimation.histograms.private.noisy_lloyd import Shared
from coterie.estimation.histograms.user_rows import Weighting
from coterie.privacy import JointSum, Line, Released, combine
from coterie.privacy.account import Account

LINE = Line("number of clusters", 0.04)
ALPHAS = np.array([30.0, 200.0, 1500.0])
_SCALE = 10.0  # as of the gain in `concentration`


def merged(shared: Shared, sizes: list[int]) -> dict[int, Shared]:
    """The same clusters merged to each of these numbers."""
    centers, weights, found = shared.centers, np.maximum(shared.weights, 1e-12), {}
    while True:
        if len(centers) in sizes:
            found[len(centers)] = Shared(centers, weights / weights.sum())
        if len(centers) <= min(sizes):
            return found
        (a, b), both = _nearest(centers, weights)
        keep = np.delete(np.arange(len(centers)), b)
        centers = np.where((np.arange(len(centers)) == a)[:, None], both, centers)[keep]
        weights = np.where(np.arange(len(weights)) == a, weights[a] + weights[b], weights)[keep]


def _nearest(centers: Floats, weights: Floats) -> tuple[tuple[int, int], Floats]:
    """The two clusters whose union costs least, a < b, and their common centre."""
    first, second = np.triu_indices(len(centers), 1)
    share = (weights[first] / (weights[first] + weights[second]))[:, None]
    both = share * centers[first] + (1 - share) * centers[second]
    own = (centers * safe_log(centers)).sum(axis=1)
    rise = weights[first] * own[first] + weights[second] * own[second]
    rise -= (weights[first] + weights[second]) * (both * safe_log(both)).sum(axis=1)
    best = int(rise.argmin())
    return (int(first[best]), int(second[best])), both[best]


@dataclass(frozen=True)
class Saved:
    """How many nats a user saves with each of several sets of clusters, at each α of the grid."""

    weighting: ClassVar[Weighting] = "token"
    centers: Floats  # of all sets, one below the other
    sizes: Floats
    base: Floats

    @staticmethod
    def mechanism(sets: int, z: float, adjacency: str) -> JointSum:
        return JointSum(LINE.name, sets * len(ALPHAS), CLIP, z, adjacency)

    def whole(self, block: Counts) -> Ints:
        ends = np.cumsum(self.sizes.astype(int))
        alone = left_out_losses(block, self.base[None], ALPHAS)
        saved = [alone - left_out_losses(block, some, ALPHAS) for some in np.split(self.centers, ends[:-1])]
        scale = _SCALE / np.sqrt(len(ends) * len(ALPHAS))
        return self.mechanism(len(ends), 1.0, "zero-out").partial(scale * np.hstack(saved))


def private_choice(
    crowd: Crowd, shared: Released[Shared], base: Released[Floats], sizes: list[int], account: Account
) -> Released[Shared]:
    """The clusters of the number that saves most; of those within three deviations of the noise, the fewest."""
    options, several = merged(shared.value, sizes), [k for k in sizes if k > 1]
    mechanism = Saved.mechanism(len(several), account.noise_multiplier(LINE.name), account.privacy.adjacency)
    centers = np.concatenate([options[k].centers for k in several])
    noisy = crowd.release(Saved(centers, np.array(several, np.float64), base.value), mechanism, account)
    sigma = crowd.louder * mechanism.sigma

    def chosen(sums: Floats, *_: object) -> Shared:
        means = sums.reshape(-1, len(ALPHAS)).max(axis=1)
        gains = dict(zip(several, means, strict=True)) | ({1: 0.0} if 1 in sizes else {})
        return options[min(k for k in gains if gains[k] >= max(gains.values()) - 3 * sigma)]

    return combine(chosen, noisy, shared, base)
