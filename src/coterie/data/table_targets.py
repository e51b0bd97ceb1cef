"""The target of a table: numbers or classes, checked, with errors that name the column or the client."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.checks import Ints, Kind
from coterie.data.preprocessing import FEW, MANY, PLAIN, first_text, most_categories, refuse_stray_text
from coterie.data.rows import Note
from coterie.errors import DataError

NumberKind = Literal["count", "amount", "share", "robust"]
NUMBER_KINDS: tuple[str, ...] = get_args(NumberKind)


def said_of_classes(values: pd.Series[Any]) -> list[Note]:
    """A remark where whole numbers, which may be quantities, were taken for classes."""
    distinct = values.dropna().unique()
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values) or len(distinct) < 3:
        return []
    return [
        Note(
            f"The {len(distinct)} whole numbers of the target {values.name!r} were taken for classes without an order.",
            "If they are quantities, use kind='regression' or kind='count'.",
            "If they are quantities, use --kind regression or --kind count.",
        )
    ]


def infer_kind(values: pd.Series[Any]) -> Kind:
    """Text, booleans, and whole numbers with at most 20 distinct values: classification. Other numbers: regression, also
    more than ten whole numbers of which most occur once."""
    types = pd.api.types
    if types.is_bool_dtype(values) or isinstance(values.dtype, pd.CategoricalDtype):
        return "classification"
    plain = values if types.is_numeric_dtype(values) else values.astype("object")
    numbers = pd.to_numeric(plain, errors="coerce")
    if numbers.isna().any():
        return "classification"
    distinct = numbers.unique()
    with np.errstate(invalid="ignore"):  # an infinite value is no whole number
        whole = bool(np.all(np.asarray(distinct, np.float64) % 1 == 0))
    codes = len(distinct) <= FEW // 2 or len(distinct) <= min(FEW, len(numbers) // 2)
    return "classification" if whole and codes else "regression"


def levels_told_apart(frame: pd.DataFrame, target: Any, kind: Any) -> int:
    """Categories of a column that exact models tell apart: few for several classes, on which none has one effect."""
    try:
        values = frame[target].dropna()
        classes = kind == "classification" or (kind is None and infer_kind(values) == "classification")
        return MANY if classes and values.nunique() > 2 else most_categories(len(frame))
    except (KeyError, TypeError, ValueError):  # what is wrong with the target is said where it is read
        return MANY


def checked_target(
    values: pd.Series[Any], kind: Kind | None, owner: Ints, clients: pd.Index[Any]
) -> tuple[npt.NDArray[Any], Kind, list[Any] | None]:
    """Checked targets, the kind of task, and the sorted classes."""
    missing = np.flatnonzero(pd.isna(values).to_numpy())
    if len(missing):
        raise DataError(
            f"The target must not be missing; client {plain_value(clients[owner[missing[0]]])!r} has a NaN in column "
            f"{values.name!r} ({len(missing)} rows in all). Fill them in,",
            python="or drop those rows with drop_missing=True.",
            cli="or drop those rows with --drop-missing.",
        )
    found = pd.api.types.infer_dtype(values)
    odd = any(word in found for word in ("date", "time", "period", "interval", "complex", "bytes"))
    if odd or (found == "mixed" and not all(isinstance(v, PLAIN) for v in values)):
        raise DataError(
            f"The target {values.name!r} holds {found} values; it must be a number or a class label. "
            "Name another column."
        )
    if kind is None and not (pd.api.types.is_numeric_dtype(values) or isinstance(values.dtype, pd.CategoricalDtype)):
        refuse_stray_text(values, "The target")
    kind = infer_kind(values) if kind is None else kind
    if kind not in get_args(Kind):
        raise DataError(f"kind must be 'classification' or 'regression'; got {kind!r}. Choose one of them.")
    if kind == "regression":
        return regression_target(values, owner, clients), kind, None
    y, classes = _class_target(values)
    return y, kind, classes


def regression_target(values: pd.Series[Any], owner: Ints, clients: pd.Index[Any]) -> npt.NDArray[np.float64]:
    try:
        y = np.asarray(pd.to_numeric(values.astype("object")), np.float64)
    except (TypeError, ValueError):
        bad = first_text(values)
        raise DataError(
            f"A regression target must be numeric; column {values.name!r} holds {bad!r}. Correct that value,",
            python="or use kind='classification'.",
            cli="or use --kind classification.",
        ) from None
    infinite = np.flatnonzero(np.isinf(y))
    if len(infinite):
        raise DataError(
            f"The target must be finite; client {plain_value(clients[owner[infinite[0]]])!r} has an infinite value in "
            f"column {values.name!r}. Drop or clip those rows."
        )
    return y


def class_labels(values: pd.Series[Any]) -> tuple[Ints, list[Any]]:
    """Every row's place in a list of distinct labels, plain Python values."""
    if pd.api.types.is_float_dtype(values) and (values % 1 == 0).all():
        values = values.astype("int64")
    codes, uniques = pd.factorize(values)
    return codes.astype(np.int64), [plain_value(u) for u in uniques]


def _class_target(values: pd.Series[Any]) -> tuple[npt.NDArray[Any], list[Any]]:
    codes, plain = class_labels(values)
    uniques = plain
    if len(uniques) < 2:
        raise DataError(
            f"Classification needs at least two classes; every value of the target {values.name!r} is "
            f"{uniques[0]!r}. Name another target."
        )
    if len(uniques) > FEW and len(uniques) > 0.5 * len(values):
        raise DataError(
            f"The target {values.name!r} has {len(uniques)} distinct values in {len(values)} rows, too many for class "
            "labels. Name another target,",
            python="or use kind='regression' if it is a quantity.",
            cli="or use --kind regression if it is a quantity.",
        )
    if len({type(p) for p in plain}) > 1:  # 1 and "1" in one column: compare and sort them as text
        plain = [str(p) for p in plain]
    classes = sorted(set(plain))
    position = {c: i for i, c in enumerate(classes)}
    labels = np.empty(len(classes), dtype=object)
    labels[:] = classes
    return labels[np.array([position[p] for p in plain])[codes]], classes


def plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
