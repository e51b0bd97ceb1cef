"""IFCA on histograms, privately: one clipped gradient per user and round.

With P_k = softmax(z_k) a user of cluster k sends g = P_k − q, ‖g‖ ≤ √2, in a joint release with the counts. Sums are divided
by the public number of users. The start is p̃·exp(0.3·N(0, I)), which costs what p̃ costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import softmax

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.private import concentration
from coterie.estimation.histograms.private.crowd import Crowd
from coterie.estimation.histograms.private.designs import PrivateFit
from coterie.estimation.histograms.private.noisy_lloyd import free_start, nearest
from coterie.estimation.histograms.private.space import MEAN_LINES, private_mean
from coterie.estimation.histograms.user_rows import Weighting
from coterie.privacy import GroupSums, Line, Privacy, combine
from coterie.privacy.account import Account


@dataclass(frozen=True)
class Gradient:
    """Users' gradients P − q at the nearest centre P."""

    weighting: ClassVar[Weighting] = "user"
    clip: float
    centers: Floats

    def mechanism(self, z: float, adjacency: str) -> GroupSums:
        clusters, width = self.centers.shape
        return GroupSums("gradients", clusters, width, self.clip, z, self.clip / 4, adjacency)

    def whole(self, block: Counts) -> Ints:
        labels = nearest(block, self.centers)
        return self.mechanism(1.0, "zero-out").partial(self.centers[labels] - block.toarray(), labels)


def fit_ifca(
    users: Crowd, privacy: Privacy, *, clusters: int, rounds: int, learning_rate: float, seed: int
) -> PrivateFit:
    """``rounds`` gradient steps, fixed in advance."""
    rng = np.random.default_rng([seed, 1])
    account = Account.open(privacy, [*MEAN_LINES, Line("gradients", 0.87, rounds), concentration.LINE], seed)
    base = private_mean(users, account)
    # The mean of all is at most as long as the clip of the histograms, and a user's gradient as both together.
    clip = min(np.sqrt(2.0), privacy.clip * np.sqrt(2.0), 4 * float(np.linalg.norm(base.value)))
    logits = base.map(lambda mean: np.log(free_start(mean, clusters, rng)))
    weights = base.map(lambda _: np.full(clusters, 1 / clusters))
    for _ in range(rounds):
        question = Gradient(float(clip), np.asarray(softmax(logits.value, axis=1)))
        mechanism = question.mechanism(account.noise_multiplier("gradients"), privacy.adjacency)
        released = users.release(question, mechanism, account)
        logits = combine(lambda z, pair: z - learning_rate * pair[1] / users.users, logits, released)
        weights = combine(lambda _, pair: _shares(pair[0]), weights, released)
    shared = combine(lambda z, w: (np.asarray(softmax(z, axis=1)), w), logits, weights)
    tuned = concentration.private_tuning(users, shared.map(lambda pair: pair[0]), base, account)
    account.kept += [shared, base, tuned]
    paid = {"clip": "released: mean", "start": "released: mean", "concentration": "released: tuning"}
    receipt = account.closed(users.users, users.choices(**paid), **users.about())
    return PrivateFit(shared.value[0], shared.value[1], base.value, tuned.value, receipt)


def _shares(counts: Floats) -> Floats:
    positive = np.maximum(counts, 1e-9)
    return np.asarray(positive / positive.sum(), dtype=np.float64)
