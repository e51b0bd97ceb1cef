"""k-means on clients' updates: mostly few rows with very many columns.

Distances between n rows need only their n × n Gram matrix, so k-means runs on its r leading principal coordinates
(n × r numbers instead of n × P). Where rows are more than columns, the P × P matrix of columns gives the same coordinates.
Noise that is spread thinly over all directions is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.base.kmeans import kmeans

Ints = npt.NDArray[np.int64]
_LARGEST = 1e100  # coordinates whose squares k-means can still add up


def principal_coordinates(rows: Tensor, rank: int | None = None) -> npt.NDArray[np.float64]:
    """Coordinates whose distances are those of the rows (all ranks) or of their best rank-r approximation."""
    points, unit = _centred(rows), 1.0
    if not np.isfinite(products := _products(points)).all():  # a huge row: in float64, in units of the largest number
        unit = float(rows.abs().max())
        points = _centred(rows.double() / unit)
        products = _products(points)
    values, vectors = np.linalg.eigh(products)
    keep = np.argsort(-values)[: rank or len(values)]
    coordinates: npt.NDArray[np.float64] = vectors[:, keep] * np.sqrt(np.clip(values[keep], 0, None))
    if len(points) > points.shape[1]:
        coordinates = points.double().numpy() @ vectors[:, keep]
    return coordinates * min(unit, _LARGEST)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(0)


def _products(rows: Tensor) -> npt.NDArray[np.float64]:
    """Of rows with one another, or of columns where those are fewer."""
    table = rows.T if len(rows) > rows.shape[1] else rows
    products: npt.NDArray[np.float64] = (table @ table.T).double().numpy()
    return products


def kmeans_rows(rows: Tensor, k: int, *, seed: int, restarts: int = 10, rank: int | None = -1) -> Ints:
    """Labels of Lloyd's k-means with k-means++ seeds and restarts; rank −1 keeps k principal coordinates, None all."""
    if k == 1:
        return np.zeros(len(rows), np.int64)
    points = principal_coordinates(rows, k if rank == -1 else rank)
    labels: Ints = np.asarray(kmeans(points, k, restarts=restarts, seed=seed).labels_, np.int64)
    return labels


def plusplus(squared: npt.NDArray[np.float64], k: int, *, seed: int) -> Ints:
    """k-means++ on squared distances alone: every next seed is the best of a few points, drawn by their distance to the
    nearest seed. Unlike coordinates, distances keep the digits of near points when another point is far away."""
    rng = np.random.default_rng(seed)
    chosen = [int(rng.integers(len(squared)))]
    for _ in range(k - 1):
        closest = squared[chosen].min(0)
        total = closest.sum()
        drawn = rng.choice(len(squared), 2 + int(np.log(k)), p=closest / total if total > 0 else None)
        chosen.append(int(min(drawn, key=lambda point: np.minimum(closest, squared[point]).sum())))
    return np.array(chosen)
