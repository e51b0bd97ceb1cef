"""Evidence on trained methods from sums that clients tell of losses on their test rows, which stay with them.

Parts of a client's rows: 0, the test rows of all splits; 1, distinct ones, each with its mean loss over the splits that
hold it out; then the test rows of each split. Smaller losses are better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.evidence.gains import Floats, Gains, Ints, trained_gains
from coterie.evidence.scores import ClientScores

SUMS = ("known", "count", "mean", "products")


def sums_of(losses: Sequence[Floats], names: Sequence[npt.NDArray[Any]]) -> dict[str, Floats]:
    """What one client tells: `losses` (methods, rows) of every split, and the `names` of its rows."""
    every = np.concatenate(losses, 1)
    _, place = np.unique(np.concatenate(names), return_inverse=True)
    known = bool(every.size and np.isfinite(every).all())
    rows = every if known else np.zeros_like(every)
    distinct = np.stack([np.bincount(place, r) for r in rows]) / np.maximum(np.bincount(place), 1)
    parts = [rows, distinct, *np.split(rows, np.cumsum([len(n) for n in names])[:-1], 1)]
    means = [p.sum(1) / max(p.shape[1], 1) for p in parts]
    apart = [p - mean[:, None] for p, mean in zip(parts, means, strict=True)]
    counts = np.array([float(p.shape[1]) for p in parts])
    return {
        "known": np.array(float(known)), "count": counts, "mean": np.stack(means),
        "products": np.stack([a @ a.T for a in apart]),
    }  # fmt: skip


@dataclass(frozen=True)
class Told:
    """The sums of all clients: `known` (clients,), `count` (clients, parts), `mean` (…, methods), `products` (…, methods,
    methods). The first method is the overall average, the second `local`."""

    known: Floats
    count: Floats
    mean: Floats
    products: Floats

    @classmethod
    def of(cls, each: Sequence[Mapping[str, Floats]]) -> Told:
        """From the sums of one client after the other."""
        return cls(*(np.stack([one[name] for one in each]) for name in SUMS))

    def scores(self, metric: str, methods: Sequence[str], ways: Sequence[str], test_share: float) -> ClientScores:
        """What the rule takes; a client without rows in some split is left out."""
        keep = np.flatnonzero((self.known > 0) & (self.count > 0).all(1))
        part = np.r_[0, 2 : self.count.shape[1]]
        count, mean, products = (np.moveaxis(v[keep][:, part], 0, -1) for v in (self.count, self.mean, self.products))
        return ClientScores.of(
            metric, keep, len(self.known), count, mean, products, (mean * count[:, None])[None, 1:],
            methods=tuple(methods), ways=tuple(ways), test_share=test_share,
        )  # fmt: skip

    def gains(self, method: int, each: Floats, sizes: Ints, metric: str) -> Gains:
        """The gains of a method over `local`, one client at a time; `each` (runs, clients) are its gains in every run."""
        n, own = self.count[:, 1], self.products[:, 1]
        squares = own[:, method, method] + own[:, 1, 1] - 2 * own[:, method, 1]
        variance = np.where((n > 1) & (self.known > 0), np.maximum(squares, 0) / np.maximum(n - 1, 1), np.inf)
        return trained_gains(variance, n, each, sizes, metric)
