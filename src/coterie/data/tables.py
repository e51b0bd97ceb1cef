"""A table with a client column → a `Federation`.

Every error names the column or the client, says what was found and what to do. Statistics come from the training rows
of all clients together (see `coterie.data.preprocessing`); the split is `Federation.from_flat`'s own, so a table and the
same rows given as arrays hold out the same samples.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal, cast

import numpy as np
import pandas as pd

from coterie.base.arguments import NONE, check_arguments, one_of, or_public
from coterie.base.arguments import shown as brief
from coterie.data.checks import refuse_nested
from coterie.data.client_names import client_text
from coterie.data.columns import ColumnReport, inspect_columns
from coterie.data.federation import DType, Federation, Ints, Kind, OneClass, client_keys, held_out_sizes, split_order
from coterie.data.own_scaling import columns_for_own, refuse_choices, scaled_by_clients, scaled_by_ranges
from coterie.data.own_splits import part_of
from coterie.data.preprocessing import apply_preprocessing, fit_preprocessing
from coterie.data.reading import read_table
from coterie.data.repeated import chosen, coded, held_out, notes_on, suspects
from coterie.data.rows import Note, choose_rows
from coterie.data.schema import Target, checked_categories, is_public, plain, with_numbers
from coterie.data.table_targets import (
    NUMBER_KINDS,
    NumberKind,
    checked_target,
    infer_kind,
    plain_value,
    said_of_classes,
)
from coterie.errors import ConfigError, DataError
from coterie.privacy.taint import Released

__all__ = ["apply_preprocessing", "federation_from_frame", "infer_kind", "read_table"]


def federation_from_frame(
    frame: pd.DataFrame,
    *,
    client: str,
    target: str,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    cluster: str | None = None,
    kind: Kind | NumberKind | Released[Any] | None = None,
    test_fraction: float = 0.25,
    seed: int = 0,
    one_class: OneClass = "error",
    max_categories: int = 50,
    dtype: DType = "float32",
    drop_missing: bool = False,
    min_rows: int = 1,
    same_clients: bool = False,
    scaling: Literal["all", "own"] = "all",
    split: str | None = None,
    weight: str | None = None,
    unit: str | None = None,
    time: str | None = None,
    exposure: str | None = None,
    classes: Sequence[Any] | Released[Any] | None = None,
    categories: Mapping[str, Sequence[Any]] | Released[Any] | None = None,
    ranges: Mapping[str, Sequence[float]] | None = None,
) -> Federation:
    """One row per sample; `client` says whose it is, `target` is what to predict, the other columns are features.

    `features` picks columns, `exclude` leaves some out, `cluster` names a column with each client's true cluster.
    Clients keep the order in which they first appear. `kind` overrides the inference: text, booleans and whole numbers
    with at most 20 distinct values mean classification, all other numbers regression. A kind "count", "amount", "share" or
    "robust" is a number that `compare` fits and judges by a loss of its own.

    `drop_missing` drops rows without client or target, `min_rows` leaves out clients with fewer rows, `same_clients`
    merges clients that differ only by case or blank space. Columns that are not features are left out
    (`coterie.data.columns`); `federation.notes` says what became of every column, row and client.

    `split` names a column that says train, validation or test of every row (your own split; `test_fraction` then says
    nothing), `weight` one with how much the row counts. `unit` names the column of units with several rows (patients,
    devices), which is no feature, and `time` one of numbers or dates; "none" says that no column is
    (`coterie.data.repeated`). `exposure` names the time or number over which events were counted (`compare`, kind "count").

    `scaling="own"` lets every client scale its rows by itself, for private runs (`coterie.data.own_scaling`).
    `ranges={column: (low, high)}` are public bounds of all columns of numbers: values are cut off there and brought to
    [−1, 1], whatever the rows are, for runs that protect rows.

    `classes` names the labels of the target, `categories={column: [values]}` the columns of categories; all other features
    then hold numbers, whatever is in them. `classes=privacy.public([...])`, `kind=privacy.public("regression")` and
    `categories=privacy.public({...})` declare these public, for private runs: what does not fit at a client counts as
    missing there, with a warning, and changes nothing at others (`coterie.data.schema`).
    """
    own = or_public(one_of("classification", "regression", *NUMBER_KINDS)) | NONE
    check_arguments(locals(), kind=own)
    judged_as = kind if isinstance(kind, str) and kind in NUMBER_KINDS else ""
    kind = "regression" if judged_as else kind
    if scaling not in ("all", "own"):
        raise ConfigError(f"scaling must be 'all' or 'own', got {scaling!r}; choose one of them.")
    if dtype == "int64":
        raise DataError("A table's columns become floats; got dtype='int64'. Give token ids to from_arrays.")
    check_table(frame)
    for role, needed in (("client", client), ("target", target)):
        check_column(frame, needed, role)
    for role, column in (
        ("client", client),
        ("target", target),
        ("cluster", cluster),
        ("split", split),
        ("weight", weight),
        ("unit", chosen(unit)),
        ("time", chosen(time)),
        ("exposure", exposure),
    ):
        if column is not None:
            check_column(frame, column, role)
    if client == target:
        raise DataError(f"The client and the target are both column {client!r}. Name two different columns.")
    taken = {client, target, cluster, split, weight, exposure, chosen(unit)}
    wanted = _feature_columns(frame, features, exclude, taken)
    refuse_nested(frame, [*(taken - {None}), *wanted])
    frame, notes = choose_rows(
        frame, client, target, drop_missing=drop_missing, min_rows=min_rows, same_clients=same_clients
    )
    parts, weights = (None if c is None else frame[c] for c in (split, weight))
    beside, given = coded(frame, unit, time, weight=weight, exposure=exposure), {"unit": unit, "time": time}
    frame = frame.drop(columns=[c for c in (split, weight, exposure, chosen(unit)) if c is not None])
    parts = held_out(frame[client], beside, test_fraction, seed) if parts is None else parts
    by_client = RowsByClient.of(frame[client], parts, test_fraction, seed)
    owner, clients, sizes, order, n_train = (
        by_client.owner, by_client.clients, by_client.sizes, by_client.order, by_client.n_train
    )  # fmt: skip
    n_valid, n_test, train = by_client.n_valid, by_client.n_test, by_client.train
    if Target.of(kind, classes) is None:
        y, told_kind, found = checked_target(
            frame[target], cast("Kind | None", plain(kind)) if classes is None else "classification", owner, clients
        )
        task: Any = told_kind
        labels: Any = found if classes is None else classes
    else:  # every value is read by itself
        y, task, labels = frame[target].to_numpy(), kind, classes
    if categories is None:
        named = None
        report = inspect_columns(frame, client, target, features, exclude, cluster=cluster)
        left_out = {c: why for c, why in report.reasons(["ignored", "suspicious"]).items() if c in wanted}
    else:
        named, left_out = checked_categories(categories, wanted), {}
        report = ColumnReport.chosen([c for c in frame.columns if c not in taken], wanted)
        frame = with_numbers(frame, wanted, named)
    if scaling == "own" or ranges is not None:
        refuse_choices(left_out)
        raw, outputs, plan = columns_for_own(frame, wanted, train, max_categories, named)
        if ranges is None:
            x = scaled_by_clients(raw[order], sizes, n_train)
        else:
            made = set() if plan is None else set(plan["column"])
            x = scaled_by_ranges(raw[order], [c for c in outputs if c not in made], outputs, ranges)
    else:
        x, outputs, plan = _common(frame, wanted, train, max_categories, left_out, dtype, named)
        x = x[order]
    federation = Federation.from_flat(
        x,
        y[order],
        sizes=sizes,
        clients=clients.tolist(),
        n_test=n_test,
        n_valid=n_valid,
        weights=None if weights is None else pd.to_numeric(weights, errors="coerce").to_numpy(np.float64)[order],
        clusters=None if cluster is None else true_clusters(frame[cluster], owner, clients),
        kind=task,
        classes=labels,
        columns=outputs,
        one_class=one_class,
        dtype=dtype,
    )
    doubts = (
        {}
        if scaling == "own" or ranges is not None
        else suspects(frame, client, target, [c for c in frame.columns if c not in taken], given)
    )
    notes += notes_on(doubts)
    notes += said_of_classes(frame[target]) if kind is None and task == "classification" else []
    told = replace(report, notes=tuple(notes)) if plan is None else _reported(report, plan, notes)
    asked = {"kind"} if kind is not None or is_public(classes) else set()
    asked |= {"classes"} if is_public(classes) else set()
    asked |= {"inputs"} if is_public(categories) else set()
    return replace(
        federation,
        preprocessing=plan,
        notes=replace(told, suspects=doubts),
        judged_as=judged_as,
        beside={name: values[order] for name, values in beside.items()},
        declared=frozenset(asked),
        filtered=drop_missing or same_clients or min_rows > 1,
        encoded=True,
        labels={"client": str(client), "target": str(target)}
        | ({} if split is None else {"split": str(split)})
        | ({} if scaling == "all" and ranges is None else {"scaling": "own" if ranges is None else "ranges"})
        | ({} if chosen(unit) is None else {"unit": str(unit)})
        | ({"alike": "yes"} if same_clients else {}),
    )


@dataclass(frozen=True, eq=False)
class RowsByClient:
    """Whose every row is, and the rows in the order of a federation: client by client, its training rows first."""

    owner: Ints
    clients: pd.Index[Any]
    sizes: Ints
    order: Ints
    n_valid: Ints
    n_test: Ints

    @classmethod
    def of(cls, ids: pd.Series[Any], parts: pd.Series[Any] | None, test_fraction: float, seed: int) -> RowsByClient:
        """`parts` is the user's own split, if there is one; else (seed, client) decides what is held out."""
        owner, clients = _owners(ids)
        sizes = np.bincount(owner, minlength=len(clients)).astype(np.int64)
        if parts is not None:
            return cls(owner, clients, sizes, *_own_parts(parts, owner, len(clients)))
        order = np.argsort(owner, kind="stable")[split_order(sizes, client_keys(clients), seed)]
        return cls(owner, clients, sizes, order, np.zeros_like(sizes), held_out_sizes(sizes, test_fraction))

    @property
    def n_train(self) -> Ints:
        return self.sizes - self.n_valid - self.n_test

    @property
    def train(self) -> Ints:
        """The training rows of all clients."""
        starts = np.cumsum(self.sizes) - self.sizes
        place = np.arange(len(self.order)) - np.repeat(starts, self.sizes)
        return self.order[place < np.repeat(self.n_train, self.sizes)]


def _own_parts(parts: pd.Series[Any], owner: Ints, clients: int) -> tuple[Ints, Ints, Ints]:
    """The rows by client and part, in their own order, and every client's numbers of validation and test rows."""
    codes, words = pd.factorize(parts, use_na_sentinel=False)
    known = np.array([part_of(word, f"column {parts.name!r}") for word in words], np.int64)
    part = known[codes]
    n_valid, n_test = (np.bincount(owner[part == p], minlength=clients).astype(np.int64) for p in (1, 2))
    return np.lexsort((part, owner)), n_valid, n_test


def _common(
    frame: pd.DataFrame,
    wanted: Sequence[Any],
    train: Ints,
    max_categories: int,
    left_out: Mapping[Any, str],
    dtype: DType,
    named: Mapping[Any, Sequence[str]] | None,
) -> tuple[Any, list[str], pd.DataFrame | None]:
    """Model inputs by statistics of all training rows, their names, and the statistics."""
    plan = fit_preprocessing(frame, wanted, train, max_categories=max_categories, left_out=left_out, categories=named)
    outputs = plan.loc[plan["kind"] != "dropped", "column"].tolist()
    if not outputs:
        why = "; ".join(f"{row.source}: {row.note}" for row in plan.itertuples())
        raise DataError(f"No usable feature is left ({why}). Add a column that varies between rows.")
    return apply_preprocessing(frame, plan, dtype="float64" if dtype == "float64" else "float32"), outputs, plan


def _reported(report: ColumnReport, plan: pd.DataFrame, notes: list[Note]) -> ColumnReport:
    """The report with the columns of which the training rows left nothing to use."""
    kept = set(plan.loc[plan["kind"] != "dropped", "source"])
    late = {str(row.source): str(row.note) for row in plan.itertuples() if row.source not in kept}
    return replace(report.without(late), notes=tuple(notes))


# ---- columns ---------------------------------------------------------------------------------------------------------


def check_table(frame: Any) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise DataError(
            f"from_frame needs a pandas DataFrame; got {type(frame).__name__}. Try from_parquet or from_csv."
        )
    if not len(frame):
        raise DataError(f"The table has no rows (columns: {', '.join(map(str, frame.columns))}). Give it data.")
    names = pd.Index([str(c) for c in frame.columns])
    if not names.is_unique:
        twice = names[names.duplicated()][0]
        raise DataError(f"Column names must be unique; {twice!r} occurs more than once. Rename or drop one.")


def check_column(frame: pd.DataFrame, column: Any, role: str) -> None:
    if not isinstance(column, str | int | float | tuple):
        raise DataError(
            f"The {role} must be the name of a column; got {brief(column)}. Name one of the table's columns."
        )
    if column in frame.columns:
        return
    if column in frame.index.names:
        raise DataError(f"The {role} {column!r} is the table's index, not a column. Call frame.reset_index() first.")
    if len(frame.columns) == 1:
        raise DataError(
            f"There is no {role} column {column!r}; the table has a single column, {str(frame.columns[0])!r}.",
            python="If it holds several, read it with its delimiter, such as read_table(path, delimiter=' ').",
            cli="If it holds several, name what separates them, such as --delimiter space.",
        )
    raise DataError(f"There is no {role} column {column!r}; {_suggest(column, frame.columns)}")


def _suggest(wanted: Any, names: Iterable[Any]) -> str:
    known = [str(n) for n in names]
    lower = {n.lower(): n for n in known}
    near = difflib.get_close_matches(str(wanted).lower(), lower, n=1)
    some = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"did you mean {lower[near[0]]!r}? The columns are {some}." if near else f"the columns are {some}."


def _feature_columns(
    frame: pd.DataFrame, features: Sequence[str] | None, exclude: Sequence[str], taken: set[str | None]
) -> list[Any]:
    if isinstance(features, str) or isinstance(exclude, str):
        raise DataError(f"features and exclude are lists of column names; got {features!r}, {exclude!r}. Use brackets.")
    for column in (*(features or ()), *exclude):
        check_column(frame, column, "feature")
    for column in features or ():
        if column in taken:
            raise DataError(
                f"Column {column!r} is already the client, target or cluster and cannot be a feature. Take it out."
            )
    wanted = list(dict.fromkeys(frame.columns if features is None else features))
    chosen = [c for c in wanted if c not in taken and c not in set(exclude)]
    if not chosen:
        raise DataError(
            "No feature column is left in addition to the client and the target.",
            python="Add one or check features and exclude.",
            cli="Add one or check --features and --exclude.",
        )
    return chosen


def _owners(ids: pd.Series[Any]) -> tuple[Ints, pd.Index[Any]]:
    """Every row's client as a position in the index of clients, which keeps the order of first appearance."""
    owner, uniques = pd.factorize(ids)
    missing = np.flatnonzero(owner < 0)
    if len(missing):
        raise DataError(
            f"Every row needs a client; column {ids.name!r} is missing in {len(missing)} rows, first in "
            f"row {missing[0]}. Fill it in,",
            python="or drop those rows with drop_missing=True.",
            cli="or drop those rows with --drop-missing.",
        )
    dates = isinstance(uniques, pd.DatetimeIndex) or any(isinstance(u, date) for u in uniques)
    clients = pd.Index([client_text(u) for u in uniques] if dates else np.asarray(uniques).tolist())
    alike = clients.astype("str")
    if not alike.is_unique:  # a client's random numbers are made from its name
        raise DataError(
            f"Client names must differ as text; column {ids.name!r} holds {alike[alike.duplicated()][0]!r} as text and "
            "as a number. Make the column all text or all numbers."
        )
    return owner.astype(np.int64), clients


def true_clusters(labels: pd.Series[Any], owner: Ints, clients: pd.Index[Any]) -> Ints:
    codes, _ = pd.factorize(labels, sort=True)
    first = np.full(len(clients), -1, np.int64)
    first[owner[::-1]] = codes[::-1]
    wrong = np.flatnonzero((codes < 0) | (codes != first[owner]))
    if len(wrong):
        raise DataError(
            f"A client belongs to one cluster; client {plain_value(clients[owner[wrong[0]]])!r} has a missing or second "
            f"value in column {labels.name!r}. Give all its rows the same cluster."
        )
    return first
