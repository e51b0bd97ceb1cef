"""Targets of more than one number: several numbers a sample, several yes/no labels, or a sequence of class labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.base.arguments import numbers
from coterie.data.checks import Ints, Kind, class_index, plain, shown
from coterie.errors import DataError

NO_LABEL = -100
"""A place of a sequence without a label, as torch marks it: neither loss nor metric counts it."""


def encode_rows(
    y: npt.NDArray[Any], kind: Kind | None, classes: Sequence[Any] | None, ids: pd.Index[Any], sizes: Ints
) -> tuple[npt.NDArray[Any], Kind, Sequence[Any] | None]:
    """Targets (samples, entries…): numbers mean regression, booleans several labels, whole numbers and text sequences."""

    def whose(bad: npt.NDArray[Any]) -> str:
        row = np.flatnonzero(bad.reshape(len(bad), -1).any(1))[0]
        return shown(ids[np.searchsorted(np.cumsum(sizes), row, side="right")])

    if kind is None:
        kind = {"f": "regression", "b": "multilabel"}.get(y.dtype.kind, "classification")  # type: ignore[assignment]
    if kind == "classification":
        return (*_sequences(y, classes, whose),)
    try:
        values = y.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"Targets for {kind} must be numbers; got {y.dtype}. Convert them.") from None
    if not np.isfinite(values).all():
        raise DataError(
            f"The target must be finite; client {whose(~np.isfinite(values))} has one that is not. Drop it."
        )
    if kind == "multilabel" and not np.isin(values, (0, 1)).all():
        bad = ~np.isin(values, (0, 1))
        raise DataError(
            f"Labels of a multilabel target are 0 or 1; client {whose(bad)} holds {values[bad][0]:g}. "
            "Use kind='regression' for numbers."
        )
    assert kind is not None
    return values, kind, None


def _sequences(
    y: npt.NDArray[Any], classes: Sequence[Any] | None, whose: Callable[[npt.NDArray[Any]], str]
) -> tuple[npt.NDArray[Any], Kind, Sequence[Any]]:
    if y.dtype.kind not in "iubUST":
        raise DataError(f"A sequence of labels holds whole numbers or text; got {y.dtype}. Convert it.")
    none = y == NO_LABEL if y.dtype.kind in "iu" else np.zeros(y.shape, bool)
    if classes is None:
        found = np.unique(y[~none])
        if len(found) < 2:
            raise DataError("Classification needs at least two classes; every label is the same. Check the target.")
        classes = [plain(v) for v in found]
    codes = class_index(classes).get_indexer(pd.Index(y.ravel())).reshape(y.shape)
    unknown = (codes < 0) & ~none
    if unknown.any():
        raise DataError(
            f"Client {whose(unknown)} has the label {shown(y[unknown][0])}, which is not among the classes. "
            "Correct it, or add the class."
        )
    return np.where(none, NO_LABEL, codes).astype(np.int64), "classification", classes


def relative_weights(weights: npt.NDArray[Any], sizes: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[Any]:
    """Sample weights with the smallest of every client as 1: only their ratios within a client count."""
    values, rows = numbers("weights", weights), int(sizes.sum())
    if values.shape != (rows,) or not (np.isfinite(values) & (values > 0)).all():
        raise DataError(
            f"Sample weights are one positive number a sample; got shape {values.shape} for {rows} samples, or others. "
            "Leave out samples that must not count."
        )
    least = np.minimum.reduceat(values, np.cumsum(sizes) - sizes)
    relative: npt.NDArray[Any] = (values / np.repeat(least, sizes)).astype(
        "float64" if dtype == "float64" else "float32"
    )
    return relative
