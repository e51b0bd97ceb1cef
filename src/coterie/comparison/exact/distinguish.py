"""The differences between the groups found, in their columns and their coefficients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from coterie.base.annotations import guarded
from coterie.base.arguments import finite
from coterie.comparison.exact.decision import Decision
from coterie.data.coded_table import Table, TableFacts
from coterie.errors import DataError


@guarded
def distinguish(decision: Decision, X: Any = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """A row per group and column, the largest differences first.

    ``mean_difference`` is the group's mean of clients' means minus the others', in standard deviations between clients'
    means (Cohen's d with the pooled deviation). ``effect`` is the group's coefficient minus the rest's (weighted by
    clients), in standard deviations of the target (classes: in log-odds) per standard deviation of the column.
    ``X`` may hold other columns of the same rows, such as positions; they then have a mean difference only."""
    group = decision.groups.to_numpy()
    table, known = decision.table, X is None
    if known and isinstance(table, Table) and table.levels:
        levels = decision.predictors["alone"].model.levels
        table = table if levels is None else levels.shown(table)
    if known:
        means, spread = table.means(), table.deviations()
    else:
        values, rows = finite("X", X), table.n_rows
        if isinstance(table, TableFacts):
            raise DataError("The rows stay at their sites, so X cannot be compared with them. Leave X out.")
        if values.ndim != 2 or len(values) != rows:
            raise DataError(f"X must have one row per row of the table ({rows}), but has shape {values.shape}.")
        other = replace(table, X=values)
        means, spread = other.means(), other.deviations()
    columns = None if columns is None else list(columns)
    if columns is None:
        columns = table.names if known else [f"x{j}" for j in range(means.shape[1])]
        if isinstance(X, pd.DataFrame):
            columns = [str(c) for c in X.columns]
    if len(columns) != means.shape[1]:
        raise DataError(f"There are {len(columns)} names for {means.shape[1]} columns.")
    same = known or tuple(columns) == table.names
    slopes = _standard_slopes(decision) if same else None
    found = []
    for g in np.unique(group):
        inside = group == g
        difference = np.nan_to_num(cohens_d(means[inside], means[~inside], 1e-5 * spread))
        for j, name in enumerate(columns):
            row: dict[str, Any] = {"group": int(g), "clients": int(inside.sum()), "column": name}
            row["mean_difference"] = difference[j]
            row["effect"] = np.nan
            if slopes is not None and not inside.all():
                apart = slopes[inside].mean(0)[j] - slopes[~inside].mean(0)[j]
                row["effect"] = float(apart[np.abs(apart).argmax()])
            found.append(row)
    told = pd.DataFrame(found)
    told["size"] = told[["mean_difference", "effect"]].abs().max(axis=1)
    return told.sort_values(["group", "size"], ascending=[True, False], ignore_index=True).drop(columns="size")


def cohens_d(inside: np.ndarray, outside: np.ndarray, rounding: np.ndarray | float) -> np.ndarray:
    """Per column, the difference of two means in pooled deviations. It is NaN where there is nothing to compare, and where
    the pooled deviation is ``rounding`` or less."""
    if not len(outside):
        return np.full(inside.shape[1], np.nan)
    df = max(len(inside) + len(outside) - 2, 1)
    pooled = np.sqrt((inside.var(0) * len(inside) + outside.var(0) * len(outside)) / df)
    return np.asarray((inside.mean(0) - outside.mean(0)) / np.where(pooled > rounding, pooled, np.nan))


def _standard_slopes(decision: Decision) -> np.ndarray:
    """(clients, columns, outputs) of the group model on standardised columns."""
    return decision.predictors["groups"].model.fit.client_coefficients()[:, 1:]
