"""Objects from plain tables (TOML): dataclasses from their fields, function calls from their signatures.

Scalars are checked by pydantic against the type hint. A dataclass hint takes a sub-table. A hint that stands for a
registry (`REGISTRIES`) takes a sub-table whose `name` is in the registry, or only the name for the defaults.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import SchemaError

from coterie.aggregation import AGGREGATORS, Aggregator
from coterie.aggregation.radius import RADIUS_RULES, RadiusRule
from coterie.algorithms import ALGORITHMS
from coterie.base.deprecated import SETTINGS, today
from coterie.base.text import suggest
from coterie.errors import ConfigError
from coterie.exchange.channels import CHANNELS, Channel
from coterie.exchange.messages import Algorithm
from coterie.learning.local_sgd import LOCAL_STEPS, LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.training.cohorts import SAMPLERS, Sampler

S = TypeVar("S", bound=BaseModel)
REGISTRIES: dict[Any, Mapping[str, type]] = {
    Algorithm: ALGORITHMS,
    Aggregator: AGGREGATORS,
    RadiusRule: RADIUS_RULES,
    Sampler: SAMPLERS,
    Channel: CHANNELS,
    LocalSteps: LOCAL_STEPS,
}
"""Type hint → the names that a configuration may use there."""


def build(kind: type, table: Mapping[str, Any], place: str) -> Any:
    """An instance of a dataclass from a table of its fields."""
    hints = get_type_hints(kind)
    own = [f for f in fields(kind) if f.init]
    table = today(kind.__name__, table)
    former = {k: None if v == "none" else v for k, v in table.items() if k in SETTINGS.get(kind.__name__, {})}
    table = {k: v for k, v in table.items() if k not in former}
    _refuse_unknown(table, [f.name for f in own], place)
    for f in own:
        if f.default is MISSING and f.default_factory is MISSING and f.name not in table:
            raise ConfigError(f"{place}.{f.name} is missing; {kind.__name__} needs it.")
    usual = {f.name: f.default_factory() if f.default_factory is not MISSING else f.default for f in own}
    values = {k: convert(hints[k], v, f"{place}.{k}", usual[k]) for k, v in table.items()}
    try:
        return kind(**values, **former)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place}: {str(error) or type(error).__name__}") from None


def arguments(
    function: Callable[..., Any],
    table: Mapping[str, Any],
    place: str,
    *,
    skip: Iterable[str] = (),
    also: Iterable[str] = (),
    known: Iterable[str] = (),
) -> dict[str, Any]:
    """Checked keyword arguments of a function; the caller gives those in `skip`, `also` are other keys of the section (named
    in suggestions), and `known` may be absent."""
    hints, table = get_type_hints(function), today(function.__name__, table)
    names = [n for n in inspect.signature(function).parameters if n not in set(skip)]
    _refuse_unknown(table, names, place, also)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty and name in names and name not in {*table, *known}:
            raise ConfigError(f"{place}.{name} is missing. Add it.")
    return {key: convert(hints.get(key, Any), value, f"{place}.{key}") for key, value in table.items()}


def convert(hint: Any, value: Any, place: str, usual: Any = None) -> Any:
    """A TOML value as the type of a hint; `usual` is the default."""
    options = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    if NoneType in options and isinstance(value, str) and value.lower() == "none" and str not in options:
        return None
    if isinstance(value, Mapping) and not any(get_origin(o) in (dict, Mapping) for o in options):
        return _nested([o for o in options if o is not NoneType], value, place, usual)
    if isinstance(value, str) and not any(o is str or get_origin(o) is Literal for o in options):
        candidates = _candidates(options)
        if candidates:  # aggregate = "median": a class with its defaults
            return build(pick(value, candidates, place), {}, place)
    return _scalar(hint, value, place)


def _nested(options: list[Any], table: Mapping[str, Any], place: str, usual: Any) -> Any:
    """An object from a sub-table: of the class that `name` names, the only possible class, or the class of the default."""
    candidates = _candidates(options)
    rest = {k: v for k, v in table.items() if k != "name"}
    if "name" in table and not any(_has_field(o, "name") for o in options):
        return build(pick(table["name"], candidates, f"{place}.name"), rest, place)
    if len(candidates) == 1:
        return build(next(iter(candidates.values())), table, place)
    if type(usual) in candidates.values():
        return build(type(usual), table, place)
    plain = [kind for kind in options if kind in candidates.values()]  # a class of a registry needs its name
    fitting = [kind for kind in plain if all(_has_field(kind, key) for key in table)]
    if len(fitting) == 1:
        return build(fitting[0], table, place)
    if LocalSteps in options:  # without a name and a default: SGD's
        return build(LocalSGD, table, place)
    if not candidates:
        raise ConfigError(f"{place} must be {_words(options)}; got a section. Give a plain value.")
    raise ConfigError(f"{place} needs a name that says which one is meant. {suggest('', candidates)}")


def pick(name: Any, candidates: Mapping[str, type], place: str) -> type:
    """A registered class by its name, whatever its capitals and underscores: TrimmedMean, trimmedmean, trimmed_mean."""
    plain = {key.lower().replace("_", ""): kind for key, kind in candidates.items()}
    key = str(name).lower().replace("_", "")
    if key not in plain:
        raise ConfigError(f"{place} {name!r} is unknown. {suggest(name, candidates)}")
    return plain[key]


def require_known(name: Any, known: Iterable[str], place: str) -> None:
    if name not in known:
        raise ConfigError(f"{place} {name!r} is unknown. {suggest(name, known)}")


def checked_sections(
    table: Mapping[str, Any], model: type[S], known: Iterable[str], needed: Iterable[str], **more: Any
) -> S:
    """The sections of a file, checked; the first problem is one sentence."""
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"Unknown section [{name}]. {suggest(name, known)}")
        if name != "channels" and not isinstance(value, Mapping):
            raise ConfigError(f"[{name}] must be a section; got {value!r}. Write [{name}] on a line of its own.")
    for name in needed:
        if name not in table:
            raise ConfigError(f"The section [{name}] is missing. Add it.")
    try:
        return model.model_validate({**table, **more})
    except ValidationError as error:
        raise ConfigError(_sentence(error, model)) from None


def _candidates(options: list[Any]) -> dict[str, type]:
    """The classes that a hint allows: those of its registry, or the dataclass itself."""
    found: dict[str, type] = {}
    for option in options:
        if option in REGISTRIES:
            found |= REGISTRIES[option]
        elif isinstance(option, type) and is_dataclass(option):
            found[option.__name__] = option
    return found


def _has_field(option: Any, name: str) -> bool:
    return isinstance(option, type) and is_dataclass(option) and name in {f.name for f in fields(option)}


def _scalar(hint: Any, value: Any, place: str) -> Any:
    if hint is Any:
        return value
    try:
        adapter = TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUserError):
        adapter = _by_class(hint)
    try:  # strict JSON: 1 is a float, 1.0 and true are no ints, a list may be a tuple
        return adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError:
        options = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
        none = ' (or "none")' if NoneType in options else ""
        wanted = _words([o for o in options if o is not NoneType])
        raise ConfigError(f"{place} must be {wanted}{none}; got {value!r}.") from None


def _by_class(hint: Any) -> Any:
    """A hint of a class that pydantic does not know; nothing in a file can be an object of a protocol."""
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except SchemaError:
        return TypeAdapter(Literal["no value of a file"])


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _words(options: list[Any]) -> str:
    parts = []
    for option in options:
        origin, inner = get_origin(option), get_args(option)
        if origin is Literal:
            parts.append("one of " + ", ".join(repr(i) for i in inner))
        elif origin in (tuple, list) or (origin is not None and origin.__name__ == "Sequence"):
            parts.append("a list of " + _words([inner[0]]).removeprefix("a ") + "s" if inner else "a list")
        elif option in _NAMES:
            parts.append(_NAMES[option])
        elif isinstance(option, type):
            parts.append(f"a section ({option.__name__})")
        else:
            parts.append(str(option))
    return " or ".join(dict.fromkeys(parts))


def _refuse_unknown(table: Mapping[str, Any], names: Iterable[str], place: str, also: Iterable[str] = ()) -> None:
    names = [*also, *names]
    for key in table:
        if key not in names:
            raise ConfigError(f"Unknown key {place}.{key}. {suggest(key, names)}")


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem pydantic found, in one sentence."""
    first = error.errors()[0]
    place = tuple(p for p in first["loc"] if isinstance(p, str) and p not in ("int", "float", "str", "list[str]"))
    dotted = ".".join(place)
    if first["type"] == "extra_forbidden":
        sections = {f.alias or name: f.annotation for name, f in model.model_fields.items()}
        return f"Unknown key {dotted}. {suggest(place[-1], getattr(sections[place[0]], 'model_fields', sections))}"
    if first["type"] == "missing":
        return f"{dotted} is missing. Add it."
    wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    wanted = {"integer": "a whole number", "number": "a number", "string": "a text"}.get(wanted, wanted)
    return f"{dotted} must be {wanted}; got {first['input']!r}."
