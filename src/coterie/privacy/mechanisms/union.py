"""The names that users have, found privately: noisy weights, and a threshold that a name of one user alone hardly passes.

The weighted Gaussian of Gopi, Gulhane, Kulkarni, Shen, Shokouhi and Yekhanin, "Differentially Private Set Union" (ICML
2020), on a lattice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import norm

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive
from coterie.privacy.events import Event
from coterie.privacy.mechanisms.gaussian import Book, GaussianMechanism
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.taint import Released
from coterie.privacy.terms import Adjacency, Delta


@guarded
@dataclass(frozen=True)
class SetUnion(GaussianMechanism):
    """A user adds 1/√t to each of at most ``most`` names, t of them, so that Δ = 1, or √2 when a user is replaced.

    Noise is drawn for names that somebody has, and those above ``threshold`` are given out. The probability that any of the
    t names that one user alone has passes is at most ``failure``, for every t: the threshold is the largest of
    1/√t + σ·Φ⁻¹((1 − failure)^(1/t)) plus one step (a discrete Gaussian's tail from m on is below a Gaussian's from m − 1).
    Without that event the output is a function of Gaussian sums over the others' names; so ``failure`` adds to δ."""

    name: str
    most: Count
    n_users: Count
    noise_multiplier: Positive
    failure: Delta
    adjacency: Adjacency = "zero-out"

    step = 2.0**-30

    @property
    def shape(self) -> tuple[int, ...]:
        """A public bound of how many names there are."""
        return (self.n_users * self.most,)

    @property
    def lattice_sensitivity(self) -> float:
        return 2.0**30 * (1.0 if self.adjacency == "zero-out" else math.sqrt(2))

    @property
    def derivation(self) -> str:
        factor = "" if self.adjacency == "zero-out" else "√2·"
        return f"{factor}1, the norm of at most {self.most} weights 1/√t of one user; no weight is negative"

    def event(self, noise: str = "exact") -> Event:
        return replace(super().event(noise), failure=float(self.failure))

    @cached_property
    def threshold(self) -> float:
        """What the noisy weight of a name must reach."""
        t = np.arange(1, self.most + 1)
        return float((1 / np.sqrt(t) + self.sigma * norm.isf(-np.expm1(np.log1p(-self.failure) / t))).max()) + self.step

    @guarded
    def __call__(self, users: Iterable[Collection[str]], noise: Noise, book: Book | None = None) -> Released[list[str]]:
        """The names found, sorted. A user with more than ``most`` different names must have chosen before."""
        total: Counter[str] = Counter()
        for names in users:
            own = sorted(set(names))[: self.most]
            for name in own:
                total[name] += int(1 / (self.step * math.sqrt(len(own))))
        known = sorted(total)
        weights = np.array([total[name] for name in known], dtype=np.int64)
        released = self.give_out(weights, noise, book)
        return released.map(lambda noisy: [n for n, w in zip(known, noisy, strict=True) if w >= self.threshold])
