"""IFCA on histograms, privately: one clipped gradient per user and round.

With P_k = softmax(z_k) a user of cluster k sends g = P_k − q, ‖g‖ ≤ √2, in a joint release with the counts. Sums are divided
by the public number of users. The start is p̃·exp(0.3·N(0, I)), which costs what p̃ costs.
"""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.private import concentration
from coterie.estimation.histograms.private.designs import PrivateFit, Users
from coterie.estimation.histograms.private.noisy_lloyd import free_start, nearest
from coterie.estimation.histograms.private.space import MEAN_LINES, private_mean
from coterie.privacy import GroupSums, Line, Privacy, combine
from coterie.privacy.account import Account


def fit_ifca(
    users: Users, privacy: Privacy, *, clusters: int, rounds: int, learning_rate: float, seed: int
) -> PrivateFit:
    """``rounds`` gradient steps, fixed in advance."""
    rng = np.random.default_rng([seed, 1])
    account = Account.open(privacy, [*MEAN_LINES, Line("gradients", 0.87, rounds), concentration.LINE], seed)
    base = private_mean(users.rows, users.width, account)
    # The mean of all is at most as long as the clip of the histograms, and a user's gradient as both together.
    clip = min(np.sqrt(2.0), privacy.clip * np.sqrt(2.0), 4 * float(np.linalg.norm(base.value)))
    mechanism = GroupSums(
        "gradients", clusters, users.width, clip, account.noise_multiplier("gradients"), clip / 4, privacy.adjacency
    )
    logits = base.map(lambda mean: np.log(free_start(mean, clusters, rng)))
    weights = base.map(lambda _: np.full(clusters, 1 / clusters))
    for _ in range(rounds):
        centers = np.asarray(softmax(logits.value, axis=1))

        def work(start: int, stop: int, block: Counts, now: Floats = centers) -> Ints:
            labels = nearest(block, now)
            return mechanism.partial(now[labels] - block.toarray(), labels)

        released = mechanism.give_out(users.rows.total(work), account.noise, account.book)
        logits = combine(lambda z, pair: z - learning_rate * pair[1] / users.rows.users, logits, released)
        weights = combine(lambda _, pair: _shares(pair[0]), weights, released)
    shared = combine(lambda z, w: (np.asarray(softmax(z, axis=1)), w), logits, weights)
    tuned = concentration.private_tuning(users.counts, shared.map(lambda pair: pair[0]), base, account)
    account.kept += [shared, base, tuned]
    paid = {"clip": "released: mean", "start": "released: mean", "concentration": "released: tuning"}
    receipt = account.closed(users.rows.users, users.choices(**paid), public=("the size of the vocabulary",))
    return PrivateFit(shared.value[0], shared.value[1], base.value, tuned.value, receipt)


def _shares(counts: Floats) -> Floats:
    positive = np.maximum(counts, 1e-9)
    return np.asarray(positive / positive.sum(), dtype=np.float64)
