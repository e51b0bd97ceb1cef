"""Text tables of the studies."""

from typing import Any

import numpy as np
import pandas as pd

from coterie.evidence.mean_gains import Gain, interval


def flat(records: dict[str, Any]) -> pd.DataFrame:
    """A row per world, seed and metric."""
    rows = []
    for record in records.values():
        for metric, found in record["metrics"].items():
            rows.append({"world": record["world"], "seed": record["seed"], "metric": metric, **found})
    return pd.DataFrame(rows)


def covered(row: Any, level: float = 0.95) -> bool:
    """Whether the printed interval holds the true gain."""
    clients, rows, folds = row["se"]
    m = int(row["world"].split(" e")[0].split()[-1][1:])
    zero = np.zeros(m)
    gain = Gain(zero, row["gain"], clients, rows, 0.0, 0.0, 0.0, 0.0, zero, zero, folds, 9)
    low, high = interval(gain, level)
    return bool(low <= row["real"] <= high)


def tabulate(study: str, records: dict[str, Any]) -> str:
    if study == "tables":
        from reproductions.study.tables import tabulate_tables

        return tabulate_tables(records)
    if study == "expected":
        from reproductions.study.expected import tabulate_expected

        return tabulate_expected(records)
    if study == "deployment":
        from reproductions.study.deployment import tabulate_deployment

        return tabulate_deployment(records)
    if study == "dependent":
        from reproductions.study.dependent import tabulate_dependent

        return tabulate_dependent(records)
    if study == "rows":
        from reproductions.study.private_rows import tabulate_rows

        return tabulate_rows(records)
    if study == "gainers":
        from reproductions.study.gainers import tabulate_gainers

        return tabulate_gainers(records)
    if study == "trained":
        from reproductions.study.trained import tabulate_trained

        return tabulate_trained(records)
    if study == "continuum":
        from reproductions.study.continuum import tabulate_continuum

        return tabulate_continuum(records)
    if study == "intervals":
        from reproductions.study.intervals import summary

        return summary(records).to_string()
    return summarise(flat(records)).to_string()


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Per cell: worlds, how often each answer came, wrong ones, coverage, and false discoveries among marks."""
    found = []
    for (world, metric), cell in table.groupby(["world", "metric"], sort=False):
        nothing = cell["sure"] == "nothing"
        row: dict[str, Any] = {"world": world, "metric": metric, "worlds": len(cell), "nothing": int(nothing.sum())}
        for way in ("alone", "together", "shrunk", "groups"):
            row[way] = int(((cell["advice"] == way) & ~nothing).sum())
        row["leaning"] = int(((cell["sure"] == "leaning") & (cell["advice"] != "alone")).sum())
        row["wrong %"] = 100 * cell["wrong"].mean()
        row["best %"] = 100 * (cell["advice"] == cell["best"]).mean()
        row["cover %"] = 100 * cell.apply(covered, axis=1).mean()
        row["bias"] = (cell["gain"] - cell["real"]).mean()
        pairs = np.array(cell["marks"].tolist())
        row["marked"] = pairs[:, 0].mean()
        row["false %"] = 100 * float((pairs[:, 1] / np.maximum(pairs[:, 0], 1)).mean())
        found.append(row)
    return pd.DataFrame(found).round({"wrong %": 1, "best %": 0, "cover %": 0, "bias": 4, "marked": 2, "false %": 1})
