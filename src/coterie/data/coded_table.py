"""A table with a client column, checked and coded. It needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.base.annotations import guarded
from coterie.base.arguments import refuse_masked, shown
from coterie.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_BY_ROW = ("X", "y", "owner", "unit", "time", "weight", "exposure")
KINDS = ("regression", "classification")


@dataclass(frozen=True)
class Table:
    """Numeric columns, a target (numbers, or class codes) and the client of every row, coded 0…m−1.

    ``unit`` is the patient, device or pupil whose several rows belong together, and ``time`` orders rows, which are then
    sorted by it. ``weight`` says how much a row counts, ``exposure`` over what its events were counted. The last columns may
    hold codes of categories, as many of them as ``levels`` says (`comparison.exact.levels`)."""

    X: Floats
    y: Floats
    owner: Ints
    clients: pd.Index[Any]
    names: tuple[str, ...]
    classes: pd.Index[Any] | None
    unit: Ints | None = None
    time: Floats | None = None
    weight: Floats | None = None
    exposure: Floats | None = None
    kind: str = ""  # count, amount, share or robust (`comparison.exact.families`)
    levels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.clients) < 2:
            raise DataError(
                "There is only one client, so there is nothing to compare; name a column with several clients."
            )
        if self.n_classes > 50 and self.n_classes > len(self.y) // 5:
            raise DataError(f"The target has {self.n_classes} classes for {len(self.y)} rows; use kind='regression'.")

    @property
    def n_clients(self) -> int:
        return len(self.clients)

    @property
    def relative_weight(self) -> Floats:
        """The weight of every row as a multiple of its client's mean weight."""
        assert self.weight is not None
        mean = np.bincount(self.owner, weights=self.weight, minlength=self.n_clients) / np.maximum(self.sizes, 1)
        return np.asarray(self.weight / mean[self.owner])

    @property
    def judged_as(self) -> str:
        """The kind of target, which says how it is fitted and judged."""
        return "classification" if self.classes is not None else self.kind or "regression"

    @property
    def n_classes(self) -> int:
        return 0 if self.classes is None else len(self.classes)

    @property
    def sizes(self) -> Ints:
        return np.bincount(self.owner, minlength=self.n_clients)

    @property
    def n_rows(self) -> int:
        return len(self.y)

    @property
    def variance(self) -> float:
        """Of the target."""
        return float(self.y.var())

    def means(self) -> Floats:
        """(clients, columns)."""
        sums = [np.bincount(self.owner, weights=v, minlength=self.n_clients) for v in self.X.T]
        return np.stack(sums, 1) / self.sizes[:, None]

    def deviations(self) -> Floats:
        """The standard deviation of every column."""
        return np.asarray(self.X.std(0))

    def second_moments(self, mean: Floats, inverse: Floats) -> Floats:
        """The mean of z zᵀ over rows z = (1, (x − mean) · inverse)."""
        Z = np.hstack([np.ones((len(self.X), 1)), (self.X - mean) * inverse])
        return np.asarray(Z.T @ Z / len(Z))

    def rows(self, keep: npt.NDArray[Any]) -> Table:
        """The same clients with some of the rows."""
        some = {n: v[keep] for n in _BY_ROW if (v := getattr(self, n)) is not None}
        return replace(self, **some)

    def outputs(self) -> Floats:
        """The target as (rows, outputs), see `Rows`."""
        if self.classes is None:
            return np.asarray(self.y[:, None])
        if self.n_classes == 2:
            return np.asarray(self.y == 1, dtype=np.float64)[:, None]
        return np.asarray(np.eye(self.n_classes)[self.y.astype(np.int64)])


@dataclass(frozen=True)
class TableFacts:
    """What is known of a table whose rows stay where they are. ``moments`` is the mean of z zᵀ over z = (1, x − centre)."""

    sizes: Ints
    clients: pd.Index[Any]
    names: tuple[str, ...]
    classes: pd.Index[Any] | None
    variance: float
    client_means: Floats
    centre: Floats
    moments: Floats
    unit: Ints | None = None
    time: Floats | None = None

    @property
    def n_clients(self) -> int:
        return len(self.clients)

    @property
    def n_classes(self) -> int:
        return 0 if self.classes is None else len(self.classes)

    @property
    def n_rows(self) -> int:
        return int(self.sizes.sum())

    def means(self) -> Floats:
        return self.client_means

    def deviations(self) -> Floats:
        return np.asarray(np.sqrt(np.maximum(np.diag(self.moments)[1:] - self.moments[0, 1:] ** 2, 0)))

    def second_moments(self, mean: Floats, inverse: Floats) -> Floats:
        turn = np.diag(np.append(1.0, inverse))
        turn[1:, 0] = (self.centre - mean) * inverse
        return np.asarray(turn @ self.moments @ turn.T)


@guarded
def make_table(X: Any, y: Any, clients: Any, kind: str, names: Sequence[str] | None) -> Table:
    """Check the input and code clients and classes; every refusal is one sentence."""
    refuse_masked(X=X, y=y, clients=clients)
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}.")
    if names is None:
        names = [str(c) for c in X.columns] if isinstance(X, pd.DataFrame) else None
    try:
        values = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("The columns must be numbers; turn categories into 0/1 columns first.") from None
    if values.ndim != 2:
        raise DataError(f"X must have rows and columns, but has {values.ndim} dimension(s).")
    target, owner = (pd.Series(_column(name, given)) for name, given in (("y", y), ("clients", clients)))
    if not len(values) == len(target) == len(owner):
        raise DataError(
            f"X, y and clients must have one entry per row, but have {len(values)}, {len(target)}, {len(owner)}."
        )
    if not np.isfinite(values).all() or target.isna().any() or owner.isna().any():
        raise DataError("The table has missing or infinite values; drop or fill those rows first.")
    names = tuple(names) if names is not None else tuple(f"x{j}" for j in range(values.shape[1]))
    if len(names) != values.shape[1]:
        raise DataError(f"There are {len(names)} names for {values.shape[1]} columns.")
    codes, labels = pd.factorize(owner, sort=True)
    classes: pd.Index[Any] | None = None
    if kind == "classification":
        coded, found = pd.factorize(target, sort=True)
        classes, number = pd.Index(found), np.asarray(coded, dtype=np.float64)
    else:
        try:
            number = target.to_numpy(dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError("A regression needs a numeric target; use kind='classification' for labels.") from None
        if not np.isfinite(number).all():
            raise DataError("The target has infinite values; drop those rows first.")
    return Table(values, number, np.asarray(codes, dtype=np.int64), pd.Index(labels), names, classes)


def _column(name: str, given: Any) -> Any:
    """One column; missing values are counted later, with those of the others."""
    column = np.asarray(given, dtype=object if _ragged(given) else None)
    if column.ndim != 1 or any(isinstance(one, list | dict | set | np.ndarray) for one in column.tolist()):
        raise DataError(f"{name} must be one column with a single value per row; got {shown(given)}.")
    return column


def _ragged(given: Any) -> bool:
    return isinstance(given, list | tuple) and any(isinstance(one, list | tuple) for one in given)
