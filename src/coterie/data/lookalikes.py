"""What a column looks like: a row number, an identifier, a date, free text, a copy of the target or of another column.

Each function answers with the reason in words, or "" when the column looks like a feature. Few rows prove nothing: below
`ENOUGH` rows no column is called a row number or a copy of the target.
"""

from __future__ import annotations

import re
import warnings
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.preprocessing import FEW, INDICATOR_SHARE, stray_text

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ENOUGH = 10
EXACT = 1e-9  # 1 − |correlation| of an affine copy
_SAMPLE = 1000
_WORDS = r"(id|ids|uuid|guid|key|nr|no|num|row|rows|rownames|row names|obs|case|record|serial|rowid)"
_ID = re.compile(rf"(^|[_\W\d]){_WORDS}$|^(index|idx|Unnamed: \d+)$", re.IGNORECASE)
_TIME = re.compile(r"(^|[_\W])(year|time|age|days?|weeks?|months?|hours?|period|trend|wave|visit|t)$", re.IGNORECASE)
_CAMEL = re.compile(r"[a-z](Id|ID|No|Nr|Key)$")
_PERSON = re.compile(
    r"^(subject|subj|patient|person|student|pupil|child|user|customer|respondent|participant|household|individual|indiv"
    r"|school|class|family|teacher)[_\W]?(id|no|nr|number|code)?$",
    re.IGNORECASE,
)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]m)?"
_ZONE = r"(Z|[+-]\d{2}:?\d{2})?"
_DATE = re.compile(
    rf"(\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.](\d{{4}}|\d{{2}})|\d{{4}}-(0[1-9]|1[0-2])"
    rf"|\d{{1,2}}[ -]?{_MONTH}[ ,-]*(\d{{4}}|\d{{2}})|{_MONTH} \d{{1,2}},? \d{{4}}|{_MONTH}[ -]\d{{4}})"
    rf"([T ]{_CLOCK}{_ZONE})?|{_CLOCK}",
    re.IGNORECASE,
)
_COMMAS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|[+-]?\d+,\d+")


class Columns:
    """A table's client and target columns as codes, made once for all checks."""

    def __init__(self, frame: pd.DataFrame, client: str, target: str) -> None:
        self.target = frame[target]
        self.name = str(target)
        self.owner: Ints = np.asarray(pd.factorize(frame[client])[0], np.int64)
        self.clients = int(self.owner.max(initial=-1)) + 1

    @cached_property
    def target_codes(self) -> Ints:
        return np.asarray(pd.factorize(self.target)[0], np.int64)

    @cached_property
    def target_numbers(self) -> Floats | None:
        return _numbers(self.target)

    def constant_in_clients(self, values: pd.Series[Any]) -> bool:
        """One value for all rows of each client, where clients have several rows."""
        if len(self.owner) < 2 * self.clients:
            return False
        some = self.owner[:_SAMPLE]
        if _pairs(some, _codes(values.iloc[:_SAMPLE])) > len(np.unique(some)):
            return False
        return _pairs(self.owner, _codes(values)) == self.clients

    def names_clients(self, values: pd.Series[Any]) -> bool:
        return self.constant_in_clients(values) and len(np.unique(_codes(values))) == self.clients

    def unique_in_clients(self, values: pd.Series[Any]) -> bool:
        """Almost every row of a client has its own value, where clients have many rows."""
        codes = _codes(values)
        return 5 * self.clients <= len(codes) and _pairs(self.owner, codes) >= 0.95 * len(codes)

    def nested_in_clients(self, values: pd.Series[Any]) -> bool:
        """Every value occurs at one client only."""
        codes = _codes(values)
        return self.clients > 1 and _pairs(self.owner, codes) == len(np.unique(codes)) > self.clients


# ---- columns that carry nothing --------------------------------------------------------------------------------------


def useless(values: pd.Series[Any], look: Columns) -> str:
    """Why a column is not a feature, or ""."""
    numbers = None if pd.api.types.is_bool_dtype(values) else _numbers(values)
    present = values.dropna()
    if not len(present):
        return "no value in any row"
    try:
        one = len(present.iloc[:_SAMPLE].unique()) == 1 and bool((present == present.iloc[0]).all())
    except (TypeError, ValueError):
        return ""  # lists and the like: preprocessing refuses them by name
    if one and 1 - len(present) / len(values) < INDICATOR_SHARE:
        return f"constant ({present.iloc[0]})"
    if pd.api.types.is_bool_dtype(values):
        return ""
    if is_date(present):
        return "dates or times; turn them into numbers to use them"
    if numbers is not None:
        return _counter(values, numbers, look)
    if pd.api.types.is_numeric_dtype(values) or stray_text(present) is not None:
        return ""  # infinite values and text among numbers: preprocessing refuses them by name
    return _wordy(values, present, look)


def is_date(present: pd.Series[Any]) -> bool:
    types = pd.api.types
    if types.is_datetime64_any_dtype(present) or types.is_timedelta64_dtype(present):
        return True
    if isinstance(present.dtype, pd.PeriodDtype | pd.IntervalDtype):
        return isinstance(present.dtype, pd.PeriodDtype)
    if types.is_numeric_dtype(present):
        whole = types.is_integer_dtype(present) and bool(present.between(19000101, 21001231).all())
        return whole and bool(pd.to_datetime(present.astype("str"), format="%Y%m%d", errors="coerce").notna().all())
    found = types.infer_dtype(present, skipna=True)
    if any(word in found for word in ("date", "time", "period")):
        return True
    some = [str(v).strip() for v in present.unique()[:_SAMPLE]]
    return sum(_DATE.fullmatch(v) is not None for v in some) >= 0.95 * len(some)


def _counter(values: pd.Series[Any], numbers: Floats, look: Columns) -> str:
    """Whole numbers that number the rows, or that are called an identifier and behave like one."""
    n = len(numbers)
    if n < ENOUGH or np.isnan(numbers).any() or (numbers % 1 != 0).any():
        return ""
    distinct = len(np.unique(numbers))
    if distinct == n and not _TIME.search(str(values.name)):
        if numbers.max() - numbers.min() == n - 1:
            return "row numbers: every whole number of a range once"
        if (np.diff(numbers) > 0).all():
            return "an identifier: whole numbers that grow from row to row"
    return _called_id(values, distinct, look)


def _called_id(values: pd.Series[Any], distinct: int, look: Columns) -> str:
    name = str(values.name)
    if len(values) < ENOUGH or not (_ID.search(name) or _CAMEL.search(name) or _PERSON.match(name)):
        return ""
    if distinct >= 0.9 * len(values):
        return f"an identifier by its name: {distinct} distinct values in {len(values)} rows"
    if look.names_clients(values):
        return "another name of the client"
    if look.nested_in_clients(values):
        return f"an identifier by its name: {distinct} distinct values, each at one client only"
    if distinct > FEW and look.unique_in_clients(values):
        return f"an identifier by its name: {distinct} values, almost each row of a client has its own"
    return ""


def _wordy(values: pd.Series[Any], present: pd.Series[Any], look: Columns) -> str:
    """Text: numbers with commas, free text, identifiers, another name of the client."""
    distinct = int(present.nunique())
    texts = [str(v) for v in present.unique()[:_SAMPLE]]
    if all(_COMMAS.fullmatch(t.strip()) for t in texts):
        return f"numbers with commas ({texts[0]}), which read as text; write them without, or with a decimal comma"
    letters, words = (float(np.mean([f(t) for t in texts])) for f in (len, lambda t: len(t.split())))
    if letters >= 25 and words >= 4 and distinct > max(FEW, 0.2 * len(present)):
        return f"free text: {distinct} distinct values of {words:.0f} words on average"
    if distinct >= 0.9 * len(present) and len(present) >= ENOUGH:
        return f"an identifier: {distinct} distinct among {len(present)} values"
    if look.names_clients(values):
        return "another name of the client"
    return _called_id(values, distinct, look)


def has_leading_zeros(values: pd.Series[Any]) -> bool:
    """Text made of digits, some with a zero in front: codes, not quantities."""
    if pd.api.types.is_numeric_dtype(values):
        return False
    texts = [v for v in values.dropna().unique()[:_SAMPLE] if isinstance(v, str)]
    return bool(texts) and all(t.isdecimal() for t in texts) and any(t[0] == "0" and len(t) > 1 for t in texts)


# ---- copies of the target --------------------------------------------------------------------------------------------


def leak(values: pd.Series[Any], look: Columns) -> str:
    """Why a column reveals the target, or "". Rows in which either is missing are not compared."""
    both = (pd.notna(values) & pd.notna(look.target)).to_numpy()
    n = int(both.sum())
    if n < ENOUGH or n < 0.5 * len(values):
        return ""
    target = look.target_codes[both]
    goals = int(target.max()) + 1 if len(target) == len(both) else len(np.unique(target))
    if goals < 2:
        return ""
    chosen = values[both]
    if why := _function_of(chosen, target, goals):
        return why
    numbers, goal = _numbers(values), look.target_numbers
    if numbers is not None and goals == 2 and _threshold(numbers[both], target):
        return "the target follows from it: a threshold separates the two classes without an error or a gap"
    if goal is not None and chosen.iloc[:_SAMPLE].nunique() <= 2 and _splits(goal[both], _codes(chosen)):
        return "it follows from the target: a threshold of the target separates its two values"
    if numbers is None or goal is None or goals <= 2:
        return ""
    numbers, goal = numbers[both], goal[both]
    close = abs(_correlation(numbers, goal))
    if close > 1 - EXACT:
        return "a copy of the target, up to scale and shift"
    if goals > FEW and _same_order(numbers, goal):
        return "a function of the target, such as its logarithm: both order the rows alike"
    if close > 0.999 and _named_alike(str(values.name), look.name):
        return f"named like the target and almost a copy of it (correlation {close:.5f})"
    return ""


def _function_of(values: pd.Series[Any], target: Ints, goals: int) -> str:
    """Whether values and targets correspond one to one, or each of few values has one target only; some rows first."""
    n = len(values)
    for rows in (min(n, _SAMPLE), n):
        codes, goal = _codes(values.iloc[:rows]), target[:rows]
        kinds, pairs = len(np.unique(codes)), _pairs(codes, goal)
        copy = pairs == kinds == len(np.unique(goal)) and goals <= 0.5 * n
        if pairs > kinds or not (copy or kinds <= FEW):
            return ""
    if kinds < 2:
        return ""
    if copy:
        return "a copy of the target: its values and the target's correspond one to one"
    return "the target follows from it: each of its values occurs with one target only" if kinds <= 0.2 * n else ""


def _splits(numbers: Floats, codes: Ints) -> bool:
    return int(codes.max()) == 1 and _threshold(numbers, codes)


def _threshold(numbers: Floats, two: Ints) -> bool:
    """Whether the two kinds lie on two sides of a point, close to it: natural groups would leave a gap."""
    one = two == two.min()
    if min(one.sum(), (~one).sum()) < ENOUGH:
        return False
    low, high = (
        (numbers[one], numbers[~one]) if numbers[one].mean() < numbers[~one].mean() else (numbers[~one], numbers[one])
    )
    return bool(0 < high.min() - low.max() < 0.1 * numbers.std()) and len(np.unique(numbers)) > FEW


def _named_alike(one: str, other: str) -> bool:
    """One name is a word of the other (y_rounded, log.income), or a longer part of it (incomeUSD)."""
    a, b = one.lower(), other.lower()
    words = set(re.split(r"[\W_]+", a)) & set(re.split(r"[\W_]+", b)) - {""}
    return bool(words) or (min(len(a), len(b)) >= 3 and (a in b or b in a))


def _same_order(a: Floats, b: Floats) -> bool:
    if len(a) > _SAMPLE and not _same_order(a[:_SAMPLE], b[:_SAMPLE]):
        return False
    ranks = [np.unique(v, return_inverse=True)[1] for v in (a, b)]
    top = int(ranks[0].max())
    if top != ranks[1].max():
        return False
    return bool(np.array_equal(ranks[0], ranks[1]) or np.array_equal(ranks[0], top - ranks[1]))


# ---- copies of another column ----------------------------------------------------------------------------------------


def duplicates(frame: pd.DataFrame) -> dict[Any, Any]:
    """{column: the earlier column it copies}: numbers up to scale and shift, categories up to their names."""
    numbers: dict[Any, Floats] = {}
    copies: dict[Any, Any] = {}
    categories: dict[tuple[int, bytes], Any] = {}
    for column in frame.columns:
        values = frame[column]
        found = None if pd.api.types.is_bool_dtype(values) else _numbers(values)
        if found is not None:
            numbers[column] = found
            continue
        codes = _codes(values)
        key = (len(codes), np.asarray(pd.factorize(codes)[0], np.int64).tobytes())
        if key in categories:
            copies[column] = categories[key]
        else:
            categories[key] = column
    return copies | _affine(numbers)


def _affine(numbers: dict[Any, Floats]) -> dict[Any, Any]:
    """Candidates by the correlations of some rows, confirmed on all."""
    names = list(numbers)
    if len(names) < 2 or len(numbers[names[0]]) < ENOUGH:
        return {}
    rows = np.linspace(0, len(numbers[names[0]]) - 1, min(_SAMPLE, len(numbers[names[0]]))).astype(np.int64)
    sample = np.stack([numbers[name][rows] for name in names])
    gaps = np.isnan(sample)  # filled with the mean of the rest, which leaves copies copies
    rest = np.where(gaps, 0.0, sample).sum(axis=1) / np.maximum((~gaps).sum(axis=1), 1)
    sample = np.where(gaps, rest[:, None], sample)
    unit = np.abs(sample).max(axis=1, keepdims=True)
    sample = sample / np.where(unit > 0, unit, 1.0)
    sample -= sample.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(sample, axis=1, keepdims=True)
    sample /= np.where(norm > 0, norm, 1.0)
    near = np.abs(sample @ sample.T) > 1 - 1e-6
    flat = norm[:, 0] == 0
    near |= flat[:, None] & flat[None, :]  # constant in the sample: look at all rows
    copies: dict[Any, Any] = {}
    for j in range(1, len(names)):
        for i in np.flatnonzero(near[j, :j]):
            a, b = numbers[names[i]], numbers[names[j]]
            gap = np.isnan(a)
            alike = names[i] not in copies and np.array_equal(gap, np.isnan(b))
            if alike and abs(_correlation(a[~gap], b[~gap])) > 1 - EXACT:
                copies[names[j]] = names[i]
                break
    return copies


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _numbers(values: pd.Series[Any]) -> Floats | None:
    """float64 with NaN for missing, or None for a column that is not numeric."""
    types = pd.api.types
    numeric = types.is_numeric_dtype(values) and not types.is_complex_dtype(values)
    if not numeric and types.infer_dtype(values, skipna=True) not in (
        "integer",
        "floating",
        "decimal",
        "mixed-integer-float",
    ):
        return None
    numbers = np.asarray(values.to_numpy(np.float64, na_value=np.nan))
    return None if np.isinf(numbers).any() else numbers


def _codes(values: pd.Series[Any]) -> Ints:
    """Every value's number in order of first appearance; missing values share a separate number."""
    try:
        return np.asarray(pd.factorize(values, use_na_sentinel=False)[0], np.int64)
    except TypeError:  # lists and the like
        return np.arange(len(values), dtype=np.int64)


def _pairs(a: Ints, b: Ints) -> int:
    """How many distinct pairs there are."""
    return len(np.unique(a * (int(b.max(initial=0)) + 2) + b))


def _correlation(a: Floats, b: Floats) -> float:
    if len(a) < 3:
        return 0.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        r = np.corrcoef(a / (np.abs(a).max() or 1.0), b / (np.abs(b).max() or 1.0))[0, 1]
    return float(r) if np.isfinite(r) else 0.0
