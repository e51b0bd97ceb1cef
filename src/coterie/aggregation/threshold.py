"""Threshold-Clustering: cluster centres that points far away cannot move.

Chapter 2, Algorithm 3, of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

Every centre moves on its own; centres do not compete for points. Symbols: z_i `points[i]`, v_{k,l} `centers[k]` after
inner round l, τ_{k,l} `radii`, δ the share of all points in a centre's own cluster, σ² = E‖z − Ez‖² within it,
Δ `separation` from the means of the others, β the share of malicious points. A round (eq. 2.4) is

    v_{k,l} = (1/N) Σ_i [ z_i if ‖z_i − v_{k,l−1}‖ ≤ τ_{k,l}, else v_{k,l−1} ],

that is v ← v + ρ (mean of the points in the ball − v), with ρ the share of *all* N points that lie in the ball.

All rounds run on the weights of centres in terms of points and starts, through one Gram matrix (see `gram`). Where a centre
lies so far from the matrix's origin that its rounding errors come near τ², that centre's distances are taken directly.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from coterie.aggregation.gram import about, combine, gram, one_thread, squared_distances
from coterie.aggregation.radius import Percentile, RadiusRule, radius_rule
from coterie.base.annotations import check_settings, guarded
from coterie.base.arguments import Count, finite, numbers, refuse_masked
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError, DataError
from coterie.estimation.conventions import one_sentence

Array = npt.NDArray[Any]
_ENTRIES = 1 << 22  # So many numbers (centres × vectors) are worked on at a time.
_EPS = torch.finfo(torch.float64).eps
_LOST = 1e-6  # Rounding errors may be at most this share of a squared distance or radius.
_TWENTIETH = Percentile(20)


# ---- the algorithm ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ThresholdResult:
    """`centers` (K, P); `radii` (rounds, K); `members` (K, N): who was in the ball in the last round; `history`
    (rounds + 1, K, N): all distances before the first and after every round (None unless kept)."""

    centers: Any
    radii: Any
    members: Any
    history: Any = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.centers, dtype=dtype)


@guarded
def threshold_clustering(
    points: Array | Tensor,
    centers: Array | Tensor,
    radius: RadiusRule | float = _TWENTIETH,
    rounds: Count = 10,
    *,
    history: bool = True,
) -> ThresholdResult:
    """Move `centers` (K, P) for some rounds of Algorithm 3 over `points` (N, P); arrays give arrays, tensors tensors.

    One Gram matrix of points and starts costs O((N + K)²P), each round O(K(N + K)²) and no more than a bounded piece of
    memory at a time besides the result; `history=False` spares rounds × K × N numbers."""
    rule = radius_rule(radius)
    z, start = _matrix(points, "points"), _matrix(centers, "centers")
    if z.shape[1] != start.shape[1]:
        raise DataError(
            f"centers must be as long as the points; got {start.shape[1]} and {z.shape[1]} columns. "
            "Pass points of the same space."
        )
    own = z.shape == start.shape and z.dtype == start.dtype and torch.equal(z, start)
    vectors = z if own else torch.cat([z, start])  # when every point starts a centre there are no extra vectors
    product = _finite(gram(vectors, start[0] if len(start) == 1 else None))
    own_row, step = len(vectors) - len(start), max(_ENTRIES // len(vectors), 1)
    parts = []
    for first in range(0, len(start), step):
        rows = torch.arange(first, min(first + step, len(start)))
        weights = torch.zeros(len(rows), len(vectors), dtype=torch.float64)
        weights[torch.arange(len(rows)), own_row + rows] = 1.0
        weights, *rest = _walk(product, weights, len(z), rule, rounds, history, vectors)
        parts.append([combine(weights, vectors), *rest])
    result = [torch.cat(pieces, dim) for pieces, dim in zip(zip(*parts, strict=True), (0, 1, 0, 1), strict=False)]
    return ThresholdResult(*(result if isinstance(points, Tensor) else [t.numpy() for t in result]))


def threshold_centers(
    problems: list[tuple[Any, Any]], radius: RadiusRule | float = _TWENTIETH, rounds: int = 10
) -> list[tuple[Any, Tensor]]:
    """Many independent problems at once: where `start` (P,) ends among `points` (N, P), and who was in its last ball (N,).

    Both may also be stacked models (trees with N and no leading rows). Problems with equally many points run together."""
    rule = radius_rule(radius)
    with one_thread():
        # With the start as the origin, its weight does not matter.
        products = [_finite(gram(points, start)) for points, start in problems]
        result: list[Any] = [None] * len(problems)
        for n in {len(product) for product in products}:
            which = [i for i, product in enumerate(products) if len(product) == n]
            weights = torch.zeros(len(which), 1, n, dtype=torch.float64)
            weights, _, members = _walk(torch.stack([products[i] for i in which]), weights, n, rule, rounds, False)
            for i, w, inside in zip(which, weights, members, strict=True):
                points, start = problems[i]
                result[i] = (about(start, w[0], points), inside[0])
    return result


def _walk(
    product: Tensor, weights: Tensor, n: int, rule: RadiusRule, rounds: int, keep: bool, vectors: Tensor | None = None
) -> list[Tensor]:
    """`rounds` rounds for centres with weights (K, N + K) in terms of the vectors, of which the first `n` are points."""
    radii, history = [], []
    for l in range(rounds):  # noqa: E741
        square, error, radius = _measure(product, weights, n, rule, l, vectors)  # step 1
        inside = square <= radius.unsqueeze(-1) ** 2 + error  # a tie in exact numbers stays a tie
        vote = inside.to(weights.dtype) / n  # step 2: who is inside votes for itself, who is outside for v
        weights = weights * (1 - vote.sum(-1, keepdim=True))
        weights[..., :n] += vote
        radii.append(radius)
        if keep:
            history.append(square.sqrt())
    walked = [weights, torch.stack(radii), inside]
    if keep:
        history.append(_measure(product, weights, n, lambda *_: radius, rounds, vectors)[0].sqrt())
        walked.append(torch.stack(history))
    return walked


def _measure(
    product: Tensor, weights: Tensor, n: int, rule: RadiusRule, round: int, vectors: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances of the points to the centres, their rounding errors, and the radii that follow from them."""
    square, error = (t[..., :n] for t in squared_distances(product, weights))
    radius = rule(square.sqrt(), round)
    if vectors is None:
        return square, error, radius
    lost = (error > _LOST * torch.maximum(square, radius.unsqueeze(-1) ** 2)).any(-1)
    if bool(lost.any()):
        center = combine(weights[lost], vectors.double())
        direct = torch.cdist(center, vectors[:n].double(), compute_mode="donot_use_mm_for_euclid_dist")
        slack = 16 * _EPS * (center.norm(dim=1, keepdim=True) + direct)
        square[lost], error[lost] = direct**2, slack * (2 * direct + slack)
        radius = rule(square.sqrt(), round)
    return square, error, radius


def _matrix(values: Any, name: str) -> Tensor:
    t = (
        values.detach()
        if isinstance(values, Tensor)
        else torch.from_numpy(np.require(numbers(name, values), requirements=["C", "W"]))
    )
    t = t if t.is_floating_point() else t.double()
    t = t.unsqueeze(0) if name == "centers" and t.dim() == 1 else t
    if t.dim() != 2 or not len(t):
        raise DataError(
            f"{name} must be a table with one row each and at least one row; got shape {tuple(t.shape)}. Reshape it."
        )
    return t


def _finite(product: Tensor) -> Tensor:
    if not bool(torch.isfinite(product.diagonal()).all()):
        raise DataError("Threshold-Clustering needs finite points and centers; got NaN or infinite numbers. Drop them.")
    return product


# ---- as an estimator -------------------------------------------------------------------------------------------------


@renamed
@dataclass(eq=False, repr=False)
class ThresholdClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Threshold-Clustering with scikit-learn's conventions.

    init: "k-means++" seeds `clusters` centres; "points" starts one at every point and joins those that end within each
    other's ball, so the number of clusters is found; an array gives the starts. radius: None is Percentile(100 /
    clusters), right for clusters of equal size; p must not exceed 100 × the share of the smallest cluster.
    """

    clusters: int = 8
    _: KW_ONLY
    init: Literal["k-means++", "points"] | Array = "k-means++"
    radius: RadiusRule | float | None = None
    rounds: int = 10
    random_state: int = 0

    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        check_settings(self)
        X = self._rows(X, reset=True)
        radius = Percentile(100 / self.clusters) if self.radius is None else self.radius
        result = threshold_clustering(X, self._starts(X), radius, self.rounds, history=False)
        self.cluster_centers_, self.radii_, self.members_ = result.centers, result.radii[-1], result.members
        if isinstance(self.init, str) and self.init == "points":
            close = cdist(result.centers, result.centers) <= np.minimum.outer(self.radii_, self.radii_)
            number, self.labels_ = connected_components(close, directed=False)
            self.cluster_centers_ = np.stack([result.centers[self.labels_ == k].mean(0) for k in range(number)])
        else:
            self.labels_ = self.predict(X)
        return self

    def predict(self, X: npt.ArrayLike) -> Array:
        """The nearest centre."""
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        nearest: Array = pairwise_distances_argmin(X, self.cluster_centers_)
        return nearest

    def _rows(self, X: npt.ArrayLike, *, reset: bool) -> Array:
        """What scikit-learn checks, as an error of ours."""
        refuse_masked(X=X)
        try:
            return np.asarray(validate_data(self, X, reset=reset, dtype=[np.float64, np.float32]))
        except (TypeError, ValueError) as error:
            raise one_sentence(error, "X") from None

    def _starts(self, X: Array) -> Array:
        if not isinstance(self.init, str):
            return finite("init", self.init).astype(X.dtype)
        if self.init == "points":
            return X
        if self.init != "k-means++":
            raise ConfigError(
                f"init must be 'k-means++', 'points' or an array of centres; got {self.init!r}. Pass one of these."
            )
        if not 1 <= self.clusters <= len(X):
            raise ConfigError(f"clusters={self.clusters} needs as many points; got n_samples={len(X)}. Lower it.")
        return np.asarray(kmeans_plusplus(X, self.clusters, random_state=self.random_state)[0])
