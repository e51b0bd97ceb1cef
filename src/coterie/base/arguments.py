"""The allowed values of public arguments: one table by name, for every function and class that takes them.

`check_arguments(locals())` is the first line of a public function. Names that are not in the table pass. An argument that
means something else in one function is given its own rule there: `check_arguments(locals(), progress=CALLABLE)`.
`coterie.base.annotations` does the same for functions and classes whose annotations are enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ConfigError, DataError

_MOST = 2**63  # what NumPy and torch take for a whole number
_SHOWN = 80  # characters of a wrong value in the message


@dataclass(frozen=True)
class Rule:
    """The rule of an argument, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]

    def __or__(self, other: Rule) -> Rule:
        return Rule(f"{self.words}, or {other.words}", lambda v: self.holds(v) or other.holds(v))


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, Python's or NumPy's, and neither a bool nor too large for a tensor."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    if isinstance(value, Integral):
        return abs(int(value)) < _MOST
    try:
        return isfinite(value)
    except OverflowError:  # of a fraction
        return False


def whole(least: int, most: int | None = None) -> Rule:
    words = f"a whole number ≥ {least}" if most is None else f"a whole number from {least} to {most}"
    return Rule(words, lambda v: is_whole(v) and least <= v < (_MOST if most is None else most + 1))


def made_by(*names: str) -> Rule:
    """An object of one of these classes. The classes live in rooms above this file, so it knows their names alone."""
    return Rule(
        f"a {' or '.join(names)}",
        lambda v: not isinstance(v, type) and any(kind.__name__ in names for kind in type(v).__mro__),
    )


def having(words: str, *methods: str) -> Rule:
    return Rule(words, lambda v: not isinstance(v, type) and all(callable(getattr(v, m, None)) for m in methods))


def several(words: str, one: Rule) -> Rule:
    return Rule(words, lambda v: isinstance(v, Sequence) and not isinstance(v, str) and all(map(one.holds, v)))


def up_to(most: float) -> Rule:
    return Rule(f"a number above 0 and at most {most:g}", lambda v: is_number(v) and 0 < v <= most)


def one_of(*words: str) -> Rule:
    return Rule(f"one of {', '.join(map(repr, words))}", lambda v: isinstance(v, str) and v in words)


def or_public(rule: Rule) -> Rule:
    """The same rule, also for a value in `privacy.public(…)`."""
    return Rule(rule.words, lambda v: rule.holds(v.value if type(v).__name__ == "Released" else v))


ANYTHING = Rule("anything", lambda v: True)  # the function checks this argument itself, with a better message
NONE = Rule("None", lambda v: v is None)
BOOL = Rule("True or False", lambda v: isinstance(v, bool) or type(v).__name__ == "bool")  # NumPy's too
TEXT = Rule("text", lambda v: isinstance(v, str))
NAMES = Rule("names", lambda v: isinstance(v, Sequence | Set) and all(isinstance(name, str) for name in v))
PATH = Rule("a path", lambda v: isinstance(v, str | os.PathLike))
CALLABLE = Rule("a function", callable)
NUMBER = Rule("a finite number", is_number)
WHOLE = Rule("a whole number", lambda v: is_whole(v) and abs(v) < _MOST)
LEVEL = Rule("a number between 0 and 1", lambda v: is_number(v) and 0 < v < 1)
SHARE = Rule("a number from 0 to 1", lambda v: is_number(v) and 0 <= v <= 1)

# Types that say a rule where an argument or a setting is declared: `tol: NotNegative = 1e-6`.
Positive = Annotated[float, Rule("a finite number above 0", lambda v: is_number(v) and v > 0)]
NotNegative = Annotated[float, Rule("a finite number of at least 0", lambda v: is_number(v) and v >= 0)]
Level = Annotated[float, LEVEL]
Share = Annotated[float, SHARE]
Part = Annotated[float, up_to(1)]
Percent = Annotated[float, up_to(100)]
BelowOne = Annotated[float, Rule("a number of at least 0 and below 1", lambda v: is_number(v) and 0 <= v < 1)]
AboveOne = Annotated[float, Rule("a number above 1", lambda v: is_number(v) and v > 1)]
Count = Annotated[int, whole(1)]
CountFromZero = Annotated[int, whole(0)]
Bits = Annotated[int, whole(1, 8)]
Steps = Annotated[int, Rule("a whole number ≥ 1", lambda v: is_number(v) and v >= 1 and v == int(v))]  # 2.0 are two

SEEDS = whole(1) | Rule(
    "a list of whole numbers",
    lambda v: isinstance(v, Sequence) and len(v) > 0 and all(map(whole(0).holds, v)),
)
FEDERATION = made_by("Federation")

ALGORITHM = having("an algorithm such as FedAvg()", "init", "round")
_CHANNELS = several("a list of channels such as [Dropout(0.1)]", having("a channel", "ask", "reply"))

TABLE: dict[str, Rule] = {
    "algorithm": ALGORITHM,
    "alone": BOOL | one_of("tuned", "equal budget") | made_by("Result"),
    "callbacks": several("a list of functions", CALLABLE),
    "channels": _CHANNELS,
    "checkpoint_every": whole(1),
    "device": Rule("text such as 'cpu' or 'cuda'", TEXT.holds) | NONE,
    "drop_missing": BOOL,
    "evaluate_clients": whole(1) | NONE,
    "evaluate_every": whole(0),
    "every": whole(1),
    "federation": FEDERATION,
    "folds": whole(2),
    "holdout": LEVEL,
    "kind": or_public(one_of("classification", "regression", "multilabel")) | NONE,
    "level": LEVEL,
    "max_categories": whole(1),
    "metric": TEXT | NONE,
    "min_rows": whole(0),
    "n_users": whole(1),
    "newcomers": LEVEL | NONE,
    "one_class": one_of("error", "allow"),
    "out": PATH | NONE,
    "overwrite": BOOL,
    "patience": whole(1),
    "privacy": Rule("ct.Privacy(epsilon, delta, clip)", made_by("Privacy").holds) | NONE,
    "processes": whole(1),
    "progress": BOOL | NONE,
    "repeats": whole(1) | NONE,
    "resamples": whole(1),
    "restarts": whole(1),
    "resume": BOOL,
    "rounds": whole(0),
    "same_clients": BOOL,
    "scale_bytes": BOOL | NONE,
    "seed": whole(0),
    "seeds": SEEDS,
    "task": made_by("Task") | NONE,
    "test_fraction": Rule("a number", lambda v: isinstance(v, Real) and not isinstance(v, bool)),
}


def check_arguments(given: Mapping[str, Any], **own: Rule) -> None:
    """Refuse the first argument that breaks its rule, with one sentence; `given` is usually `locals()`."""
    rules = TABLE | own
    refuse_masked(**given)
    for name, value in given.items():
        rule = rules.get(name)
        if rule is not None and not holds(rule, value):
            raise ConfigError(f"{name} must be {rule.words}; got {shown(value)}.")


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """An argument as a plain int."""
    check_arguments({name: value}, **{name: whole(least)})
    return int(value)


def refuse_masked(**given: Any) -> None:
    """Refuse NumPy's masked arrays with masked entries: np.asarray would drop the mask and read the hidden values."""
    for name, value in given.items():
        if _masked(value):
            raise DataError(
                f"{name} holds masked values; a mask is not read. Fill them, x.filled(…), or leave those rows out."
            )


def _masked(value: Any, depth: int = 3) -> bool:
    """Whether an array, or one inside a few levels of lists and dicts, has masked entries."""
    if isinstance(value, np.ma.MaskedArray):
        return bool(np.ma.is_masked(value))
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.ravel().tolist()
    inside = isinstance(value, list | tuple) and depth > 0
    return inside and any(_masked(one, depth - 1) for one in value)


def numbers(name: str, values: Any) -> NDArray[np.float64]:
    """`values` as an array of floats, which may be NaN or infinite. Values that make no regular array of real numbers are
    refused."""
    refuse_masked(**{name: values})
    if type(values).__module__.startswith("scipy.sparse"):
        raise DataError(f"{name} must be dense; got a sparse matrix, which is not supported. Use {name}.toarray().")
    try:
        if np.iscomplexobj(np.asarray(values) if hasattr(values, "__array__") else values):
            raise DataError(
                f"Complex data not supported: {name} must be real numbers; got complex ones. Take real parts."
            )
        return np.asarray(values, dtype=np.float64)
    except DataError:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{name} must be numbers in a regular array; got {type(values).__name__}: {reason}. Convert them."
        ) from None


def regular(name: str, values: Any) -> NDArray[Any]:
    """`values` as an array of whatever type; rows of different lengths are refused."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name} must be a regular array; got {type(values).__name__}: {reason}. Reshape it.") from None


def finite(name: str, values: Any) -> NDArray[np.float64]:
    """`values` as floats, refusing NaN, infinity and masked values."""
    array = numbers(name, values)
    if not np.isfinite(array).all():
        raise DataError(f"{name} must be finite; got NaN or infinity. Drop or impute the missing values first.")
    return array


def labels(name: str, values: Any) -> NDArray[Any]:
    """`values` as one column of comparable numbers or words; missing values and lists are refused."""
    refuse_masked(**{name: values})
    try:
        column = np.asarray(values)
        good = column.ndim == 1 and column.size > 0 and column.dtype.kind in "biufUSOM"
        good = (
            good
            and bool(np.all(column == column))
            and not any(one is None or isinstance(one, list) for one in column.tolist())
        )
        np.unique(column) if good else None
    except (TypeError, ValueError, RuntimeError):
        good = False
    if not good:
        raise DataError(
            f"{name} must be one column of numbers or words, none of them missing; got {shown(values)}. "
            "Pass one value per row."
        )
    return column


def holds(rule: Rule, value: Any) -> bool:
    try:
        return bool(rule.holds(value))
    except (TypeError, ValueError, OverflowError):  # a value that cannot even be compared
        return False


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, and not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}… ({type(value).__name__})"
