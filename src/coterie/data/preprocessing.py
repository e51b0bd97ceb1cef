"""Table columns → model inputs, with statistics of the training rows only.

`fit_preprocessing` returns a plain DataFrame with one row per output column, which is all that `apply_preprocessing`
needs to treat new rows in the same way:

| kind | output | statistics |
|---|---|---|
| numeric | (value or `fill` − `mean`) / `scale` | `fill`: median; `mean`, `scale` (standard deviation) after filling |
| category | 1 where the value is `category`, else 0 | a missing value, or one never seen in training, is 0 everywhere |
| indicator | 1 where the value is missing, else 0 | made when at least 5 % of the training rows lack the value |
| dropped | none | `note` says why: constant, all missing, an identifier |

Boolean, string, object and category columns become categories; all other numbers, also integers with few values, stay
numeric. Categories are compared as text, so the table survives Parquet and CSV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.errors import DataError

Floats = npt.NDArray[np.floating[Any]]
PlanRow = dict[str, Any]

PLAN_COLUMNS = ("column", "source", "kind", "fill", "mean", "scale", "category", "note")
OTHER = "(other)"
MANY = 50  # categories that a column may have where nothing else is said
FEW = 20  # up to this many distinct whole numbers may be codes; more are quantities
MOSTLY = 0.8  # a text column with this share of numbers is a numeric column with stray text
INDICATOR_SHARE = 0.05
_MOST_CATEGORIES, _NUMBERS = 2000, 20_000_000
PLAIN = (str, int, float, bool, np.integer, np.floating, np.bool_)


def fit_preprocessing(
    frame: pd.DataFrame,
    features: Sequence[Any],
    train: npt.NDArray[np.int64],
    *,
    max_categories: int = MANY,
    left_out: Mapping[Any, str] | None = None,
    categories: Mapping[Any, Sequence[str]] | None = None,
) -> pd.DataFrame:
    """Statistics of the rows `train` (positions) for the columns `features`; the table above says what they mean.

    `left_out` names those that shall not be used, with the reason; `categories` are given, and need no rows."""
    rows: list[PlanRow] = []
    for name in features:
        if left_out and name in left_out:
            rows.append(dropped_row(name, left_out[name]))
            continue
        if categories and name in categories:
            rows += [plan_row(name, "category", category=c) for c in categories[name]]
            continue
        fit = _fit_numeric if column_kind(frame[name]) == "numeric" else _fit_category
        rows += fit(frame[name], train, max_categories)
    plan = pd.DataFrame(rows, columns=list(PLAN_COLUMNS))
    return plan.astype({"fill": "float64", "mean": "float64", "scale": "float64"})


def apply_preprocessing(
    frame: pd.DataFrame, preprocessing: pd.DataFrame, *, dtype: Literal["float32", "float64"] = "float32"
) -> Floats:
    """Rows of a table as model inputs (rows, output columns), by the statistics in `Federation.preprocessing`."""
    plan = preprocessing[preprocessing["kind"] != "dropped"].reset_index(drop=True)
    columns = {str(c): c for c in frame.columns}
    x = np.zeros((len(frame), len(plan)), dtype)
    for source, part in plan.groupby("source", sort=False):
        if source not in columns:
            raise DataError(f"The preprocessing needs the column {source!r}; the table has no such column. Add it.")
        values = frame[columns[str(source)]]
        kinds = part["kind"].to_numpy()
        for row in part[kinds == "numeric"].itertuples():
            numbers = to_numbers(values)
            x[:, int(row.Index)] = (np.where(np.isnan(numbers), row.fill, numbers) - row.mean) / row.scale
        for row in part[kinds == "indicator"].itertuples():
            x[:, int(row.Index)] = pd.isna(values).to_numpy()
        hot = part[kinds == "category"]
        if len(hot):
            codes = category_codes(values, hot["category"].tolist())
            known = codes >= 0
            x[np.flatnonzero(known), hot.index.to_numpy()[codes[known]]] = 1.0
    return x


# ---- one column ------------------------------------------------------------------------------------------------------


def column_kind(values: pd.Series[Any]) -> Literal["numeric", "category"]:
    """Numbers or categories; dates and nested values are refused with the column's name."""
    types, name = pd.api.types, values.name
    if types.is_bool_dtype(values) or isinstance(values.dtype, pd.CategoricalDtype):
        return "category"
    if types.is_numeric_dtype(values) and not types.is_complex_dtype(values):
        return "numeric"
    found = types.infer_dtype(values, skipna=True)
    if found in ("integer", "floating", "decimal", "mixed-integer-float"):
        return "numeric"
    if any(word in found for word in ("date", "time", "period", "interval")):
        raise DataError(
            f"Column {name!r} holds dates or times ({found}), which a model cannot use as they are. "
            "Turn it into numbers, for example days since a start,",
            python=f"or leave it out with exclude=[{name!r}].",
            cli=f"or leave it out with --exclude {name}.",
        )
    if found not in ("string", "boolean", "empty"):
        for value in values.dropna():
            if not isinstance(value, PLAIN):
                raise DataError(
                    f"Column {name!r} holds a {type(value).__name__}; a feature must be a number or a category. "
                    "Turn it into numbers,",
                    python=f"or leave it out with exclude=[{name!r}].",
                    cli=f"or leave it out with --exclude {name}.",
                )
    refuse_stray_text(values, "Column")
    return "category"


def stray_text(values: pd.Series[Any]) -> str | None:
    """The text because of which a column of numbers was read as text."""
    counts = values.value_counts()
    numbers = pd.to_numeric(pd.Series([str(v) for v in counts.index], dtype="str"), errors="coerce").to_numpy()
    text = np.isnan(numbers)
    share = counts.to_numpy()[~text].sum() / max(counts.sum(), 1)
    quantity = (~text).sum() > FEW or bool(np.any(numbers[~text] % 1))
    return str(counts.index[text][0]) if text.any() and quantity and share >= MOSTLY else None


def refuse_stray_text(values: pd.Series[Any], what: Literal["Column", "The target"]) -> None:
    text = stray_text(values)
    if text is not None:
        out = (
            f"or leave the column out with --exclude {values.name}." if what == "Column" else "or name another target."
        )
        raise DataError(
            f"{what} {values.name!r} is mostly numbers but also holds the text {text!r}. Replace that text by a number "
            "or a missing value,",
            python="or, if these are codes, use astype('category').",
            cli=out,
        )


def to_numbers(values: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """float64 with NaN for missing; text and infinite values are errors that name the column and the value."""
    try:
        numbers = np.asarray(values.to_numpy(np.float64, na_value=np.nan))
    except (TypeError, ValueError):
        bad = first_text(values)
        raise DataError(
            f"Column {values.name!r} must be numeric; got {bad!r}. Replace it by a number or a missing value."
        ) from None
    if np.isinf(numbers).any():
        row = int(np.flatnonzero(np.isinf(numbers))[0])
        raise DataError(
            f"Column {values.name!r} holds an infinite value (row {row}). Replace it by a number or a missing value."
        )
    return numbers


def first_text(values: pd.Series[Any]) -> Any:
    """The first value that is not a number."""
    present = values.dropna()
    bad = pd.to_numeric(present.astype("object"), errors="coerce").isna().to_numpy()
    return present.to_numpy()[bad][0] if bad.any() else present.iloc[0]


def most_categories(rows: int) -> int:
    """Categories of a column that tell rows apart where the exact models of a table are compared: more columns than these
    would fill the memory."""
    return int(np.clip(_NUMBERS // max(rows, 1), MANY, _MOST_CATEGORIES))


def _fit_numeric(values: pd.Series[Any], train: npt.NDArray[np.int64], _: int) -> list[PlanRow]:
    numbers = to_numbers(values)[train]
    missing = np.isnan(numbers)
    if missing.all():
        return [dropped_row(values.name, "no value in any training row")]
    fill = float(np.median(numbers[~missing]))
    filled = np.where(missing, fill, numbers)
    unit = float(np.abs(filled).max()) or 1.0  # so that squares of huge values do not overflow
    mean, scale = float((filled / unit).mean() * unit), float((filled / unit).std() * unit)
    return numeric_rows(values.name, fill, mean, scale, unit, float(missing.mean()))


def _fit_category(values: pd.Series[Any], train: npt.NDArray[np.int64], max_categories: int) -> list[PlanRow]:
    codes, texts = category_texts(values.iloc[train])
    missing = codes < 0
    counts = np.bincount(codes[~missing], minlength=len(texts))
    return category_rows(
        values.name, dict(zip(texts, counts.tolist(), strict=True)), int(missing.sum()), max_categories
    )


def numeric_rows(name: Any, fill: float, mean: float, scale: float, unit: float, missing: float) -> list[PlanRow]:
    """The plan of a numeric column with these statistics; `unit` is its largest absolute value, `missing` a share.

    Mean and scale are rounded to ten digits, so that they do not depend on the order in which rows, or sites, are added."""
    if scale > max(1e-12 * unit, 1e-300):  # smaller differences are rounding errors
        scale = float(f"{scale:.9e}")
        mean = round(mean / scale, 9) * scale
        first = plan_row(name, "numeric", fill=fill, mean=mean, scale=scale)
    else:
        first = dropped_row(name, f"constant in the training rows ({fill:g})")
    return [first, *_indicator(name, missing)]


def category_rows(name: Any, counts: Mapping[str, int], missing: int, max_categories: int) -> list[PlanRow]:
    """The plan of a column with these categories in the training rows; of equally frequent ones the first are kept."""
    present = sum(counts.values())
    rows = present + missing
    if not present:
        return [dropped_row(name, "no value in any training row")]
    indicator = _indicator(name, missing / rows)
    if len(counts) == 1:
        return [dropped_row(name, f"constant in the training rows ({next(iter(counts))})"), *indicator]
    if len(counts) > min(max_categories, MANY) and len(counts) > 0.5 * present:
        return [dropped_row(name, f"an identifier: {len(counts)} distinct values in {rows} training rows")]
    common = sorted(counts, key=lambda text: -counts[text])[:max_categories]
    chosen = sorted(common) + ([OTHER] if len(counts) > max_categories else [])
    return [plan_row(name, "category", category=c) for c in chosen] + indicator


def _indicator(name: Any, missing: float) -> list[PlanRow]:
    return [plan_row(name, "indicator")] if missing >= INDICATOR_SHARE else []


def plan_row(
    name: Any, kind: str, *, fill: float = np.nan, mean: float = 0.0, scale: float = 1.0, category: str | None = None
) -> PlanRow:
    column = {"numeric": f"{name}", "indicator": f"{name} is missing", "category": f"{name}={category}"}[kind]
    values = (column, str(name), kind, fill, mean, scale, category, "")
    return dict(zip(PLAN_COLUMNS, values, strict=True))


def dropped_row(name: Any, note: str) -> PlanRow:
    return dict(zip(PLAN_COLUMNS, (None, str(name), "dropped", np.nan, np.nan, np.nan, None, note), strict=True))


def category_texts(values: pd.Series[Any]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Codes (−1 for missing) into distinct texts; 1, 1.0 and "1" are the same category."""
    raw, uniques = pd.factorize(values)
    inner, texts = pd.factorize(np.array([as_text(u) for u in uniques], dtype=object))
    codes = np.where(raw < 0, -1, inner[raw] if len(inner) else -1)
    return codes.astype(np.int64), [str(t) for t in texts]


def as_text(value: Any) -> str:
    """The name of a category."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def category_codes(values: pd.Series[Any], categories: list[str]) -> npt.NDArray[np.int64]:
    """The position of every value in `categories`; unseen values go to `(other)` if there is one, else −1."""
    codes, texts = category_texts(values)
    position = {c: i for i, c in enumerate(categories)}
    known = np.array([position.get(t, position.get(OTHER, -1)) for t in texts] + [-1], np.int64)
    return known[codes]
