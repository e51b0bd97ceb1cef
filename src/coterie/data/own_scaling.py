"""Columns that each client scales itself, for tables in which no statistic of other clients' rows may be used.

Every client fills, centres and scales its numbers by the median, mean and deviation of its own training rows; a column that
does not vary there is only centred. True and false are 1 and 0. One client cannot know the names of all categories:
the user declares them, or they are read from all rows, and the returned plan says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.preprocessing import apply_preprocessing, column_kind, fit_preprocessing, to_numbers
from coterie.errors import DataError

Floats = npt.NDArray[np.float64]


def refuse_choices(left_out: Mapping[Any, str]) -> None:
    """Refuse to leave a column out because of its values, which would read everybody's rows; the user must do it."""
    for name, why in left_out.items():
        raise DataError(
            f"When clients scale their own rows, columns are chosen by you and not by their values; {name!r} would be left "
            f"out ({why}). Exclude it,",
            python=f"with exclude=[{name!r}], or name the columns to use with features=[…].",
            cli=f"with --exclude {name}, or name the columns to use with --features.",
        )


def columns_for_own(
    frame: pd.DataFrame,
    features: Sequence[Any],
    train: npt.NDArray[np.int64],
    max_categories: int,
    named: Mapping[Any, Sequence[str]] | None = None,
) -> tuple[Floats, list[str], pd.DataFrame | None]:
    """Raw numbers (rows, columns) with NaN where a value is missing, the columns' names, and the plan of the categories.

    `named` are the categories that the user declared: all other columns then hold numbers."""
    parts: list[Floats] = []
    names: list[str] = []
    plans: list[pd.DataFrame] = []
    for name in features:
        values = frame[name]
        if named is not None:
            numeric = name not in named
        else:
            numeric = pd.api.types.is_bool_dtype(values) or column_kind(values) == "numeric"
        if numeric:
            parts.append(to_numbers(values.astype("float64") if values.dtype == bool else values)[:, None])
            names.append(str(name))
            continue
        plan = fit_preprocessing(frame, [name], train, max_categories=max_categories, categories=named)
        parts.append(np.asarray(apply_preprocessing(frame, plan, dtype="float64")))
        names += plan.loc[plan["kind"] != "dropped", "column"].tolist()
        plans.append(plan)
    return np.concatenate(parts, axis=1), names, pd.concat(plans, ignore_index=True) if plans else None


def scaled_by_clients(x: Floats, sizes: npt.NDArray[np.int64], n_train: npt.NDArray[np.int64]) -> Floats:
    """Rows sorted by client, its training rows first; each client's numbers are filled, centred and scaled on their own."""
    out, start = np.empty_like(x), 0
    for size, count in zip(sizes, n_train, strict=True):
        out[start : start + size] = _own(x[start : start + size], int(count))
        start += int(size)
    return out


def scaled_by_ranges(
    x: Floats, numbers: Sequence[str], names: Sequence[str], ranges: Mapping[str, Sequence[float]]
) -> Floats:
    """Columns of numbers cut off at public bounds and brought to [−1, 1]; a missing value is the middle."""
    for name in numbers:
        bounds = ranges.get(name, ())
        if len(bounds) != 2 or not bounds[0] < bounds[1] or not np.isfinite(bounds).all():
            raise DataError(
                f"Every column of numbers needs public bounds, low < high; column {name!r} has "
                f"{tuple(bounds) or 'none'}. Declare them, or leave the column out,",
                python=f"with ranges={{{name!r}: (low, high), …}}.",
                cli=f'with --ranges "{name}: LOW, HIGH; …".',
            )
    for name in ranges:
        if name not in numbers:
            raise DataError(f"ranges names {name!r}, which is no column of numbers among the features. Take it out.")
    low, high = np.array([ranges.get(n, (-1.0, 1.0)) for n in names], np.float64).T
    return np.asarray(np.nan_to_num(np.clip((2 * x - low - high) / (high - low), -1, 1)))


def _own(rows: Floats, n_train: int) -> Floats:
    known = ~np.isnan(rows[:n_train])
    train = np.where(known, rows[:n_train], 0.0)
    middle = np.array([np.median(c[k]) if k.any() else 0.0 for c, k in zip(train.T, known.T, strict=True)])
    filled = np.where(np.isnan(rows), middle, rows)
    unit = np.maximum(
        np.abs(filled[:n_train]).max(axis=0, initial=0.0), 1e-300
    )  # squares of huge values do not overflow
    mean = (filled[:n_train] / unit).mean(axis=0) * unit
    spread = (filled[:n_train] / unit).std(axis=0) * unit
    return np.asarray((filled - mean) / np.where(spread > 1e-12 * unit, spread, unit))
