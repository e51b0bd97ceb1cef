"""Data that follow a declared schema: rows of a client that do not fit are left out, and no other client is affected.

Where classes, the kind of the target or the categories of columns are declared with `privacy.public(…)`, one client's rows
may not change how the others' rows are prepared, not even by an error. Every value is read on its own, whatever type its
column or array has because of other values. Rows that do not fit the schema (a label that was not declared, a target or a
feature that is not a finite number) are left out. A client that loses all of its rows keeps its place with one blank row:
zeros, and the first class. Only a warning to the holder of the rows says that something was left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.checks import Ints, Kind
from coterie.data.preprocessing import as_text, category_codes
from coterie.data.targets import NO_LABEL
from coterie.errors import ConfigError, CoterieWarning
from coterie.privacy.taint import Released

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_WHOLE = re.compile(r"-?\d+\.0+")
_WORDS = {"true": 1.0, "false": 0.0}


def plain(value: Any) -> Any:
    """A value without `privacy.public(…)` around it."""
    return value.value if isinstance(value, Released) else value


def is_public(value: Any) -> bool:
    return isinstance(value, Released) and value.free


@dataclass(frozen=True)
class Target:
    """The target, as the user declared it before anybody's rows were read."""

    kind: Kind
    classes: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, kind: Any, classes: Any) -> Target | None:
        """The declared target, if it is declared public in full."""
        if is_public(classes):
            if plain(kind) not in (None, "classification"):
                raise ConfigError(
                    f"Classes are declared for classification; got kind={plain(kind)!r}. Leave out one of them."
                )
            return cls("classification", tuple(plain(classes)))
        if is_public(kind) and plain(kind) in get_args(Kind) and plain(kind) != "classification":
            return cls(plain(kind))
        return None

    def __post_init__(self) -> None:
        texts = [_text(c) for c in self.classes or ()]
        if self.classes is not None and (len(texts) < 2 or len(set(texts)) < len(texts)):
            raise ConfigError(
                f"Public classes are at least two labels that differ as text; got {list(self.classes)}. Name each once."
            )

    def encoded(self, y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Mask]:
        """Targets as class indices or floats, and which rows fit."""
        if self.classes is not None:
            places = self._coded(y)
            if y.ndim > 1:
                return np.where(places < 0, NO_LABEL, places), np.ones(len(y), bool)
            return places, places >= 0
        values: Floats = np.reshape(numbers(pd.Series(y.ravel())), y.shape)
        good: Mask = np.isfinite(values) if self.kind == "regression" else np.isin(values, (0.0, 1.0))
        return values, np.asarray(good.reshape(len(y), -1).all(1))

    def _coded(self, y: npt.NDArray[Any]) -> Ints:
        return _places(_texts(pd.Series(y.ravel())), [_text(c) for c in self.classes or ()]).reshape(y.shape)


def _text(value: Any) -> str:
    """A label or category as text: 1, 1.0, "1" and "1.0" are one."""
    text = as_text(value)
    return text.split(".")[0] if _WHOLE.fullmatch(text) else text


def _texts(values: pd.Series[Any]) -> npt.NDArray[Any]:
    """Every value as text, None where it is missing, whatever type its column has."""
    if values.dtype == object:  # pandas would take True and 1 for one value, and name it after the first of them
        found = [None if missing else _text(v) for v, missing in zip(values, pd.isna(values), strict=True)]
        return np.array([*found, None], dtype=object)[:-1]
    codes, uniques = pd.factorize(values)
    return np.array([*(_text(u) for u in uniques), None], dtype=object)[codes]


def _places(texts: npt.NDArray[Any], known: Sequence[str]) -> Ints:
    return category_codes(pd.Series(texts, dtype="object"), list(known))


def joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """All clients' targets; where their types differ (text, numbers, true and false), each value keeps its own."""
    if len({a.dtype.kind for a in arrays}) == 1:
        return np.concatenate(list(arrays))
    return np.concatenate([pd.Series(a.ravel()).astype(object).to_numpy().reshape(a.shape) for a in arrays])


def numbers(values: pd.Series[Any]) -> Floats:
    """Every value as a finite number, read on its own; NaN for values that are not finite numbers."""
    types = pd.api.types
    if types.is_numeric_dtype(values) and not types.is_complex_dtype(values):
        found = np.asarray(values.to_numpy(np.float64, na_value=np.nan))
    else:
        codes, uniques = pd.factorize(values.astype("object"))
        found = np.array([_number(u) for u in uniques] + [np.nan])[codes]
    return np.where(np.isfinite(found), found, np.nan)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return _WORDS.get(str(value).strip().lower(), np.nan)


# ---- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows of all clients, sorted by client; with `n_test`, its training rows first, then validation and test rows."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    sizes: Ints
    n_valid: Ints | None = None
    n_test: Ints | None = None
    weights: npt.NDArray[Any] | None = None

    def fitting(self, target: Target, dtype: str) -> Rows:
        """The rows that fit the declared target, with targets encoded."""
        y, good = target.encoded(self.y)
        top = np.finfo("float32" if dtype == "int64" else dtype).max
        if self.x.dtype.kind == "f":
            good = good & (np.abs(self.x.reshape(len(good), -1)) <= top).all(1)  # NaN is not
        if y.dtype.kind == "f":
            good = good & (np.abs(y.reshape(len(good), -1)) <= top).all(1)
        if self.weights is not None:
            weights = np.asarray(self.weights, np.float64)
            good = good & np.isfinite(weights) & (weights > 0)
        told = replace(self, y=y)
        return told if good.all() else told._only(good)

    def _only(self, good: Mask) -> Rows:
        n_test = np.zeros_like(self.sizes) if self.n_test is None else np.asarray(self.n_test, np.int64)
        n_valid = np.zeros_like(self.sizes) if self.n_valid is None else np.asarray(self.n_valid, np.int64)
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        first = np.cumsum(self.sizes) - self.sizes
        place = np.arange(len(owner)) - first[owner]
        valid_at, test_at = (self.sizes - n_test - n_valid)[owner], (self.sizes - n_test)[owner]
        trained = np.bincount(owner[good & (place < valid_at)], minlength=len(self.sizes))
        blank = first[trained == 0]
        kept = good.copy()
        kept[blank] = True
        _warn(int((~good).sum()), len(np.unique(owner[~good])))
        x, y = np.array(self.x[kept]), self.y[kept]
        now = np.cumsum(kept)[blank] - 1
        x[now], y[now] = 0, 0
        weights = None if self.weights is None else np.where(good, self.weights, 1.0)[kept]

        def left(rows: Mask) -> Ints:
            return np.bincount(owner[kept & rows], minlength=len(self.sizes)).astype(np.int64)

        return Rows(
            x, y, left(np.ones_like(good)),
            None if self.n_valid is None else left((place >= valid_at) & (place < test_at)),
            None if self.n_test is None else left(place >= test_at), weights,
        )  # fmt: skip


def _warn(rows: int, clients: int) -> None:
    warnings.warn(
        f"{rows} row{'s' * (rows != 1)} of {clients} client{'s' * (clients != 1)} did not fit the declared classes or "
        "numbers and were left out for these clients alone. This sentence is for the holder of the rows: no receipt covers "
        "it.",
        CoterieWarning,
        stacklevel=5,
    )


# ---- tables ------------------------------------------------------------------------------------------------------------


def checked_categories(given: Any, features: Sequence[Any]) -> dict[Any, list[str]]:
    """{column: its categories as text}; all other features hold numbers."""
    told = plain(given)
    if not isinstance(told, Mapping) or any(
        isinstance(v, str) or not isinstance(v, Sequence) or not v for v in told.values()
    ):
        raise ConfigError(
            f"categories is {{column: [its values]}}; got {told!r}. Name every column of categories, and give {{}} where "
            "all columns hold numbers."
        )
    for column in (c for c in told if c not in features):
        raise ConfigError(f"categories names {column!r}, which is not a feature of this table. Take it out.")
    return {column: list(dict.fromkeys(_text(v) for v in values)) for column, values in told.items()}


def with_numbers(frame: pd.DataFrame, features: Sequence[Any], categories: Mapping[Any, Sequence[str]]) -> pd.DataFrame:
    """The table with text in the declared categories, and finite numbers or NaN in all other features; a warning counts what
    is neither."""
    found = {column: numbers(frame[column]) for column in features if column not in categories}
    odd = {column: np.isnan(values) for column, values in found.items()}
    texts = {column: _texts(frame[column]) for column in categories}
    odd |= {column: _places(texts[column], categories[column]) < 0 for column in categories}
    counts = {column: int((bad & frame[column].notna().to_numpy()).sum()) for column, bad in odd.items()}
    told = [f"{n} of {str(column)!r}" for column, n in counts.items() if n]
    if told:
        warnings.warn(
            f"Values that are neither numbers nor declared categories count as missing: {', '.join(told)}. This sentence is "
            "for the holder of the rows: no receipt covers it.",
            CoterieWarning,
            stacklevel=4,
        )
    made = frame.copy()
    for column, values in (found | texts).items():
        made[column] = values
    return made
