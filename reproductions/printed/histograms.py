"""The private clustering of Setlur et al. as printed, for comparison. It earns no receipt.

Algorithm 3 and Theorem 3.1 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram), with the repairs without which it gives
nothing useful: noise on the sum (H07), floor and renormalise (H09), ε per round from the composed ε′ (H15, H16).

The promise of the whole run is false: its seeds are raw rows of users (H13), and λ is tuned on users (H14).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from coterie.base.arguments import Positive
from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import normalise, one_hot
from coterie.estimation.histograms.mixture import HistogramMixture
from coterie.estimation.histograms.private.crowd import Users
from coterie.estimation.histograms.private.designs import PrivateFit
from coterie.estimation.histograms.private.noisy_lloyd import Shared, nearest
from coterie.estimation.histograms.user_rows import HistogramRows
from coterie.privacy import Event, Ledger, Privacy, Receipt, Released, non_private, write_receipt

REASONS = (
    "the seeds of Algorithm 1 are raw rows of users",
    "the counts get Laplace noise in floating point",
    "the Gaussian noise is drawn in floating point from a seed",
    "the concentration is estimated on a sample of raw rows",
)


@dataclass(eq=False, repr=False)
class PrintedHistogramMixture(HistogramMixture):
    """`HistogramMixture` whose private fit is Algorithm 2 with Algorithm 3 in place of step 5, from raw seeds.

    `c` is the clip of whitened histograms (None: the clip of `privacy`) and `floor` the least probability of a token (None:
    a tenth of an equal share); the paper names neither."""

    c: Positive | None = None
    floor: Positive | None = None

    def _private_design(  # type: ignore[override]  # only of rows that are here
        self, users: Users, privacy: Privacy, rounds: int, start: Released[Floats] | None
    ) -> PrivateFit:
        rng = np.random.default_rng(self.random_state)
        sample, _ = users.rows.sample(self.sample_users, rng)
        sample = sample[np.diff(sample.indptr) > 0]
        self._check_users(sample.shape[0], sample.shape[0])
        seeds = self._seeds(normalise(sample)[0], rng) if start is None else start.value
        privacy = privacy if self.c is None else replace(privacy, clip=self.c)
        floor = 0.1 / users.width if self.floor is None else self.floor
        centers, weights, receipt = _rounds(users, privacy, seeds, rounds, floor, self.random_state)
        self.centers_, self.weights_, self.reduction_ = centers, np.ones(len(centers)), None
        self.concentration_ = self._estimate_concentration(sample, rng)
        return PrivateFit(centers, weights, np.asarray(weights @ centers), None, receipt)


def _rounds(
    users: Users, privacy: Privacy, seeds: Floats, rounds: int, floor: float, seed: int
) -> tuple[Floats, Floats, Receipt]:
    """Centres, their weights, and the receipt, which says why it is void."""
    epsilon, delta = per_round(privacy.epsilon, privacy.delta, rounds)
    rng, ledger = np.random.default_rng([seed, 2]), Ledger(privacy)
    for reason in REASONS:
        ledger.void(f"unaccounted: {reason}")
    centers, counts = seeds, np.ones(len(seeds))
    for _ in range(rounds):
        _book(ledger, privacy, noise_deviation(epsilon, delta), seeds.size)
        centers, counts = centring(
            users.rows, centers, epsilon=epsilon, delta=delta, clip=privacy.clip, floor=floor, rng=rng
        )
    value: Released[Shared] = non_private(Shared(centers, counts / counts.sum()), "Algorithm 3 from raw seeds")
    ledger.close()
    receipt = write_receipt(
        ledger, [value], n_users=users.rows.users, choices=users.choices(), noise_source="NumPy, in floating point"
    )
    return centers, value.value.weights, receipt


def _book(ledger: Ledger, privacy: Privacy, sigma: float, dimension: int) -> None:
    """The two sums of one round."""
    factor = 1.0 if privacy.adjacency == "zero-out" else 2.0
    options: dict[str, Any] = {"adjacency": privacy.adjacency, "noise": privacy.noise}
    for name, size in (("Algorithm 3, b1", 1.0), ("Algorithm 3, b2", privacy.clip)):
        how = f"{factor:g} times {size:g}, the norm of a user"
        ledger.book(Event(name, factor * size, how, sigma * size, sigma / factor, dimension, **options))


def composed(epsilon: float, delta: float, rounds: int) -> tuple[float, float]:
    """Theorem 3.1, as intended: (ε′, δ′) of so many calls of Algorithm 3."""
    each = 3 * epsilon
    total = each * (math.sqrt(2 * rounds * math.log(1 / delta)) + rounds * math.tanh(each / 2))
    return total, (2 * rounds + 1) * delta


def per_round(epsilon: float, delta: float, rounds: int) -> tuple[float, float]:
    """The (ε, δ) of each call that compose to the given (ε′, δ′)."""
    part = delta / (2 * rounds + 1)
    return float(brentq(lambda e: composed(e, part, rounds)[0] - epsilon, 1e-9, epsilon, xtol=1e-14)), part


def noise_deviation(epsilon: float, delta: float) -> float:
    """σ of Algorithm 3, line 1: the classical Gaussian mechanism, which needs ε < 1."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def centring(
    rows: HistogramRows,
    centers: Floats,
    *,
    epsilon: float,
    delta: float,
    clip: float,
    floor: float,
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """One call of Algorithm 3 after an assignment: new centres, and the noisy counts a."""
    clusters, d = centers.shape
    sigma = noise_deviation(epsilon, delta)
    counts, sums = _add(rows.map(lambda start, stop, block: _first(block, centers)))
    a = np.maximum(counts + rng.laplace(scale=1 / epsilon, size=clusters), 1.0)
    b1 = np.maximum((sums + rng.normal(scale=sigma, size=sums.shape)) / a[:, None], floor)
    second = np.sum(rows.map(lambda start, stop, block: _second(block, centers, b1, clip / math.sqrt(d))), axis=0)
    b2 = second + rng.normal(scale=clip * sigma, size=sums.shape)
    raw = np.maximum(b1 + np.sqrt(b1) * b2 / a[:, None], floor)
    return np.asarray(raw / raw.sum(axis=1, keepdims=True), dtype=np.float64), a


def _add(parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    counts, sums = zip(*parts, strict=True)
    return np.sum(counts, axis=0), np.sum(sums, axis=0)


def _members(block: Counts, centers: Floats) -> tuple[Counts, Ints]:
    used = block[np.diff(block.indptr) > 0]
    return used, nearest(used, centers)


def _first(block: Counts, centers: Floats) -> tuple[Floats, Floats]:
    used, labels = _members(block, centers)
    return np.bincount(labels, minlength=len(centers)).astype(np.float64), np.asarray(
        used.T @ one_hot(labels, len(centers))
    ).T


def _second(block: Counts, centers: Floats, b1: Floats, bound: float) -> Floats:
    """Σ over each cluster's users of Clip_{c/√d}(Diag(b1)^(-1/2)(q − b1)), coordinate by coordinate."""
    used, labels = _members(block, centers)
    dense = used.toarray()
    dense -= b1[labels]
    dense /= np.sqrt(b1)[labels]
    np.clip(dense, -bound, bound, out=dense)
    return np.asarray(one_hot(labels, len(centers)).T @ dense, dtype=np.float64)
