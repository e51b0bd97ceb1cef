"""Checks of a federation's data; every error names the client, what was found and what to do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.base.arguments import finite, numbers, regular
from coterie.base.arguments import shown as brief
from coterie.errors import DataError

Kind = Literal["classification", "regression", "multilabel"]
Ints = npt.NDArray[np.int64]
ArrayPair = tuple[npt.ArrayLike, npt.ArrayLike] | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]


def shown(client: Any) -> str:
    """An id as messages show it: 1, not np.int64(1)."""
    client = client.item() if isinstance(client, np.generic) else client
    return repr(client) if isinstance(client, str | int | float) else brief(client)


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def id_text(client: Any) -> str:
    """The text that a client's random numbers are made from. 1 and 1.0 are one, because a missing id elsewhere in a table
    makes floats of whole numbers."""
    return str(int(client)) if isinstance(client, float) and client.is_integer() else str(client)


def checked_ids(clients: Iterable[Any]) -> pd.Index[Any]:
    plain = [c.item() if isinstance(c, np.generic) else c for c in clients]
    for odd in (c for c in plain if not isinstance(c, str | int | float) or c != c):
        raise DataError(f"Client ids must be text or numbers; got {odd!r}. Rename that client.")
    ids: pd.Index[Any] = pd.Index(plain)
    if not ids.is_unique:
        twice = ids[ids.duplicated()][0]
        raise DataError(f"Client ids must be unique; {shown(twice)} occurs more than once. Merge or rename.")
    alike = pd.Index([id_text(c) for c in plain])
    if not alike.is_unique:  # a client's random numbers are made from its name
        raise DataError(
            f"Client ids must differ as text; {alike[alike.duplicated()][0]!r} is there as text and as a number. "
            "Rename one."
        )
    return ids


def checked_clusters(clusters: Sequence[int] | Ints, ids: pd.Index[Any]) -> Ints:
    labels = regular("clusters", clusters)
    if labels.shape != (len(ids),) or labels.dtype.kind not in "iu" or (labels < 0).any():
        raise DataError(
            f"clusters needs a whole number from 0 for each of the {len(ids)} clients; got {brief(clusters)}. "
            "Number the clusters from 0."
        )
    return labels.astype(np.int64)


def as_rows(name: str, values: Any) -> npt.NDArray[Any]:
    """An array whose first axis counts samples."""
    if isinstance(values, np.ndarray) and values.ndim and values.dtype.kind != "O":
        return values  # a map of a file stays one
    rows = regular(name, values)
    nested = rows.dtype.kind == "O" and any(isinstance(one, list | dict | set | np.ndarray) for one in rows.ravel())
    if rows.ndim == 0 or nested:
        raise DataError(f"{name} must be an array with one row per sample; got {brief(values)}. Stack the rows.")
    return rows


def row_counts(name: str, values: Any, clients: int) -> Ints:
    """A whole number of rows ≥ 0 per client."""
    counts = finite(name, values)
    if counts.shape != (clients,) or (counts < 0).any() or (counts % 1 != 0).any() or (counts > 2**53).any():
        raise DataError(f"{name} must be a whole number ≥ 0 per client, {clients} of them; got {brief(values)}.")
    return counts.astype(np.int64)


def row_weights(weights: Any, rows: int) -> npt.NDArray[np.float64]:
    values = numbers("weights", weights)
    if values.shape != (rows,):
        raise DataError(f"weights must be one number per row, {rows} of them; got shape {values.shape}.")
    return values


def refuse_arrays_as_ids(given: Sequence[Any]) -> None:
    """A list of bare (x, y) pairs, without the clients' ids."""
    for item in given:
        if not isinstance(item, tuple | list) or len(item) != 2 or isinstance(item[0], np.ndarray):
            raise DataError(
                "A list of clients holds (client id, (x, y)); got an entry without an id. "
                "Pass dict(enumerate(pairs)) to number the clients."
            )


def refuse_nested(frame: pd.DataFrame, columns: Iterable[Any]) -> None:
    """Refuse cells that hold several values, such as lists; a cell of a table is one value."""
    for column in columns:
        if frame[column].dtype == object:
            for cell in (c for c in frame[column] if not isinstance(c, Hashable)):
                raise DataError(
                    f"Every cell must hold one value; column {str(column)!r} holds a {type(cell).__name__}. Spread it "
                    "over several columns, or leave the column out."
                )


def checked_pair(client: Any, pair: ArrayPair, *, finite: bool = True) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        x, y = (np.asarray(a) for a in pair[:2])
    except (TypeError, ValueError, IndexError):
        raise DataError(
            f"Client {shown(client)} needs a pair (x, y) of arrays; got {type(pair).__name__}. Pass (x, y)."
        ) from None
    if x.ndim < 2:
        raise DataError(
            f"Client {shown(client)}: x must be (samples, features…); got shape {x.shape}. Use x.reshape(-1, 1)."
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim < 1 or len(x) != len(y):
        raise DataError(
            f"Client {shown(client)}: x and y need one row per sample; got shapes {x.shape} and {y.shape}. Make "
            "their lengths equal."
        )
    if not len(x):
        raise DataError(f"Client {shown(client)} has no samples. Drop it or give it data.")
    if x.dtype.kind not in "fiub":
        raise DataError(
            f"Client {shown(client)}: x must be numeric; got {x.dtype}. Encode text columns, or use from_frame."
        )
    if finite and x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"Client {shown(client)}: x holds NaN or infinite values. Impute them, or use from_frame.")
    return x, y


def bytes_to_numbers(arrays: list[npt.NDArray[Any]], scale: bool | None, dtype: str) -> list[npt.NDArray[Any]]:
    """Features with their bytes as numbers. Bytes to be scaled stay bytes where all arrays are bytes (they become float32
    when they are used), and are divided by 255 if other arrays are not bytes, or for float64. Every array is converted
    on its own, so that its values do not depend on the others' types."""
    if dtype == "int64":
        return [_ids(x) for x in arrays]
    scaled = arrays[0].ndim > 2 if scale is None else scale
    kept = dtype == "float32" or isinstance(arrays[0], np.memmap)
    if scaled and kept and all(x.dtype == np.uint8 for x in arrays):
        return arrays
    divisor = 255.0 if scaled else 1.0
    arrays = [(x.astype(np.float32) / divisor).astype(dtype) if x.dtype == np.uint8 else x for x in arrays]
    if len(arrays) == 1:
        return arrays
    with np.errstate(over="ignore"):  # too large values become infinite, and are found later
        return [x.astype(dtype, copy=False) for x in arrays]


def _ids(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers in a type that is not read as brightness."""
    if x.dtype.kind not in "iub":
        raise DataError(f"dtype='int64' keeps whole numbers, such as token ids; got {x.dtype}. Use dtype='float32'.")
    kept = {np.dtype(t): t for t in (np.int16, np.int32, np.int64)}
    small = {np.dtype(t): np.int16 for t in (np.int8, np.uint8, np.bool_)} | {np.dtype(np.uint16): np.int32}
    return x if x.dtype in kept else x.astype(small.get(x.dtype, np.int64))


def overflowing(x: npt.NDArray[Any], y: npt.NDArray[Any], dtype: str) -> Ints:
    """Rows that would hold NaN or infinity as `dtype`."""
    bad = np.zeros(len(y), bool)
    for values in (x, y):
        if values.dtype.kind == "f":
            top = np.finfo("float32" if dtype == "int64" else dtype).max
            flat = values.reshape(len(values), -1)
            if len(flat) and not (flat.max(initial=0) <= top and flat.min(initial=0) >= -top):  # NaN too
                bad |= ~((flat <= top) & (flat >= -top)).all(1)
    return np.flatnonzero(bad)


def refuse_mixed_targets(clients: list[Any], targets: list[npt.NDArray[Any]]) -> None:
    """Refuse targets that are text at some clients and numbers at others; NumPy would make all of them text."""
    text = np.array([y.dtype.kind in "UST" for y in targets])
    numbers = np.array([y.dtype.kind in "fiub" for y in targets])
    if text.any() and numbers.any():
        odd = clients[int(np.flatnonzero(text if text.sum() <= numbers.sum() else numbers)[0])]
        raise DataError(
            f"Targets must be numbers at all clients or text at all; client {shown(odd)} differs. Convert its targets."
        )


def encode_target(
    y: npt.NDArray[Any], kind: Kind | None, classes: Sequence[Any] | None, ids: pd.Index[Any], sizes: Ints
) -> tuple[npt.NDArray[Any], Kind, Sequence[Any] | None]:
    """Targets as class indices (int64) or float32; the error names the client that holds a bad value."""

    def whose(bad: npt.NDArray[Any]) -> str:
        return shown(ids[np.searchsorted(np.cumsum(sizes), np.flatnonzero(bad)[0], side="right")])

    missing = pd.isna(y)
    if missing.any():
        raise DataError(f"The target must not be missing; client {whose(missing)} has a NaN target. Drop those rows.")
    if y.dtype == object and any(all(isinstance(v, t) for v in y) for t in (str, int | float | np.number)):
        y = np.asarray(y.tolist())
    if y.dtype.kind not in "fiubUST":
        other = np.array([type(v) is not type(y[0]) for v in y])
        bad = other if other.any() else ~missing
        raise DataError(
            f"Targets must all be numbers or all be text; client {whose(bad)} holds {shown(y[bad][0])}. Convert it."
        )
    if kind is None:
        kind = "regression" if y.dtype.kind == "f" else "classification"
    if kind == "regression":
        values = np.asarray(pd.to_numeric(pd.Series(y), errors="coerce"), np.float64)
        if np.isnan(values).any():
            bad = np.isnan(values)
            raise DataError(
                f"A regression target must be numeric; client {whose(bad)} holds {shown(y[bad][0])}.",
                python="Correct it, or use kind='classification'.",
                cli="Correct it, or use --kind classification.",
            )
        if np.isinf(values).any():
            raise DataError(
                f"The target must be finite; client {whose(np.isinf(values))} has an infinite one. Clip it."
            )
        return values, kind, None
    if classes is None:
        found, codes = np.unique(y, return_inverse=True)
        if len(found) < 2:
            raise DataError(
                f"Classification needs at least two classes; every target is {shown(found[0])}. "
                "Check the target, or use kind='regression'."
            )
        return codes.astype(np.int64), kind, [plain(v) if isinstance(v, np.generic) else v for v in found]
    codes = class_index(classes).get_indexer(pd.Index(y))
    if (codes < 0).any():
        raise DataError(
            f"Client {whose(codes < 0)} has the target {shown(y[codes < 0][0])}, which is not among the classes "
            f"{list(classes)}. Correct it, or add the class."
        )
    return codes.astype(np.int64), kind, classes


def class_index(classes: Any) -> pd.Index[Any]:
    """The classes named by the user: different, and single values."""
    try:
        index: pd.Index[Any] = pd.Index(list(classes))
        good = index.is_unique and not index.hasnans and not isinstance(index, pd.MultiIndex)
        good = good and not any(isinstance(one, list | dict | set) for one in index)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise DataError(f"classes must be different numbers or words, none of them missing; got {brief(classes)}.")
    return index


def refuse_one_class(y: npt.NDArray[Any], ids: pd.Index[Any], sizes: Ints, classes: Sequence[Any] | None) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    one = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
    for i in np.flatnonzero(one)[:1]:
        name = y[starts[i]] if classes is None else classes[y[starts[i]]]
        raise DataError(
            f"Every client needs at least two classes; client {shown(ids[i])} has only {name!r} in {sizes[i]} samples. "
            "Drop it, merge it with another,",
            python="or pass one_class='allow' if that is meant.",
            cli="or give --one-class allow if that is meant.",
        )
