"""Tables that stay at their sites: the same preparation as `from_frame`, with statistics that sites agree on once.

A site sends the number of its training rows, which columns are numbers, their sums, counts of categories, and its
labels. `Agreement` turns all sites' answers into the plan that `fit_preprocessing` would have made of one table. Medians are
found digit by digit from counts. No count that leaves a site is of fewer rows than a least count (5): so medians are
approximate, rare categories are merged, rare labels stay at the site, and a site with fewer values sends no mean. The user
names the columns (`features`): choosing them by their values would mean reading all rows.

    join       columns, categories, labels, sizes     1 message
    digits     medians of columns with missing values 8 messages, only if there are any
    spread     means and deviations                   1 message
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.digits import histogram, sortable, unsorted
from coterie.data.federation import Federation
from coterie.data.own_scaling import columns_for_own, scaled_by_clients
from coterie.data.preprocessing import (
    OTHER,
    PLAN_COLUMNS,
    apply_preprocessing,
    category_rows,
    category_texts,
    column_kind,
    dropped_row,
    numeric_rows,
    to_numbers,
)
from coterie.data.rows import choose_rows
from coterie.data.schema import checked_categories, with_numbers
from coterie.data.table_targets import class_labels, regression_target
from coterie.data.tables import RowsByClient, check_column, check_table, true_clusters
from coterie.errors import ConfigError, DataError
from coterie.privacy.taint import public

OPTIONS = (
    "client", "target", "features", "kind", "cluster", "split", "weight", "test_fraction", "seed", "one_class",
    "max_categories", "dtype", "drop_missing", "min_rows", "same_clients", "scaling", "classes", "categories", "public",
)  # fmt: skip
LEAST = 5  # a site sends no statistics of fewer rows
Summary = dict[str, Any]


def require_named(options: Mapping[str, Any], private: bool) -> None:
    """Refuse options that would need all sites' rows, each with one sentence."""
    for key, why in (("features", "columns are named by you"), ("kind", "what is predicted is said by you")):
        if not options.get(key):
            example = '["age", "dose"]' if key == "features" else '"classification"'
            raise ConfigError(f"Where tables stay at their sites {why}; add {key} = {example} under [data].")
    roles = [options[r] for r in ("client", "target", "cluster", "split", "weight") if options.get(r)]
    for column in {c for c in (*options["features"], *roles) if [*options["features"], *roles].count(c) > 1}:
        raise ConfigError(f"A column has one role; {column!r} is named twice under [data]. Take one of the two out.")
    if options["kind"] not in ("classification", "regression"):
        raise ConfigError(
            f"kind must be 'classification' or 'regression'; got {options['kind']!r}. Choose one of them."
        )
    if private and options.get("scaling", "all") != "own":
        raise ConfigError(
            'With a privacy budget no statistics of all rows are agreed on; add scaling = "own" under [data], so that '
            "every client scales its own rows."
        )
    if options.get("categories") is not None:
        if options.get("scaling", "all") != "own":
            raise ConfigError(
                'Sites take named categories where every client scales its own rows; add scaling = "own" under [data], or '
                "leave out categories: sites then agree on them."
            )
        checked_categories(options["categories"], options["features"])


@dataclass(frozen=True, eq=False)
class SiteTable:
    """The rows of one site, split into training and test rows as `from_frame` splits them."""

    frame: pd.DataFrame
    options: dict[str, Any]
    rows: RowsByClient
    least: int = LEAST
    private: bool = False
    """Whether the run has a budget; then values that do not fit the named classes, categories and numbers count as
    missing."""

    @classmethod
    def of(
        cls, frame: pd.DataFrame, options: Mapping[str, Any], least: int = LEAST, *, private: bool = False
    ) -> SiteTable:
        check_table(frame)
        told = {k: v for k, v in options.items() if v is not None}
        for role in ("client", "target", "cluster", "split", "weight"):
            if role in told:
                check_column(frame, told[role], role)
        for column in told["features"]:
            check_column(frame, column, "feature")
        which = {k: told[k] for k in ("drop_missing", "min_rows", "same_clients") if k in told}
        frame, _ = choose_rows(frame, told["client"], told["target"], alone=True, **which)
        parts = frame[told["split"]] if "split" in told else None
        rows = RowsByClient.of(frame[told["client"]], parts, told.get("test_fraction", 0.25), told.get("seed", 0))
        return cls(frame, told, rows, least, private)

    @property
    def own(self) -> bool:
        return bool(self.options.get("scaling", "all") == "own")

    @property
    def named(self) -> dict[Any, list[str]] | None:
        """The categories that the run names; with a budget all other columns hold numbers."""
        told = self.options.get("categories", {} if self.private else None)
        return None if told is None else checked_categories(told, self.features)

    @property
    def features(self) -> list[str]:
        return list(self.options["features"])

    # ---- what a site says ----------------------------------------------------------------------------------------------

    def facts(self, *, private: bool) -> Summary:
        """Clients, labels and the contents of columns; with a budget neither sizes nor statistics."""
        told: Summary = {
            "clients": [str(c) for c in self.rows.clients],
            "labels": None if self.options.get("classes") else self._labels(),
        }
        if "cluster" in self.options:
            label = self.frame[self.options["cluster"]].astype(str)
            true_clusters(label, self.rows.owner, self.rows.clients)
            first = label.groupby(self.rows.owner, sort=True).first()
            told["clusters"] = first.tolist()
        if not private:
            told |= {name: getattr(self.rows, name).tolist() for name in ("sizes", "n_valid", "n_test")}
        told["columns"] = {c: self._column(self.frame[c], private) for c in self.features}
        return told

    def _labels(self) -> list[Any] | None:
        if self.options["kind"] == "regression":
            return None
        values = self.frame[self.options["target"]]
        if pd.isna(values).any():
            raise DataError(f"The target must not be missing; column {values.name!r} is. Set drop_missing = true.")
        codes, labels = class_labels(values)
        counts = np.bincount(codes, minlength=len(labels))
        return [label for label, n in zip(labels, counts, strict=True) if n >= self.least]

    def _column(self, values: pd.Series[Any], private: bool) -> Summary:
        if private or (self.own and self.named is not None):
            return {"kind": "own"}
        if self.own and (pd.api.types.is_bool_dtype(values) or column_kind(values) == "numeric"):
            return {"kind": "own"}
        train = values.iloc[self.rows.train]
        if column_kind(values) == "category" and values.notna().any():
            codes, texts = category_texts(train)
            counts = np.bincount(codes[codes >= 0], minlength=len(texts)).tolist()
            if len(texts) > self.options.get("max_categories", 50) and len(texts) > 0.5 * int((codes >= 0).sum()):
                raise DataError(
                    f"Column {values.name!r} has {len(texts)} distinct values in {len(train)} rows: it names rows, and its "
                    "values would leave the site. Leave it out of features."
                )
            named = {text: n for text, n in zip(texts, counts, strict=True) if n >= self.least}
            told = {"kind": "category", "counts": named, "rare": sum(counts) - sum(named.values())}
            return told | {"missing": int((codes < 0).sum())}
        numbers, everywhere = to_numbers(train), to_numbers(values)
        known = numbers[~np.isnan(numbers)]
        return {
            "kind": "numeric", "present": len(known), "missing": len(numbers) - len(known),
            "holes": bool(np.isnan(everywhere).any()),
        }  # fmt: skip

    def digits(self, level: int, prefixes: Mapping[str, Sequence[int]]) -> dict[str, list[list[int]]]:
        """Per column: the number of training values with a prefix and each of 256 next bytes, where neighbouring bytes of
        few rows are counted together; only zeros if fewer values than the least count have the prefix."""
        found = {}
        for column, heads in prefixes.items():
            numbers = self._numbers(column)
            bits = sortable(numbers[~np.isnan(numbers)])
            found[column] = [histogram(bits, level, head, self.least) for head in heads]
        return found

    def spread(self, fills: Mapping[str, float]) -> dict[str, list[float]]:
        """Per numeric column, with missing values filled: the number of training rows, the mean, the squared deviations from
        it in a unit, and that unit, a power of two, so that the largest value itself stays here. With too few values: zero
        rows."""
        found = {}
        for column, fill in fills.items():
            numbers = self._numbers(column)
            x = np.where(np.isnan(numbers), fill, numbers)
            if 0 < int((~np.isnan(numbers)).sum()) < self.least:
                x = x[:0]
            unit = math.ldexp(1.0, min(math.frexp(float(np.abs(x).max(initial=0.0)) or 0.5)[1], 1023))
            mean = float((x / unit).mean()) if len(x) else 0.0
            found[column] = [len(x), mean * unit, float(((x / unit - mean) ** 2).sum()), unit]
        return found

    def _numbers(self, column: str) -> npt.NDArray[np.float64]:
        """The training values of a column of numbers; frequent categories were sent when the site joined."""
        values = self.frame[column]
        if column_kind(values) == "category" and values.notna().any():
            raise ConfigError(f"Column {column!r} holds categories at this site; the server asks for its numbers.")
        return to_numbers(values.iloc[self.rows.train])

    # ---- what it makes of what was agreed --------------------------------------------------------------------------------

    def federation(self, agreement: Agreement) -> Federation:
        """This site's clients, as `from_frame` would have them in one table of all sites."""
        rows, told = self.rows, self.options
        plan = agreement.frame()
        x: npt.NDArray[np.floating[Any]]
        if self.own:
            raw, columns = self._own_columns(plan)
            x = scaled_by_clients(raw[rows.order], rows.sizes, rows.n_train)
        else:
            columns = plan.loc[plan["kind"] != "dropped", "column"].tolist()
            x = apply_preprocessing(self.frame, plan, dtype=told.get("dtype", "float32"))[rows.order]
        y, classes = self._target(agreement)
        weight = None
        if "weight" in told:
            weight = pd.to_numeric(self.frame[told["weight"]], errors="coerce").to_numpy(np.float64)[rows.order]
        made = Federation.from_flat(
            x, y[rows.order], sizes=rows.sizes, clients=[str(c) for c in rows.clients], n_test=rows.n_test,
            n_valid=rows.n_valid, weights=weight, kind=public(told["kind"]) if self.private else told["kind"],
            classes=public(classes) if self.private and "classes" in told and classes else classes, columns=columns,
            one_class=told.get("one_class", "error"), dtype=told.get("dtype", "float32"),
        )  # fmt: skip
        return replace(made, preprocessing=None if self.own else plan)

    def _own_columns(self, plan: pd.DataFrame) -> tuple[Any, list[str]]:
        if (named := self.named) is not None:
            frame = with_numbers(self.frame, self.features, named)
            raw, names, _ = columns_for_own(frame, self.features, self.rows.train, 0, named)
            return raw, names
        agreed = set(plan["source"])
        parts, names = [], []
        for column in self.features:
            if column in agreed:
                part = plan[plan["source"] == column]
                parts.append(apply_preprocessing(self.frame, part, dtype="float64"))
                names += part.loc[part["kind"] != "dropped", "column"].tolist()
            else:
                one, name, _ = columns_for_own(self.frame, [column], self.rows.train, 0)
                parts.append(one)
                names += name
        return np.concatenate(parts, axis=1), names

    def _target(self, agreement: Agreement) -> tuple[npt.NDArray[Any], list[Any] | None]:
        values = self.frame[self.options["target"]]
        if self.private and ("classes" in self.options or agreement.classes is None):  # every value is read by itself
            return values.to_numpy(), agreement.classes
        if agreement.classes is None:
            return regression_target(values, self.rows.owner, self.rows.clients), None
        codes, labels = class_labels(values)
        if not {_as_agreed(label, agreement.classes) for label in labels} <= set(agreement.classes):
            raise ConfigError(
                f"Every class of a site's rows must be agreed on, and names of classes with fewer than {self.least} rows at "
                'a site do not leave it. Name all classes with classes = ["…", "…"] under [data].'
            )
        mapped = np.empty(len(labels), dtype=object)
        mapped[:] = [_as_agreed(label, agreement.classes) for label in labels]
        return mapped[codes], agreement.classes


def _as_agreed(label: Any, classes: Sequence[Any]) -> Any:
    return label if label in classes else str(label)


# ---- what all sites say together -------------------------------------------------------------------------------------


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
