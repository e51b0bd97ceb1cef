"""k-means on clients' updates: few rows, very many columns.

Distances between n rows need only their n × n Gram matrix, so k-means runs on its r leading principal coordinates
(n × r numbers instead of n × P). Noise that is spread thinly over all directions is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.kmeans import kmeans

Ints = npt.NDArray[np.int64]
_LARGEST = 1e100  # coordinates whose squares k-means can still add up


def principal_coordinates(rows: Tensor, rank: int | None = None) -> npt.NDArray[np.float64]:
    """Coordinates whose distances are those of the rows (all ranks) or of their best rank-r approximation."""
    centred, unit = rows - rows.mean(0), 1.0
    gram = (centred @ centred.T).double().numpy()
    if not np.isfinite(gram).all():  # a huge row: the same in float64, in units of the largest number
        unit = float(rows.abs().max())
        wide = rows.double() / unit
        gram = ((wide - wide.mean(0)) @ (wide - wide.mean(0)).T).numpy()
    values, vectors = np.linalg.eigh(gram)
    keep = np.argsort(-values)[: rank or len(values)]
    coordinates: npt.NDArray[np.float64] = vectors[:, keep] * np.sqrt(np.clip(values[keep], 0, None))
    return coordinates * min(unit, _LARGEST)


def kmeans_rows(rows: Tensor, k: int, *, seed: int, restarts: int = 10, rank: int | None = -1) -> Ints:
    """Labels of Lloyd's k-means with k-means++ seeds and restarts; rank −1 keeps k principal coordinates, None all."""
    if k == 1:
        return np.zeros(len(rows), np.int64)
    points = principal_coordinates(rows, k if rank == -1 else rank)
    labels: Ints = np.asarray(kmeans(points, k, restarts=restarts, seed=seed).labels_, np.int64)
    return labels


def plusplus(squared: npt.NDArray[np.float64], k: int, *, seed: int) -> Ints:
    """k-means++ on squared distances alone: every next seed is the best of a few points, drawn by their distance to the
    nearest seed. Unlike coordinates, distances keep the digits of near points beside a far one."""
    rng = np.random.default_rng(seed)
    chosen = [int(rng.integers(len(squared)))]
    for _ in range(k - 1):
        closest = squared[chosen].min(0)
        total = closest.sum()
        drawn = rng.choice(len(squared), 2 + int(np.log(k)), p=closest / total if total > 0 else None)
        chosen.append(int(min(drawn, key=lambda point: np.minimum(closest, squared[point]).sum())))
    return np.array(chosen)
