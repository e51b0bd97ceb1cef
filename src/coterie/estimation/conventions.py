"""The conventions of scikit-learn: named columns in a fixed order, frames and dicts as input, weights of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils.validation import column_or_1d, validate_data

from coterie.base.arguments import finite, refuse_masked
from coterie.base.arguments import labels as one_column
from coterie.errors import DataError

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
_MOST_WEIGHT = 1e15  # beyond it, products of floating-point numbers lose the rows of weight 1


def one_sentence(error: Exception, name: str) -> DataError:
    """scikit-learn's error about `name` as a `CoterieError`."""
    text = " ".join(str(error).split())
    if "NaN" in text or "infinity" in text:
        text = f"{name} must be finite; got NaN or infinity. Drop or impute the missing values first."
    return DataError(text)


def columns(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Rows X (N, d) as floats; sets or compares n_features_in_ and feature_names_in_ as scikit-learn does."""
    refuse_masked(X=X)
    try:
        rows: Array = validate_data(estimator, X, reset=reset, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise one_sentence(error, "X") from None
    return rows


def target(estimator: Any, y: Any) -> Any:
    """One column y, of numbers or labels."""
    refuse_masked(y=y)
    if y is None:
        raise DataError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None. Pass y."
        )
    try:
        return column_or_1d(y, warn=True)
    except ValueError as error:
        raise one_sentence(error, "y") from None


def row_weights(sample_weight: ArrayLike | None, rows: int) -> Array | None:
    """Weights of the rows, none negative and some positive; one number serves all rows."""
    if sample_weight is None:
        return None
    weight = finite("sample_weight", sample_weight)
    weight = np.full(rows, float(weight)) if weight.ndim == 0 else weight
    if weight.shape != (rows,) or weight.min(initial=0.0) < 0 or not weight.any() or weight.max() > _MOST_WEIGHT:
        raise DataError(
            f"sample_weight must hold one number >= 0 per row, {rows} of them, and not zeros alone, up to "
            f"{_MOST_WEIGHT:g}; got shape {weight.shape}, from {weight.min(initial=0.0):g} to {weight.max(initial=0.0):g}. "
            "Correct the one that differs."
        )
    return weight


def by_client(data: Any) -> bool:
    """Whether data are a dict {client: rows}; a sparse matrix by keys, which Python counts as a dict, is not one here."""
    return isinstance(data, Mapping) and not issparse(data)


def with_clients(X: Any, groups: Any) -> tuple[Any, Any]:
    """X and the client of every row, from a dict {client: rows}, or from a frame that has the clients in a column."""
    refuse_masked(X=X, groups=groups)
    if by_client(X):
        if groups is not None:
            raise DataError("A dict of clients names them already; got groups as well. Leave groups out.")
        if not X:
            raise DataError("A dict of clients must hold at least one client; got an empty dict. Pass one per client.")
        parts, names = list(X.values()), list(X)
        frames = all(isinstance(part, pd.DataFrame) for part in parts)
        sizes = [1 if np.ndim(part) == 0 else len(part) for part in parts]
        rows = pd.concat(parts, ignore_index=True) if frames else _joined(parts)
        return rows, np.repeat(_names(names), sizes)
    if isinstance(groups, str):
        if not isinstance(X, pd.DataFrame) or groups not in X.columns:
            raise DataError(
                f"groups={groups!r} must name a column of a frame X; got {type(X).__name__}. Pass one client per row."
            )
        return X.drop(columns=groups), X[groups].to_numpy()
    return X, groups


def _names(names: list[Any]) -> Any:
    kinds = {type(name) for name in names}
    if len(kinds) > 1:
        raise DataError(f"Clients must be of one type; got {sorted(k.__name__ for k in kinds)}. Convert them to text.")
    if kinds <= {str, int, float}:
        return np.array(names)
    out = np.empty(len(names), dtype=object)
    out[:] = names
    return out


def joined_targets(y: Any, X: Any) -> Any:
    """y as one column; a dict of clients must have the clients of X."""
    refuse_masked(y=y)
    if not by_client(y):
        return y
    if not by_client(X) or set(X) != set(y):
        raise DataError("y may be a dict of clients only if X is one with the same clients. Pass both, or neither.")
    for name in X:
        if np.shape(y[name])[:1] != np.shape(X[name])[:1]:
            raise DataError(f"X and y must have equally many rows for client {name!r}; got unequal lengths. Drop some.")
    return np.concatenate([np.asarray(y[name]) for name in X])


def _joined(parts: list[Any]) -> Any:
    try:
        return np.concatenate([np.asarray(part) for part in parts])
    except ValueError as error:
        raise DataError(
            f"Every client's rows must have the same columns: {' '.join(str(error).split())}. Reshape them."
        ) from None


def labels(groups: Any) -> Any:
    """Client names that can be sorted and compared: text for anything that is not a number."""
    column = one_column("groups", groups)
    return column if column.dtype.kind != "O" else np.array(column.tolist())
