"""What all sites say together: the plan of columns and the classes that they agree on before a run.

`Columns` asks in the order of the messages, finds medians digit by digit, and ends with the plan that `fit_preprocessing`
would have made of one table. `site_tables.py` has the answers of one site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.digits import unsorted
from coterie.data.preprocessing import OTHER, PLAN_COLUMNS, category_rows, dropped_row, numeric_rows
from coterie.errors import DataError

Summary = dict[str, Any]


@dataclass(frozen=True)
class Agreement:
    """The plan of columns (rows of `PLAN_COLUMNS`) and the classes, the same at all sites; plain JSON."""

    plan: list[dict[str, Any]]
    classes: list[Any] | None

    def frame(self) -> pd.DataFrame:
        table = pd.DataFrame(self.plan, columns=list(PLAN_COLUMNS))
        return table.astype({"fill": "float64", "mean": "float64", "scale": "float64"})

    def to_json(self) -> dict[str, Any]:
        plan = [{k: None if isinstance(v, float) and np.isnan(v) else v for k, v in row.items()} for row in self.plan]
        return {"plan": plan, "classes": self.classes}


def agreed_classes(summaries: Mapping[str, Summary]) -> list[Any] | None:
    """All labels of all sites, sorted; labels of two types are compared as text, as in one table."""
    told = [s["labels"] for s in summaries.values()]
    if told[0] is None:
        return None
    labels = [label for labels in told for label in labels]
    if len({type(label) for label in labels}) > 1:
        labels = [str(label) for label in labels]
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise DataError(
            f"Classification needs at least two classes with enough rows at a site; the sites name {classes!r}. Name "
            'another target, or all classes with classes = ["…", "…"] under [data].'
        )
    return classes


@dataclass
class Columns:
    """The questions of an agreement in their order, and the plan at their end."""

    summaries: Mapping[str, Summary]
    max_categories: int = 50

    def __post_init__(self) -> None:
        self.kinds = {c: self._kind(c) for c in next(iter(self.summaries.values()))["columns"]}
        self._track = {c: self._middle(c) for c in self.with_holes}
        self._fills: dict[str, float] = {}

    def _of(self, column: str) -> list[Summary]:
        return [s["columns"][column] for s in self.summaries.values()]

    def _kind(self, column: str) -> str:
        """A column that is empty at a site fits any kind."""
        known = {site: s["columns"][column] for site, s in self.summaries.items()}
        kinds = {k["kind"]: site for site, k in known.items() if k["kind"] != "numeric" or k["present"]}
        if len(kinds) > 1:
            one, two = sorted(kinds)[:2]
            raise DataError(
                f"Column {column!r} holds {one} values at {kinds[one]} and {two} values at {kinds[two]}. "
                "Give it the same kind of values at all sites."
            )
        return next(iter(kinds), "numeric")

    @property
    def numeric(self) -> list[str]:
        return [c for c, kind in self.kinds.items() if kind == "numeric" and sum(k["present"] for k in self._of(c))]

    @property
    def with_holes(self) -> list[str]:
        return [c for c in self.numeric if any(k["holes"] for k in self._of(c))]

    # ---- medians, digit by digit -------------------------------------------------------------------------------------

    def _middle(self, column: str) -> list[list[int]]:
        """[prefix, rank below it, number of values with it] of the one or two middle values."""
        n = sum(k["present"] for k in self._of(column))
        return [[0, (n - 1) // 2, n], [0, n // 2, n]]

    def prefixes(self) -> dict[str, list[int]]:
        return {c: [head for head, *_ in tracks] for c, tracks in self._track.items()}

    def narrow(self, answers: Sequence[Mapping[str, Sequence[Sequence[int]]]]) -> None:
        """One more byte of every median. Values that a site withholds are assumed to be distributed as those of the others;
        if all sites withhold theirs, the middle of the remaining range is used as the median."""
        for column, tracks in self._track.items():
            for i, (head, rank, n) in enumerate(tracks):
                counts = np.sum([np.asarray(a[column][i], np.int64) for a in answers], axis=0)
                below = np.cumsum(counts)
                if not below[-1]:
                    tracks[i] = [head << 8 | 128, 0, 1]
                    continue
                rank = rank * int(below[-1]) // n
                byte = int(np.searchsorted(below, rank, side="right"))
                tracks[i] = [head << 8 | byte, rank - int(below[byte - 1] if byte else 0), int(counts[byte])]

    def fills(self) -> dict[str, float]:
        """The medians; a column without missing values needs no median, and gets its mean."""
        medians = {c: (unsorted(t[0][0]) + unsorted(t[1][0])) / 2 for c, t in self._track.items()}
        return {c: medians.get(c, 0.0) for c in self.numeric}

    # ---- the plan ----------------------------------------------------------------------------------------------------

    def plan(self, spreads: Sequence[Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for column, kind in self.kinds.items():
            if kind == "category":
                rows += self._categories(column)
            elif kind == "numeric":
                rows += self._numbers(column, spreads)
        if not any(r["kind"] != "dropped" for r in rows) and "own" not in self.kinds.values():
            why = "; ".join(f"{r['source']}: {r['note']}" for r in rows)
            raise DataError(f"No usable feature is left ({why}). Add a column that varies between rows.")
        return rows

    def _categories(self, column: str) -> list[dict[str, Any]]:
        counts: dict[str, int] = {}
        for told in self._of(column):
            for text, n in told.get("counts", {}).items():
                counts[text] = counts.get(text, 0) + n
        counts = {t: counts[t] for t in sorted(counts) if counts[t]}
        if rare := sum(k.get("rare", 0) for k in self._of(column)):  # categories whose names did not leave their sites
            counts[OTHER] = counts.get(OTHER, 0) + rare
        rows = category_rows(column, counts, sum(k["missing"] for k in self._of(column)), self.max_categories)
        return [
            r for i, r in enumerate(rows) if r["column"] is None or r["column"] not in [q["column"] for q in rows[:i]]
        ]

    def _numbers(self, column: str, spreads: Sequence[Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
        if column not in self.numeric:
            return [dropped_row(column, "no value in any training row")]
        known = [bool(k["present"] and s[column][0]) for k, s in zip(self._of(column), spreads, strict=True)]
        spreads = [s for s in spreads if s[column][0]]  # of sites that have enough values to tell, or none at all
        if not any(known):
            return [dropped_row(column, "too few values at every site")]
        n = sum(int(s[column][0]) for s in spreads)
        unit = max(float(s[column][3]) for s in spreads)
        mean = sum(s[column][0] * (s[column][1] / unit) for s in spreads) / n
        squares = sum(
            s[column][2] * (s[column][3] / unit) ** 2 + s[column][0] * (s[column][1] / unit - mean) ** 2
            for s in spreads
        )
        share = sum(k["missing"] for k in self._of(column)) / max(
            sum(k["present"] + k["missing"] for k in self._of(column)), 1
        )
        fill = self.fills()[column] if column in self._track else mean * unit
        return numeric_rows(column, fill, mean * unit, float(np.sqrt(squares / n)) * unit, unit, share)
