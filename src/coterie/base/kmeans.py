"""k-means for clients' numbers, dense or sparse: scikit-learn's, with restarts and without one of its warnings."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning


def kmeans(points: Any, k: int, *, restarts: int, seed: int, weights: Any = None) -> Any:
    """A fitted `sklearn.cluster.KMeans` with k-means++ seeds, the best of `restarts` runs of Lloyd's algorithm.

    Points may be dense or sparse. There may be fewer distinct points than clusters, since clients may be equal. Some
    clusters then stay empty, and scikit-learn's warning about it is not shown. `weights`: how much each point counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(k, n_init=restarts, random_state=seed).fit(points, sample_weight=weights)
