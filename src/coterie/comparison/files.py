"""A comparison as files. Files that are not a comparison's are never overwritten, and no cell is a spreadsheet formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from coterie.base.disk import locked, refuse_foreign, write_text, writing

if TYPE_CHECKING:
    from coterie.comparison.result import Comparison
    from coterie.evidence.participation import Coalition

JSON, _PAGE = "comparison.json", "report.html"
_TABLES = ("table", "gains", "clients", "clusters", "participation", "coalition", "settings")
_LONG = ("scores", "curves")
NAMES = (*(f"{t}.csv" for t in _TABLES), *(f"{t}.parquet" for t in _LONG), "settings.toml", "verdict.txt", _PAGE)
PATIENCE = 60.0  # seconds to wait while another comparison writes into the same folder
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def save(comparison: Comparison, folder: Path, coalition: Coalition | None = None) -> None:
    """Write all tables, one process at a time; half-written files of a killed process are removed."""
    with locked(folder, PATIENCE):
        _save(comparison, folder, coalition)


def _save(comparison: Comparison, folder: Path, coalition: Coalition | None) -> None:
    refuse_foreign(folder, JSON, NAMES)
    write_text(folder / JSON, json.dumps(comparison.to_json(), indent=1, default=str))  # first: now the folder is ours
    c, audit = comparison, comparison.participation()
    parts = {
        "score": c.table,
        "gain": c.gains,
        "standard_error": c.errors,
        "half_interval": c.half_widths,
        "mark": c.marks,
    }
    tables = {
        "table": c.table,
        "gains": pd.concat({name: part.stack() for name, part in parts.items()}, axis=1),
        "clients": c.overview,
        "clusters": c.clusters,
        "participation": None if audit is None else audit.table,
        "coalition": None if coalition is None else coalition.history,
        "settings": c.settings.set_index("method"),
    }
    for name in _TABLES:
        _replace(folder / f"{name}.csv", tables[name])
    for name, table in zip(_LONG, (c.scores, c.curves), strict=True):
        _replace(folder / f"{name}.parquet", table if len(table) else None)
    write_text(folder / "verdict.txt", c.verdict(coalition) + "\n")


def _replace(path: Path, table: pd.DataFrame | None) -> None:
    """Write a table as a file; without a table, remove the file of an earlier comparison."""
    if table is None:
        path.unlink(missing_ok=True)
    elif path.suffix == ".csv":
        write_text(path, csv_text(table))
    else:
        with writing(path) as partial:
            table.to_parquet(partial)


def csv_text(table: pd.DataFrame) -> str:
    """A table with its index as CSV. Text that a spreadsheet would run as a formula gets an apostrophe."""
    flat = table.reset_index(allow_duplicates=True)  # a client may be called method
    return flat.set_axis([_no_formula(c) for c in flat.columns], axis=1).map(_no_formula).to_csv(index=False)


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def plain(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Row → column → value; a missing number is None, since JSON has no NaN."""
    return {
        str(row): {
            str(column): None if isinstance(v, float) and not np.isfinite(v) else v for column, v in cells.items()
        }
        for row, cells in frame.astype(object).to_dict("index").items()
    }
