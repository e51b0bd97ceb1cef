"""Many vectors seen only through their inner products.

Threshold-Clustering, Krum, the geometric median and centred clipping need only the distances of N vectors of length P
to one another and to points v = o + Σ_j w_j (b_j − o) that they span. One Gram matrix G_ij = ⟨b_i − o, b_j − o⟩ costs one
product of O(N²P); every step afterwards works on the weights w and costs O(N²), whatever P.

Digits cancel: ‖b_i − v‖² = G_ii − 2(Gw)_i + wᵀGw loses the digits of ‖b_i − o‖². So sums run in float64 and
the origin o lies among most of the vectors, never at a mean that one far vector can move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from coterie.base.tree import leaves, tree_map

_ENTRIES = 1 << 22  # So many numbers are converted to float64 at a time.
_LONGEST = 1e300  # squared length of a vector that can be compared with others
_EPS = torch.finfo(torch.float64).eps


@contextmanager
def one_thread() -> Iterator[None]:
    """Run many small operations on one thread; several threads would spend more time waiting than working."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def comparable(rows: Any) -> Tensor:
    """(N,) whether distances to a vector can be computed: its squared length is finite, with a margin."""
    squares = [t.reshape(len(t), -1).double().square().sum(1) for t in leaves(rows)]
    return torch.stack(squares).sum(0) < _LONGEST


def gram(rows: Any, origin: Any | None = None) -> Tensor:
    """(N, N) float64 inner products of N stacked vectors (a tensor or tree with N leading rows) about `origin`.

    Without an origin, one of the vectors is taken: the first, or the one with the smallest median distance to the others
    where the first lies so far away that digits would be lost."""
    if origin is not None:
        return _gram(rows, origin)
    product = _gram(rows, tree_map(lambda t: t[0], rows))
    median = pairwise(product).median(1).values  # of the squared distances of each vector to all
    middle = int(median.argmin())
    if float(median.min()) >= 1e-6 * float(product[middle, middle]):
        return product
    return _gram(rows, tree_map(lambda t: t[middle], rows))


def _gram(rows: Any, origin: Any) -> Tensor:
    pairs = list(zip(leaves(rows), leaves(origin), strict=True))
    n = pairs[0][0].shape[0]
    product = torch.zeros(n, n, dtype=torch.float64)
    width = max(_ENTRIES // max(n, 1), 1)
    for stacked, middle in pairs:
        flat, centre = stacked.reshape(n, -1), middle.reshape(-1)
        for columns, o in zip(torch.split(flat, width, 1), torch.split(centre, width), strict=True):
            block = columns.double() - o.double()
            product.addmm_(block, block.T)
    return product


def pairwise(product: Tensor) -> Tensor:
    """(N, N) squared distances between the vectors."""
    square = product.diagonal()
    return (square.unsqueeze(1) + square - 2 * product).clamp(min=0)


def squared_distances(product: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(…, K, N) squared distances of the vectors to the K points with weights (…, K, N) ≥ 0, and their rounding errors."""
    square = product.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    inner = weights @ product
    own = (inner * weights).sum(-1, keepdim=True)
    norms = square.clamp(min=0).sqrt()
    error = 16 * _EPS * (norms + (weights * norms).sum(-1, keepdim=True)) ** 2
    return (square - 2 * inner + own).clamp(min=0), error


def combine(weights: Tensor, rows: Any) -> Any:
    """Σ_j w_j b_j of a tensor or tree of stacked vectors, summed in float64; weights (N,) or (K, N)."""

    def one(stacked: Tensor) -> Tensor:
        n = stacked.shape[0]
        flat = stacked.reshape(n, -1)
        width = max(_ENTRIES // max(n, 1), 1)
        total = torch.cat([weights.double() @ columns.double() for columns in torch.split(flat, width, 1)], -1)
        kept = stacked.dtype if stacked.is_floating_point() else torch.float64
        return total.to(kept).reshape(weights.shape[:-1] + stacked.shape[1:])

    return tree_map(one, rows)


def about(start: Any, weights: Tensor, rows: Any) -> Any:
    """start · (1 − Σw) + Σ_j w_j b_j."""
    rest = 1 - float(weights.sum())
    return tree_map(lambda s, m: (s.double() * rest + m.double()).to(m.dtype), start, combine(weights, rows))
