"""A private choice of K: one fit with the largest K, whose centres are merged, and one release that compares the results.

Merging the two nearest centres again and again, by the rise of Σ_k w_k KL(P_k‖·), needs no data. For each K that is
asked for, a user sends how many nats it saves against one histogram for all, with one token left out.
"""

from __future__ import annotations

import numpy as np

from coterie.estimation.histograms.counts import Counts, Floats
from coterie.estimation.histograms.kl import safe_log
from coterie.estimation.histograms.private.concentration import CLIP, left_out_losses
from coterie.estimation.histograms.private.noisy_lloyd import Shared
from coterie.estimation.histograms.user_rows import HistogramRows
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


def private_choice(
    counts: HistogramRows, shared: Released[Shared], base: Released[Floats], sizes: list[int], account: Account
) -> Released[Shared]:
    """The clusters of the number that saves most; of those within three deviations of the noise, the fewest."""
    options, several = merged(shared.value, sizes), [k for k in sizes if k > 1]
    width = max(len(several) * len(ALPHAS), 1)
    z, adjacency = account.noise_multiplier(LINE.name), account.privacy.adjacency
    mechanism = JointSum(LINE.name, width, CLIP, z, adjacency)
    scale = _SCALE / np.sqrt(width)

    def message(block: Counts) -> Floats:
        alone = left_out_losses(block, base.value[None], ALPHAS)
        saved = [alone - left_out_losses(block, options[k].centers, ALPHAS) for k in several]
        return scale * np.hstack(saved) if saved else np.zeros((block.shape[0], 1))

    total = counts.total(lambda start, stop, block: mechanism.partial(message(block)))
    noisy = mechanism.give_out(total, account.noise, account.book)

    def chosen(sums: Floats, *_: object) -> Shared:
        means = sums.reshape(-1, len(ALPHAS)).max(axis=1) if several else np.zeros(0)
        gains = dict(zip(several, means, strict=True)) | ({1: 0.0} if 1 in sizes else {})
        return options[min(k for k in gains if gains[k] >= max(gains.values()) - 3 * mechanism.sigma)]

    return combine(chosen, noisy, shared, base)
