"""σ, Δ, δ and A² of Theorem 3, estimated from gradients: radius, inner rounds and batch choose themselves.

Section 2.4 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

Several mini-batch gradients of every client at one model show the noise, which is subtracted from all squared distances.
Clients are grouped by average linkage on what is left. The theorem hides its constants; they are taken for one here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from coterie.aggregation.linkage import Floats, Ints, cut, relabelled
from coterie.aggregation.radius import Percentile, Theory
from coterie.base.annotations import guarded
from coterie.base.arguments import Count
from coterie.errors import DataError


@dataclass(frozen=True)
class Constants:
    """`sigma`: deviation of one row's gradient, ‖·‖; `separation` Δ: the least distance of gradients of clients in different
    groups; `delta`: the share of the smallest group; `spread` A²: the largest ‖g_i − ḡ‖²/‖ḡ‖² within a group. `label` has
    every client's group. With one group Δ is infinite."""

    sigma: float
    separation: float
    delta: float
    spread: float
    label: Ints

    @property
    def least_batch(self) -> int:
        """Rows per batch so that Δ ≥ max(1, A⁴)·ρ/δ, where ρ = σ/√|B| is the noise of a batch."""
        if math.isinf(self.separation):
            return 1
        ratio = max(1.0, self.spread**2) * self.sigma / max(self.delta * self.separation, 1e-300)
        return max(1, math.ceil(min(ratio, 1e9) ** 2))

    @guarded
    def radius(self, batch: Count) -> Theory | Percentile:
        """τ = √(δρΔ) where batches are large enough for it; otherwise a ball of 100δ % of all clients, which reaches into no
        other group."""
        if batch < self.least_batch or math.isinf(self.separation):
            return Percentile(100 * self.delta)
        return Theory(self.delta, self.sigma / math.sqrt(batch), self.separation)

    @guarded
    def inner(self, batch: Count) -> int:
        """l ≥ max(1, log(ρ/Δ)/log(1 − δ/2)); 10 where the radius is a percentile."""
        noise = self.sigma / math.sqrt(batch)
        if batch < self.least_batch or math.isinf(self.separation):
            return 10
        if noise == 0:
            return 1
        return max(1, math.ceil(math.log(noise / self.separation) / math.log(1 - self.delta / 2)))

    @guarded
    def warnings(self, rows: Count) -> list[str]:
        """The conditions of Theorem 3 that do not hold for clients of so many rows, one sentence each."""
        found = []
        if self.least_batch > rows:
            found.append(
                f"Theorem 3 asks for batches of {self.least_batch} rows, since Δ = {self.separation:.3g} is small beside "
                f"σ = {self.sigma:.3g} at δ = {self.delta:.2g}; clients have {rows}. Groups may mix; compare with Local."
            )
        if self.spread > 1:
            found.append(
                f"Clients of one group differ by A² = {self.spread:.3g} > 1, so that liars may be at most "
                f"{self.delta / self.spread**2:.2g} of all."
            )
        if math.isinf(self.separation):
            found.append("All gradients agree up to their noise: there is one group, and FedAvg is simpler.")
        return found


@guarded
def constants(gradients: Tensor, batch: Count, clusters: Count | None = None) -> Constants:
    """From gradients (clients, batches, numbers): two or more batches of `batch` rows each, drawn with replacement.

    `clusters` is the number of groups; None looks for the largest jump in the heights of the tree."""
    if gradients.ndim != 3 or gradients.shape[0] < 2 or gradients.shape[1] < 2 or not bool(gradients.isfinite().all()):
        raise DataError(
            f"gradients must be finite, of two or more clients and batches, (clients, batches, numbers); got shape "
            f"{tuple(gradients.shape)}. Check them."
        )
    mean = gradients.double().mean(1).numpy()
    noise = gradients.double().var(1).sum(-1).numpy()  # of one batch, per client
    left = noise / gradients.shape[1]  # of a client's mean
    squares = np.maximum(_distances(mean) - left[:, None] - left, 0.0)
    np.fill_diagonal(squares, 0.0)
    distance = np.sqrt(squares)
    label = _groups(distance, math.sqrt(2 * float(left.mean()))) if clusters is None else cut(distance, clusters)
    apart = squares[label[:, None] != label]
    return Constants(
        math.sqrt(float(noise.mean()) * batch),
        math.sqrt(float(apart.min())) if apart.size else math.inf,
        float(np.bincount(label).min() / len(label)),
        max(_spread(mean[label == g], left[label == g]) for g in np.unique(label)),
        label,
    )


def _distances(rows: Floats) -> Floats:
    norms = np.square(rows).sum(1)
    return np.asarray(norms[:, None] + norms - 2 * rows @ rows.T)


def _groups(distance: Floats, floor: float) -> Ints:
    """The cut of average linkage below its largest relative jump; heights below the noise count as the noise."""
    tree = linkage(squareform(distance, checks=False), "average")
    heights = np.maximum(tree[:, 2], floor)
    jumps = heights[1:] / np.maximum(heights[:-1], 1e-300)
    if not jumps.size or jumps.max() < 1.5:
        return np.zeros(len(distance), np.int64)
    place = int(jumps.argmax())
    return relabelled(fcluster(tree, (tree[place, 2] + tree[place + 1, 2]) / 2, "distance"))


def _spread(rows: Floats, left: Floats) -> float:
    """A² of one group, without what the noise adds to both squares."""
    n, centre = len(rows), rows.mean(0)
    if n == 1:
        return 0.0
    away = np.square(rows - centre).sum(1) - left * (1 - 2 / n) - left.mean() / n
    size = float(centre @ centre) - float(left.mean()) / n
    return max(float(away.max()), 0.0) / size if size > 0 else math.inf
