"""How well clusters were found: parameter distance (M-1), cluster accuracy and adjusted Rand index (M-2), and precision
and recall for methods without labels (M-2').

Labels are arbitrary, so everything is up to renaming (erratum EC-2). Two pandas Series are aligned by their index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from coterie.base.tree import flat_vector
from coterie.errors import DataError

Labels = Any
"""One label per client: an array, list, tensor or Series of anything with equality."""
Models = Any
"""k stacked models: an array or tensor with k rows, or a parameter dictionary of such."""


def parameter_distance(
    estimated: Models, true: Models, matching: Literal["permutation", "nearest"] = "permutation"
) -> float:
    """M-1: min over permutations π of (1/k) Σ_j ‖θ̂_j − θ*_π(j)‖.

    "nearest" measures each estimate from the truth nearest to it, as the IFCA authors' code does; it is 0 even when all
    models sit on the same truth (erratum EC-1)."""
    a, b = _rows(estimated), _rows(true)
    if a.shape[1] != b.shape[1]:
        raise DataError(f"Models must have equally many parameters; got {a.shape[1]} and {b.shape[1]}.")
    distances = cdist(a, b)
    if matching == "nearest":
        return float(distances.min(1).mean())
    if matching != "permutation":
        raise DataError(f"matching must be 'permutation' or 'nearest'; got {matching!r}.")
    if len(a) != len(b):
        raise DataError(
            f"A permutation needs as many estimated as true models; got {len(a)} and {len(b)}. Use matching='nearest'."
        )
    return float(distances[linear_sum_assignment(distances)].mean())


def cluster_accuracy(estimated: Labels, true: Labels) -> float:
    """M-2: the share of clients in the right cluster under the best matching of estimated to true clusters.

    The numbers of clusters may differ; a cluster without a partner counts as wrong."""
    a, b = _codes(estimated, true)
    confusion = np.zeros((a.max() + 1, b.max() + 1), np.int64)
    np.add.at(confusion, (a, b), 1)
    return float(confusion[linear_sum_assignment(confusion, maximize=True)].sum() / len(a))


def adjusted_rand(estimated: Labels, true: Labels) -> float:
    """Adjusted Rand index: 1 for equal clusterings, about 0 for unrelated ones."""
    a, b = _codes(estimated, true)
    return float(adjusted_rand_score(b, a))


@dataclass(frozen=True, eq=False)
class PairwiseQuality:
    """Means over the clients, and the clients' own values (NaN: an empty ball has no precision)."""

    precision: float
    recall: float
    precisions: npt.NDArray[np.float64]
    recalls: npt.NDArray[np.float64]


def pairwise_quality(members: Any, true: Labels) -> PairwiseQuality:
    """M-2': row i of `members` (N, N) says who was in client i's ball; compared with its true cluster, itself included.
    Estimated labels instead of a table put every client's cluster in its ball."""
    if np.ndim(members) == 1:
        found, codes = _codes(members, true)
        inside = found[:, None] == found
    else:
        inside, (codes, _) = np.asarray(members, dtype=bool), _codes(true, true)
    if inside.shape != (len(codes), len(codes)):
        raise DataError(
            f"members needs a row and a column per client; got shape {inside.shape} for {len(codes)} labels."
        )
    same = codes[:, None] == codes
    hits, size = (inside & same).sum(1), inside.sum(1)
    precisions = np.full(len(codes), np.nan)
    np.divide(hits, size, out=precisions, where=size > 0)
    recalls = hits / same.sum(1)
    precision = float(precisions[size > 0].mean()) if size.any() else float("nan")
    return PairwiseQuality(precision, float(recalls.mean()), precisions, recalls)


def _rows(models: Models) -> npt.NDArray[np.float64]:
    if isinstance(models, Mapping):
        models = flat_vector(models, 1)
    table = np.asarray(models.detach().double() if isinstance(models, Tensor) else models, dtype=np.float64)
    if table.ndim < 2 or not len(table):
        raise DataError(f"Models must be stacked, one row each; got shape {table.shape}.")
    return table.reshape(len(table), -1)


def _codes(estimated: Labels, true: Labels) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Both labellings as whole numbers, client by client."""
    if isinstance(estimated, pd.Series) and isinstance(true, pd.Series):
        if not (estimated.index.is_unique and len(estimated) == len(true) and estimated.index.isin(true.index).all()):
            raise DataError("Both series must hold every client once; their indexes differ. Reindex one to the other.")
        true = true.loc[estimated.index]
    columns = [
        pd.Series(labels.detach().numpy() if isinstance(labels, Tensor) else labels) for labels in (estimated, true)
    ]
    if len(columns[0]) != len(columns[1]) or not len(columns[0]):
        raise DataError(
            f"Both labellings need one label per client; got {len(columns[0])} and {len(columns[1])} labels."
        )
    if any(bool(column.isna().any()) for column in columns):
        raise DataError("Every client needs a label; got missing ones. Drop those clients.")
    a, b = (pd.factorize(column)[0].astype(np.int64) for column in columns)
    return a, b
