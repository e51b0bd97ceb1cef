"""Arguments checked by their annotations: `@guarded` on a public function or dataclass, `check_settings` in an estimator.

`float` is a finite number, `int` a whole number (or what the table of `arguments.py` says of the name), `Literal` one of its
words, a protocol an object with its methods, and so on; types such as `Positive` and `Count` of `arguments.py` carry their
rule. Arrays and `Any` pass: functions that take data check them.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from fractions import Fraction
from functools import lru_cache, wraps
from math import isinf, isnan
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from coterie.base.arguments import (
    ANYTHING,
    BOOL,
    CALLABLE,
    NONE,
    NUMBER,
    PATH,
    TABLE,
    TEXT,
    WHOLE,
    Rule,
    holds,
    is_number,
    made_by,
    one_of,
    refuse_masked,
    shown,
    whole,
)
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError, CoterieError

Thing = TypeVar("Thing", bound=Callable[..., Any])

_SINGLE = (str, bytes, int, float, tuple, np.generic)  # what can name a client
_PLAIN: dict[Any, Rule] = {
    None: NONE,
    types.NoneType: NONE,
    bool: BOOL,
    str: TEXT,
    os.PathLike: PATH,
    Hashable: Rule("a name", lambda v: isinstance(v, _SINGLE) and bool(v == v) and hash(v) is not None),
}
_EXAMPLES = {
    "Aggregator": "a rule such as Median()",
    "LocalSteps": "steps, such as LocalSGD(steps=10, lr=0.1) or LocalAdam()",
    "Mapping": "a dict",
    "Privacy": "a Privacy such as Privacy(epsilon=2.0, delta=1e-6, clip=1.0)",
}
_FOREIGN = (np.integer, np.floating, Fraction)
_SIZES = ("n_in", "n_out", "hidden", "channels", "side", "vocabulary", "length", "width", "heads", "layers")
_COUNTS = ("clusters", "evaluate_clients", "max_iter", "n_init", "repeats", "seeds")
_SETTINGS = (  # of algorithms, rules, schedules and estimators
    *("adapt", "after", "bits", "components", "e_steps", "high_steps", "inner", "iterations", "keep"),
    *("local_steps", "low_steps", "most", "neighbours", "probe_steps", "probes", "reference_steps"),
    *("reopen_every", "resample", "sample_users", "size", "subsets", "trials"),
)
_FROM_ZERO = ("catch_up", "first", "halvings", "n_corrupted", "random_state")
_BY_NAME = TABLE | dict.fromkeys((*_SIZES, *_COUNTS, *_SETTINGS), whole(1)) | dict.fromkeys(_FROM_ZERO, whole(0))
_MAY_BE_INFINITE = ("std",)  # of a lie
_INFINITE = Rule("a number, or infinite", lambda v: is_number(v) or (isinstance(v, float) and not isnan(v)))


def guarded(thing: Thing) -> Thing:
    """Check the arguments of a function or a dataclass against its annotations before it runs."""
    made: Any = thing
    if isinstance(thing, type):
        made.__init__ = _checking(made.__init__, thing)
        return cast(Thing, renamed(made))
    return cast(Thing, renamed(_checking(made, None)))


def _checking(function: Callable[..., Any], owner: type | None) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            bound = signature.bind(*args, **given)
        except TypeError:  # a name that is not there, or one too few: Python's own sentence
            return function(*args, **given)
        if any(isinstance(value, _FOREIGN) for value in bound.arguments.values()):
            bound.arguments = {name: _plain(value) for name, value in bound.arguments.items()}
            args, given = bound.args, bound.kwargs
        try:
            _check(function, bound.arguments, owner, "{owner} needs {name} to be" if owner else "{name} must be")
        except ConfigError:
            if not is_dataclass(owner):
                raise
            _own_words(function, args, given)
            raise
        return function(*args, **given)

    return call


def _plain(value: Any) -> Any:
    """A number of another type as Python's, which JSON knows and which has the full precision."""
    try:
        return int(value) if isinstance(value, np.integer) else float(value) if isinstance(value, _FOREIGN) else value
    except OverflowError:  # of a fraction; the check refuses it
        return value


def _own_words(init: Callable[..., Any], args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    """Run a dataclass's own checks first: their errors also name the bounds, and making an object has no side effects."""
    try:
        init(*args, **given)
    except CoterieError as own:
        if "\n" not in str(own):
            raise
    except Exception:
        return


def check_settings(estimator: Any) -> None:
    """Check the settings of an estimator; scikit-learn requires this check in `fit` and not before."""
    kind = type(estimator)
    names = inspect.signature(kind.__init__).parameters
    given = {name: getattr(estimator, name) for name in names if name != "self"}
    _check(inspect.unwrap(kind.__init__), given, kind, "{name} must be")


def _check(function: Callable[..., Any], given: Mapping[str, Any], owner: type | None, needs: str) -> None:
    refuse_masked(**given)
    for name, rule in _rules(function, owner).items():
        if name in given and not holds(rule, given[name]):
            rule_of_it = needs.format(owner=getattr(owner, "__name__", ""), name=name)
            raise ConfigError(f"{rule_of_it} {rule.words}; got {shown(given[name])}.")


@lru_cache(None)
def _rules(function: Callable[..., Any], owner: type | None) -> dict[str, Rule]:
    """The rule of every argument; a class inherits fields, whose annotations are written in the file of its base."""
    homes = [function.__module__] if owner is None else [base.__module__ for base in reversed(owner.__mro__)]
    known = _Names({name: value for home in homes for name, value in vars(sys.modules[home]).items()})
    rules = {}
    for name, parameter in inspect.signature(function).parameters.items():
        several = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if several or parameter.annotation is inspect.Parameter.empty:
            continue
        rule = _named(name, parameter.default, known.read(parameter.annotation))
        rules[name] = rule if parameter.default is parameter.empty else _or_default(rule, parameter.default)
    return rules


def _or_default(rule: Rule, default: Any) -> Rule:
    return Rule(rule.words, lambda v: v is default or rule.holds(v))


def _named(name: str, default: Any, annotation: Any) -> Rule:
    infinite = name in _MAY_BE_INFINITE or (isinstance(default, float) and isinf(default))
    return _INFINITE if annotation is float and infinite else rule_of(annotation, name)


class _Names(dict[str, Any]):
    """The names of a file; one that it imports for types alone becomes an empty class of that name."""

    def __missing__(self, name: str) -> Any:
        import builtins

        if hasattr(builtins, name):
            return getattr(builtins, name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls), "known_by_name": True})

    def read(self, annotation: Any) -> Any:
        try:
            return eval(annotation, {"__builtins__": {}}, self) if isinstance(annotation, str) else annotation
        except TypeError:  # such as pd.Index[Any], which only type checkers can read
            return Any


def rule_of(annotation: Any, name: str = "") -> Rule:
    """The rule that an annotation gives an argument of this name; `ANYTHING` where it gives none."""
    if annotation is int:
        return _BY_NAME.get(name, WHOLE)
    if annotation is float:
        return TABLE.get(name, NUMBER)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return cast(Rule, inside[1])
    if origin is Literal:
        return one_of(*inside) if all(isinstance(word, str) for word in inside) else ANYTHING
    if origin in (Union, types.UnionType):
        return _any_of([rule_of(part, name) for part in inside])
    if origin is tuple:
        return _tuple(inside, name)
    if origin is np.ndarray:
        return ANYTHING
    kind = origin or annotation
    if kind in (Sequence, list, Iterable):
        if inside == (str,):
            return TEXT | _many(Iterable, TEXT)  # a name, or several: `names` of coterie.base.tree reads both
        pairs = bool(inside) and get_origin(inside[0]) is tuple  # the function that takes them has a better message
        return _many(kind, ANYTHING if pairs or not inside else rule_of(inside[0]))
    if kind is Callable:
        return CALLABLE
    return _instance(kind) if isinstance(kind, type) and kind not in (object, Any) else ANYTHING


def _any_of(rules: list[Rule]) -> Rule:
    if ANYTHING in rules:
        return ANYTHING
    words = ", or ".join(dict.fromkeys(rule.words for rule in rules))
    return Rule(words, lambda v: any(holds(rule, v) for rule in rules))


def _tuple(inside: tuple[Any, ...], name: str) -> Rule:
    parts = [rule_of(part, name) for part in inside if part is not Ellipsis]
    if Ellipsis in inside:
        return _many(tuple, parts[0])
    words = f"a pair ({parts[0].words}, {parts[1].words})" if len(parts) == 2 else f"a tuple of {len(parts)}"
    return Rule(
        words,
        lambda v: isinstance(v, tuple | list) and len(v) == len(parts) and all(map(holds, parts, v)),
    )


def _many(kind: Any, one: Rule) -> Rule:
    """Several values of one kind. Iterators, which can be read only once, are not read here."""
    words = "a list" if one is ANYTHING else f"a list, each {one.words}"

    def all_hold(value: Any) -> bool:
        if (
            isinstance(value, str | bytes | Mapping)
            or not isinstance(value, Iterable)
            or getattr(value, "ndim", 1) != 1
        ):
            return False
        sized = hasattr(value, "__len__")
        if not (sized and hasattr(value, "__getitem__")) and kind is not Iterable:
            return False
        return not sized or all(holds(one, v) for v in value)

    return Rule(words, all_hold)


def _instance(kind: type) -> Rule:
    if kind.__name__.startswith("_"):  # a part of ArrayLike
        return ANYTHING
    if getattr(kind, "known_by_name", False):
        return Rule(_words(kind), made_by(kind.__name__).holds)
    if Protocol in kind.__bases__:
        methods = [n for n, m in vars(kind).items() if inspect.isfunction(m) and (n == "__call__" or n[0] != "_")]
        return Rule(
            _words(kind),
            lambda v: not isinstance(v, type) and all(callable(getattr(v, m, None)) for m in methods),
        )
    if kind.__name__ == "Path":
        return PATH
    return Rule(_words(kind), lambda v: isinstance(v, kind))


def _words(kind: type) -> str:
    name = kind.__name__
    return _EXAMPLES.get(name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
