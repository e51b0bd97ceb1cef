"""Rows that are not independent: several of one unit (a patient, a device, a pupil), or rows that follow in time.

The user names the columns (`unit=`, `time=`), or says "none". A column that looks like one of them is suspected by name: as
long as nobody has chosen, the answer about learning together is a leaning at most."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.lookalikes import Columns, is_date
from coterie.data.preprocessing import first_text
from coterie.data.rows import Note
from coterie.errors import DataError

NO_COLUMN = "none"
ROLES = ("unit", "time")
_FEW_CLIENTS, _ROWS, _MOST = 3, 4, 0.95
_TIMES = re.compile(
    r"(^|[_\W])(year|time|date|days?|weeks?|months?|hours?|quarter|period|wave|visit|step|t)$", re.IGNORECASE
)
_UNITS = re.compile(
    r"(^|[_\W])(subject|subj|patient|person|student|pupil|child|user|customer|respondent|participant|household|individual"
    r"|family|device|sensor|machine|animal|tree|plot|session|run|batch|pig|eye)s?([_\W]?(id|no|nr|number|code))?$",
    re.IGNORECASE,
)


def chosen(column: str | None) -> str | None:
    """The column named, if one is."""
    return None if column is None or column == NO_COLUMN else column


def coded(frame: pd.DataFrame, unit: str | None, time: str | None, **positive: str | None) -> dict[str, np.ndarray]:
    """The chosen columns as numbers: a code per unit, a time that grows, and ``positive`` numbers (weight, exposure)."""
    found = {}
    for role, name in positive.items():
        if name is None:
            continue
        numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64)
        if not (np.isfinite(numbers) & (numbers > 0)).all():
            raise DataError(
                f"The {role} must be a positive number in every row; column {name!r} has others. Correct them."
            )
        found[role] = numbers
    if (name := chosen(unit)) is not None:
        _refuse_missing(frame[name], "unit")
        found["unit"] = np.asarray(pd.factorize(frame[name])[0], np.int64)
    if (name := chosen(time)) is not None:
        _refuse_missing(frame[name], "time")
        found["time"] = times(frame[name])
    return found


def times(values: pd.Series[Any]) -> np.ndarray:
    """Numbers as they are, dates as days since 1970, periods by their start."""
    kinds = pd.api.types
    if kinds.is_numeric_dtype(values) and not kinds.is_bool_dtype(values) and not kinds.is_complex_dtype(values):
        return values.to_numpy(np.float64)
    try:
        if isinstance(values.dtype, pd.PeriodDtype):
            values = values.dt.start_time
        elif not kinds.is_datetime64_any_dtype(values):
            values = pd.to_datetime(values.astype("str"), format="mixed", utc=True)
        stamps = values.dt.tz_convert(None) if values.dt.tz is not None else values
    except (TypeError, ValueError, AttributeError):
        raise DataError(
            f"The time must hold numbers or dates; column {values.name!r} holds {first_text(values)!r}. Correct that value."
        ) from None
    return np.asarray((stamps - pd.Timestamp(0)) / pd.Timedelta(days=1), np.float64)


def _refuse_missing(values: pd.Series[Any], role: str) -> None:
    missing = int(pd.isna(values).sum())
    if missing:
        raise DataError(f"Every row needs a {role}; column {values.name!r} is missing in {missing} rows. Fill them in.")


def held_out(
    ids: pd.Series[Any], beside: Mapping[str, np.ndarray], fraction: float, seed: int
) -> pd.Series[Any] | None:
    """ "train" or "test" per row for methods that train on one split: each client's last rows, or some of its units.

    A client's first row in time, or its first unit, always trains. None without a time and a unit."""
    if not {"unit", "time"} & set(beside) or fraction == 0:
        return None
    owner = np.asarray(pd.factorize(ids)[0], np.int64)
    size = np.bincount(owner[owner >= 0], minlength=int(owner.max()) + 1)
    if "time" in beside:
        order = np.lexsort((beside["time"], owner))
    else:
        order = np.lexsort(
            (np.random.default_rng([seed, 29]).random(int(beside["unit"].max()) + 1)[beside["unit"]], owner)
        )
    place = np.empty(len(owner), np.int64)
    place[order] = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    if "unit" in beside and "time" not in beside:  # a unit is held out as a whole, by the place of its first row
        code = np.unique(owner * (int(beside["unit"].max()) + 1) + beside["unit"], return_inverse=True)[1]
        least = np.full(int(code.max()) + 1, len(owner))
        np.minimum.at(least, code, place)
        place = least[code]
    train = place < np.maximum(np.ceil(size * (1 - fraction)), 1)[owner]
    return pd.Series(np.where(train, "train", "test"), index=ids.index, name="split")


def suspects(
    frame: pd.DataFrame, client: str, target: str, columns: Sequence[Any], given: Mapping[str, str | None]
) -> dict[str, str]:
    """{"unit" or "time": the first column that looks like it}, of the roles about which nobody has said anything."""
    look = Columns(frame, client, target)
    looks = {"unit": _like_unit, "time": _like_time}
    found = {}
    for role in (role for role in ROLES if given.get(role) is None):
        for column in (c for c in columns if c not in given.values()):
            if looks[role](frame[column], look):
                found[role] = str(column)
                break
    return found


def notes_on(found: Mapping[str, str]) -> list[Note]:
    """A sentence per suspected column, with the option that ends the doubt."""
    why = {
        "unit": "several rows each; rows of one unit belong in one fold",
        "time": "rows that follow in time; the future should be judged by models of the past",
    }
    return [
        Note(
            f"{column!r} looks like the {role} of {why[role]}. Until you choose, the answer is at most a leaning.",
            f'Choose with {role}={column!r}, or {role}="none".',
            f"Choose with --{role} {column!r}, or --{role} none.",
        )
        for role, column in found.items()
    ]


def _like_unit(values: pd.Series[Any], look: Columns) -> bool:
    """An identifier with several rows per value and several values per client: by its name, or nested in clients."""
    kinds = pd.api.types
    if kinds.is_bool_dtype(values) or is_date(values.dropna()):
        return False
    numbers = kinds.is_numeric_dtype(values)
    if numbers and not bool((values.dropna() % 1 == 0).all()):
        return False
    codes = np.asarray(pd.factorize(values, use_na_sentinel=False)[0], np.int64)
    pair = look.owner * (int(codes.max(initial=0)) + 1) + codes
    _, size = np.unique(pair, return_counts=True)
    if len(size) < 3 * look.clients or not 1.5 <= len(codes) / len(size) <= 100 or np.median(size) < 2:
        return False
    if _UNITS.search(str(values.name)):
        return True
    return look.nested_in_clients(values) and not _goes_up(values, look)


def _like_time(values: pd.Series[Any], look: Columns) -> bool:
    """Dates, or numbers that grow from row to row of a client and recur in other clients or are called a time."""
    present = values.dropna()
    if not len(present) or pd.api.types.is_bool_dtype(values) or look.constant_in_clients(values):
        return False
    if is_date(present):
        return present.nunique() >= 5
    if not pd.api.types.is_numeric_dtype(values) or values.isna().any() or values.nunique() < 5:
        return False
    codes = np.asarray(pd.factorize(values)[0], np.int64)
    alone = len(np.unique(look.owner * (int(codes.max(initial=0)) + 1) + codes)) >= _MOST * len(codes)
    named = bool(_TIMES.search(str(values.name)))
    return alone and (named or (_goes_up(values, look) and values.nunique() < 0.5 * len(values)))


def _goes_up(values: pd.Series[Any], look: Columns) -> bool:
    """Whether the numbers grow strictly within almost all clients of four rows or more, of which there are three."""
    if not pd.api.types.is_numeric_dtype(values):
        return False
    order = np.argsort(look.owner, kind="stable")
    owner, number = look.owner[order], values.to_numpy(np.float64)[order]
    same = owner[1:] == owner[:-1]
    falls = np.bincount(owner[1:][same], weights=np.diff(number)[same] <= 0, minlength=look.clients)
    large = np.bincount(owner, minlength=look.clients) >= _ROWS
    return bool(large.sum() >= _FEW_CLIENTS and (falls[large] == 0).mean() >= _MOST)
