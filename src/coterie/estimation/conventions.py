"""What scikit-learn's users expect: named columns that may not change places, frames and dicts in, weights of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import column_or_1d, validate_data

from coterie.errors import DataError
from coterie.estimation.checks import Array, finite


def one_sentence(error: Exception, name: str) -> DataError:
    """What scikit-learn says about `name`, as an error of ours."""
    text = " ".join(str(error).split())
    if "NaN" in text or "infinity" in text:
        text = f"{name} must be finite; got NaN or infinity. Drop or impute the missing values first."
    return DataError(text)


def columns(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Rows X (N, d) as floats; sets or compares n_features_in_ and feature_names_in_ as scikit-learn does."""
    try:
        rows: Array = validate_data(estimator, X, reset=reset, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise one_sentence(error, "X") from None
    return rows


def target(estimator: Any, y: Any) -> Any:
    """One column y, of numbers or labels."""
    if y is None:
        raise DataError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None. Pass y."
        )
    if isinstance(y, str) or np.ndim(y) == 0:
        raise DataError(f"y must be a list or column of numbers or labels, one per row; got {y!r}. Pass one per row.")
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
    if weight.shape != (rows,) or weight.min(initial=0.0) < 0 or not weight.any():
        raise DataError(
            f"sample_weight must hold one number >= 0 per row, {rows} of them, and not zeros alone; got shape "
            f"{weight.shape}, the smallest {weight.min(initial=0.0):g}. Correct the one that differs."
        )
    return weight


def with_clients(X: Any, groups: Any) -> tuple[Any, Any]:
    """X and the client of every row, from a dict {client: rows}, or from a frame that has the clients in a column."""
    if isinstance(X, Mapping):
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
    if not isinstance(y, Mapping):
        return y
    if not isinstance(X, Mapping) or set(X) != set(y):
        raise DataError("y may be a dict of clients only if X is one with the same clients. Pass both, or neither.")
    for name in X:
        if np.shape(y[name])[:1] != np.shape(X[name])[:1]:
            raise DataError(f"X and y must have as many rows for client {name!r}; got others. Make the lengths equal.")
    return np.concatenate([np.asarray(y[name]) for name in X])


def _joined(parts: list[Any]) -> Any:
    try:
        return np.concatenate([np.asarray(part) for part in parts])
    except ValueError as error:
        raise DataError(
            f"Every client's rows must have the same columns: {' '.join(str(error).split())}. Reshape them."
        ) from None
