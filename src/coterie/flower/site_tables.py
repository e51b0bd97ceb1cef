"""Tables that stay at their sites: the same preparation as `from_frame`, with statistics that sites agree on once.

A site sends the number of its training rows, which columns are numbers, their sums, counts of categories, and its labels;
`agreement.py` makes one plan of all sites' answers. No count that leaves a site is of fewer rows than a least count (5):
so medians are approximate, rare categories are merged, rare labels stay at the site, and a site with fewer values sends no
mean. The user names the columns (`features`): choosing them by their values would mean reading all rows.

    join       columns, categories, labels, sizes     1 message
    digits     medians of columns with missing values 8 messages, only if there are any
    spread     means and deviations                   1 message
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.base.disk import digest, unlinked
from coterie.data.digits import histogram, sortable
from coterie.data.federation import Federation
from coterie.data.own_scaling import columns_for_own, scaled_by_clients
from coterie.data.preprocessing import (
    apply_preprocessing,
    category_texts,
    column_kind,
    to_numbers,
)
from coterie.data.rows import choose_rows
from coterie.data.schema import checked_categories, with_numbers
from coterie.data.table_targets import class_labels, regression_target
from coterie.data.tables import RowsByClient, check_column, check_table, true_clusters
from coterie.errors import ConfigError, DataError
from coterie.flower.agreement import Agreement, Summary
from coterie.privacy.taint import public

OPTIONS = (
    "client", "target", "features", "kind", "cluster", "split", "weight", "test_fraction", "seed", "one_class",
    "max_categories", "dtype", "drop_missing", "min_rows", "same_clients", "scaling", "classes", "categories", "public",
)  # fmt: skip
TABLE = "table.txt"  # the fingerprint of the rows of a site's last run
LEAST = 5  # a site sends no statistics of fewer rows


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


def changed(rows: pd.DataFrame, folder: Path) -> tuple[str, str]:
    """Whether the table is new here, the same as in the last run, or changed; and its fingerprint, which stays here."""
    now = digest([*map(str, rows.columns), pd.util.hash_pandas_object(rows.astype(str), index=False).to_numpy()])
    before = unlinked(folder / TABLE)
    return ("new" if not before.exists() else "same" if before.read_text() == now else "changed"), now
