"""A table with a client column, checked and coded; and models fitted to parts of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.annotations import guarded
from coterie.arguments import refuse_masked, shown
from coterie.comparison.exact.candidates import Candidate, Fit, Rows
from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.errors import ConfigError, DataError

KINDS = ("regression", "classification")


@dataclass(frozen=True)
class Table:
    """Numeric columns, a target (numbers, or class codes) and the client of every row, coded 0…m−1."""

    X: Floats
    y: Floats
    owner: Ints
    clients: pd.Index
    names: tuple[str, ...]
    classes: pd.Index | None

    @property
    def n_clients(self) -> int:
        return len(self.clients)

    @property
    def n_classes(self) -> int:
        return 0 if self.classes is None else len(self.classes)

    @property
    def sizes(self) -> Ints:
        return np.bincount(self.owner, minlength=self.n_clients)

    def outputs(self) -> Floats:
        """The target as (rows, outputs), see `Rows`."""
        if self.classes is None:
            return np.asarray(self.y[:, None])
        if self.n_classes == 2:
            return np.asarray(self.y == 1, dtype=np.float64)[:, None]
        return np.asarray(np.eye(self.n_classes)[self.y.astype(np.int64)])


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
    if len(labels) < 2:
        raise DataError("There is only one client, so there is nothing to compare; name a column with several clients.")
    classes: pd.Index | None = None
    if kind == "classification":
        coded, found = pd.factorize(target, sort=True)
        classes, number = pd.Index(found), np.asarray(coded, dtype=np.float64)
        if len(classes) > 50 and len(classes) > len(target) // 5:
            raise DataError(f"The target has {len(classes)} classes for {len(target)} rows; use kind='regression'.")
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


@dataclass(frozen=True)
class Scaling:
    """Centre and scale learned on training rows. A constant column is sent to zero."""

    mean: Floats
    inverse: Floats
    y_mean: Floats
    y_scale: Floats

    def columns(self, X: Floats) -> Floats:
        return np.asarray((X - self.mean) * self.inverse)

    def target(self, outputs: Floats) -> Floats:
        return np.asarray((outputs - self.y_mean) / self.y_scale)


def learn_scaling(X: Floats, outputs: Floats, classification: bool) -> Scaling:
    mean, size = X.mean(0), np.abs(X).max(0, initial=0)
    sd = np.sqrt(((X - mean) ** 2).mean(0))
    inverse = np.where(sd > 1e-10 * size, 1 / np.where(sd > 0, sd, 1.0), 0.0)
    if classification:
        return Scaling(mean, inverse, np.zeros(outputs.shape[1]), np.ones(outputs.shape[1]))
    scale = outputs.std(0)
    return Scaling(mean, inverse, outputs.mean(0), np.where(scale > 0, scale, 1.0))


@dataclass(frozen=True)
class Model:
    """A fitted candidate in the units of the table."""

    scaling: Scaling
    fit: Fit

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        """Predicted targets (rows, 1) or probabilities (rows, classes); owner −1 is a client never seen."""
        raw = self.fit.outputs(self.scaling.columns(X), owner)
        return raw if self.fit.classification else raw * self.scaling.y_scale + self.scaling.y_mean


def learn(
    table: Table,
    keep: npt.NDArray[np.bool_],
    candidates: dict[str, Candidate],
    rng: np.random.Generator,
) -> dict[str, Model]:
    """Fit every candidate to the rows marked in ``keep``; nothing else is seen."""
    classification = table.classes is not None
    outputs = table.outputs()[keep]
    scaling = learn_scaling(table.X[keep], outputs, classification)
    rows = Rows(
        scaling.columns(table.X[keep]), scaling.target(outputs), table.owner[keep], table.n_clients, classification
    )
    return {name: Model(scaling, candidate.fit(rows, rng)) for name, candidate in candidates.items()}
