"""Cluster seeding in KL with a temperature, repaired.

Algorithm 1 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

The seeds are raw rows of users: this step is not private at any ε.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import xlogy

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import kl_to_centers, row_sums, smooth, with_data

Direction = Literal["center_user", "user_center"]


def seeding_probabilities(divergence: Floats, temperature: float) -> Floats:
    """Prob(u) ∝ exp(τ D_u): uniform as τ → 0, the farthest user as τ → ∞ (a softmax, not k-means++'s weights ∝ D)."""
    finite_max = float(divergence.max())
    if np.isinf(temperature):
        weights = (divergence == finite_max).astype(np.float64)
    else:
        # D can be tens of nats, so the maximum is subtracted first
        weights = np.exp(temperature * (divergence - finite_max))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def seed_centers(
    histograms: Counts,
    clusters: int,
    rng: np.random.Generator,
    temperature: float,
    smoothing: float,
    direction: Direction = "center_user",
    trials: int = 1,
) -> tuple[Floats, Ints]:
    """Smoothed seeds (clusters × tokens) and the rows they came from; Algorithm 1, steps 1 to 3.

    The minimum runs over the seeds already chosen (the paper increments k too early, H03). Both arguments of
    the divergence are smoothed, for on raw rows it is infinite in either direction (H04). With more than one trial,
    each step draws so many candidates and keeps the one that leaves the smallest Σ_u D_u (ours; 1 is the paper's).
    """
    divergence_to = (
        _to_users(histograms, smoothing) if direction == "center_user" else _from_users(histograms, smoothing)
    )
    users = histograms.shape[0]
    chosen = [int(rng.integers(users))]  # step 1
    nearest = divergence_to(_row(histograms, chosen[0], smoothing))
    while len(chosen) < clusters:  # step 2
        drawn = rng.choice(users, size=trials, p=seeding_probabilities(nearest, temperature))
        after = [np.minimum(nearest, divergence_to(_row(histograms, int(user), smoothing))) for user in drawn]
        best = int(np.argmin([left.sum() for left in after]))
        chosen.append(int(drawn[best]))
        nearest = after[best]
    return np.stack([_row(histograms, user, smoothing) for user in chosen]), np.array(chosen)  # step 3


class _to_users:
    """P ↦ KL(P‖sm(Q̂_u)) for all u, the direction the paper prints; log sm(Q̂) is a constant plus something sparse."""

    def __init__(self, histograms: Counts, smoothing: float) -> None:
        floor = smoothing / histograms.shape[1]
        self.base = float(np.log(floor / (1 + smoothing)))
        self.above = with_data(histograms, np.log(histograms.data / floor + 1))

    def __call__(self, center: Floats) -> Floats:
        return np.asarray(xlogy(center, center).sum() - self.base - self.above @ center, dtype=np.float64)


class _from_users:
    """P ↦ KL(sm(Q̂_u)‖P) for all u, the direction of the objective."""

    def __init__(self, histograms: Counts, smoothing: float) -> None:
        self.histograms, self.smoothing = histograms, smoothing
        floor = smoothing / histograms.shape[1] / (1 + smoothing)
        smoothed = histograms.data / (1 + smoothing) + floor
        seen = row_sums(with_data(histograms, xlogy(smoothed, smoothed)))
        unseen = histograms.shape[1] - np.diff(histograms.indptr)
        self.entropy = seen + unseen * xlogy(floor, floor)

    def __call__(self, center: Floats) -> Floats:
        logs = np.log(center)
        cross = (self.histograms @ logs + self.smoothing * logs.mean()) / (1 + self.smoothing)
        return np.asarray(self.entropy - cross, dtype=np.float64)


def _row(histograms: Counts, user: int, smoothing: float) -> Floats:
    row = np.zeros(histograms.shape[1])
    span = slice(histograms.indptr[user], histograms.indptr[user + 1])
    row[histograms.indices[span]] = histograms.data[span]
    return smooth(row, smoothing)


def farthest_rows(histograms: Counts, centers: Floats, size: int, smoothing: float) -> Floats:
    """The `size` users with the largest divergence from the centres, as new centres for clusters without users."""
    nearest = kl_to_centers(histograms, smooth(centers, smoothing)).min(axis=1)
    worst = np.argsort(-nearest, kind="stable")[:size]
    return np.stack([_row(histograms, int(user), smoothing) for user in worst])
