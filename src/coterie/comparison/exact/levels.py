"""Categories with many levels (products, postcodes): one column with the effect of the row's level on the target.

The 0/1 columns of such a category become one column of codes, which `Table.levels` announces. Where models are fitted, the
codes become effects: what the target has beyond the clients' averages and a straight line in the other columns, averaged
over the rows of the level and shrunk towards zero by how much levels really differ. Training rows get effects that other
rows of the training part showed, so that no row meets its own target; new rows get those of all training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from coterie.comparison.exact.families import KINDS
from coterie.comparison.exact.folds import Bools, inner_folds
from coterie.data.coded_table import Floats, Ints, Table, TableFacts
from coterie.data.preprocessing import MANY

_PARTS, _SWEEPS = 5, 4


@dataclass(frozen=True)
class Levels:
    """The effects of the levels (columns of codes, most levels + 1); the last is for a level never seen, and zero."""

    effects: Floats

    def columns(self, X: Floats) -> Floats:
        """The inputs with effects in place of the codes, which are the last columns."""
        k = len(self.effects)
        codes = X[:, -k:].astype(np.int64)
        return np.hstack([X[:, :-k], self.effects[np.arange(k), codes]])

    def shown(self, table: Table | TableFacts) -> Table:
        """The table with effects in place of the codes."""
        assert isinstance(table, Table)
        return replace(table, X=self.columns(table.X), levels=())


@dataclass(frozen=True)
class Blocks:
    """Which 0/1 columns are one category with many levels."""

    names: tuple[str, ...]
    columns: tuple[Ints, ...]

    @classmethod
    def of(cls, plan: pd.DataFrame | None) -> Blocks | None:
        """``plan`` is `Federation.preprocessing`."""
        if plan is None:
            return None
        hot = plan[plan["kind"] != "dropped"].reset_index(drop=True)
        hot = hot[hot["kind"] == "category"]
        found = {str(s): part.index.to_numpy() for s, part in hot.groupby("source", sort=False) if len(part) > MANY + 1}
        return cls(tuple(found), tuple(found.values())) if found else None

    def coded(self, X: Floats) -> Floats:
        """The other columns, then one column of codes per category; −1 is no known level."""
        codes = [np.where(X[:, at].any(1), X[:, at].argmax(1), -1) for at in self.columns]
        return np.column_stack([np.delete(X, np.concatenate(self.columns), 1), *codes])

    def names_of(self, names: Sequence[str]) -> tuple[str, ...]:
        return (*np.delete(np.array(names, object), np.concatenate(self.columns)), *self.names)

    def condense(self, table: Table) -> Table:
        levels = tuple(len(at) for at in self.columns)
        return replace(table, X=self.coded(table.X), names=self.names_of(table.names), levels=levels)


def with_effects(table: Table, keep: Bools) -> tuple[Levels | None, Floats]:
    """What the levels of the rows in ``keep`` do, and the inputs of these rows for fitting."""
    X = table.X[keep]
    if not table.levels:
        return None, X
    rows = table.rows(keep)
    part = inner_folds(replace(rows, time=None), _PARTS, np.random.default_rng([len(X), 41]))
    inside = X.copy()
    for p in np.unique(part):
        inside[part == p] = _learned(rows.rows(part != p)).columns(X[part == p])
    return _learned(rows), inside


def _learned(rows: Table) -> Levels:
    """Effects by turns: a line in the other columns, averages of clients, averages of levels; what is left goes on."""
    k = len(rows.levels)
    most = max(rows.levels)
    found = np.zeros((k, most + 1))
    if not len(rows.y):
        return Levels(found)
    kind, y = KINDS.get(rows.judged_as), rows.y
    if kind is not None and kind.link != "identity":
        y = kind.scores((y + y.mean()) / 2)
    codes = rows.X[:, -k:].astype(np.int64) % (most + 1)  # −1 becomes the last
    other = rows.X[:, :-k] - rows.X[:, :-k].mean(0)
    form = other.T @ other
    form[np.diag_indices_from(form)] += 1e-6 * np.trace(form) / max(len(form), 1) + 1e-12
    line, of_client = np.zeros(len(y)), np.zeros(rows.n_clients)
    for _ in range(_SWEEPS):
        rest = y - y.mean() - sum(found[j, codes[:, j]] for j in range(k))
        line = other @ np.linalg.solve(form, other.T @ (rest - of_client[rows.owner]))
        of_client = _shrunk_means(rest - line, rows.owner, rows.n_clients)
        for j in range(k):
            rest = y - y.mean() - line - of_client[rows.owner]
            rest = rest - sum(found[i, codes[:, i]] for i in range(k) if i != j)
            found[j] = _shrunk_means(rest, codes[:, j], most + 1)
            found[j, -1] = 0.0
    return Levels(found)


def _shrunk_means(values: Floats, unit: Ints, n_units: int) -> Floats:
    """The mean of every unit, shrunk towards zero by the variances inside and between units (moments)."""
    count = np.bincount(unit, minlength=n_units)
    mean = np.bincount(unit, weights=values, minlength=n_units) / np.maximum(count, 1)
    seen = int((count > 0).sum())
    inside = float(((values - mean[unit]) ** 2).sum()) / max(len(values) - seen, 1)
    between = max((float((count * mean**2).sum()) - seen * inside) / len(values), 0.0)
    return np.asarray(mean * count * between / (count * between + inside + 1e-300))
