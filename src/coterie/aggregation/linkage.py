"""Groups of clients with updates in similar directions: average linkage on the cosine distance of updates.

k-means gains more by halving a group of 28 clients than by separating one of four. Average linkage has no such term for the
size of a group. Updates are not centred: the common part of all updates keeps small and noisy ones from pointing anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def cosine_distances(rows: Tensor) -> Floats:
    """1 − cosine of every pair of rows; a row of zeros is at distance 1 from all others."""
    wide = rows.double()
    unit = wide / wide.norm(dim=1, keepdim=True).clamp(min=1e-300)
    distance: Floats = (1 - unit @ unit.T).clamp(min=0).numpy()
    np.fill_diagonal(distance, 0)
    return (distance + distance.T) / 2


def cut(distance: Floats, k: int) -> Ints:
    """Cut A: the tree of average linkage at k groups; labels are numbered by first appearance."""
    if k >= len(distance):
        return np.arange(len(distance))
    tree = linkage(squareform(distance, checks=False), "average")
    return relabelled(fcluster(tree, k, "maxclust"))


def cut_without_loners(distance: Floats, k: int) -> Ints:
    """Cut B: the coarsest cut with k groups of at least two; everybody else joins the nearest of them.

    An odd client (for example with one class only) takes a whole group in cut A. If no cut has k such groups, B is A."""
    if k < len(distance):
        tree = linkage(squareform(distance, checks=False), "average")
        for groups in range(k, len(distance) + 1):
            label = fcluster(tree, groups, "maxclust").astype(np.int64)
            names, sizes = np.unique(label, return_counts=True)
            kept = names[sizes >= 2]
            if len(kept) >= k:
                largest = kept[np.argsort(-sizes[sizes >= 2], kind="stable")[:k]]
                return relabelled(_joined(distance, label, largest))
    return cut(distance, k)


def pairs_or_more(distance: Floats, most: int) -> Ints:
    """The coarsest cut with `most` groups of at least two clients, or the one with the most such groups; −1 for loners.

    Liars that agree with no other client are loners; liars that agree form their own groups, so ask for more groups than
    needed."""
    best = np.zeros(len(distance), np.int64)
    found = 1
    if len(distance) > 1:
        tree = linkage(squareform(distance, checks=False), "average")
        for groups in range(2, len(distance) + 1):
            label = fcluster(tree, groups, "maxclust")
            sizes = np.bincount(label)
            if (pairs := int((sizes >= 2).sum())) > found:
                best, found = np.where(sizes[label] >= 2, label, -1), pairs
            if found >= most:
                break
    kept = best >= 0
    best[kept] = relabelled(best[kept])
    return best


def _joined(distance: Floats, label: Ints, kept: Ints) -> Ints:
    """Those outside the kept groups join the one of least mean distance."""
    mean = np.stack([distance[:, label == name].mean(1) for name in kept])
    nearest = kept[mean.argmin(0)]
    return np.where(np.isin(label, kept), label, nearest)


def relabelled(label: npt.NDArray[np.integer[Any]]) -> Ints:
    """The same groups, numbered by first appearance."""
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.asarray(rank[inverse.ravel()])
