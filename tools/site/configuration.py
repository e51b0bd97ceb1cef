"""Every key of a configuration file as TOML with its default, from the classes and functions that read it.

A page writes `<!-- keys: algorithm -->` where the keys of a section belong. Each block made here is checked by the code
that reads configurations, so what the page shows is what a file may say.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from coterie import datasets
from coterie.aggregation import AGGREGATORS
from coterie.aggregation.radius import RADIUS_RULES
from coterie.algorithms import ALGORITHMS
from coterie.cli.build import REGISTRIES
from coterie.cli.config import Config, RunSection, TaskSection
from coterie.cli.rerun import CompareSection
from coterie.cli.rerun import parse as parse_compare
from coterie.data.tables import federation_from_frame, read_table
from coterie.engines import ENGINES
from coterie.exchange.channels import CHANNELS
from coterie.learning.local_sgd import LOCAL_STEPS
from coterie.learning.metrics import LOSSES, METRICS
from coterie.learning.models import MODELS
from coterie.privacy.settings import Privacy
from coterie.secure.settings import Secure
from coterie.training.cohorts import SAMPLERS

NEEDED = {  # what stands for a key without default in the example
    "n_corrupted": 2, "radius": 1.0, "delta": 0.25, "sigma": 1.0, "separation": 5.0, "members": 10, "size": 10, "rate": 0.1,
    "clients": [0, 1], "hidden": [32], "vocabulary": 1000, "client": "hospital", "target": "disease", "epsilon": 3.0,
    "clip": 1.0, "path": "patients.csv",
}  # fmt: skip
FROM_DATA = ("n_in", "n_out", "channels", "side")
START = {"data": {"name": "heart"}, "algorithm": {"name": "fedavg"}}
Keys = list[tuple[str, Any, Any]]  # name, hint, default (MISSING: needed)


def filled(text: str) -> str:
    """A page with its markers replaced."""
    for name, make in SECTIONS.items():
        marker = f"<!-- keys: {name} -->"
        if marker in text:
            text = text.replace(marker, "\n".join(make()))
    return text


# ---- the sections ----------------------------------------------------------------------------------------------------


def _check(table: Mapping[str, Any]) -> None:
    """What reads a run must take it; sections that the example leaves out are those of START."""
    if "compare" in table:
        parse_compare({"data": START["data"], **table}, Path())
    else:
        named = {"name": "fedavg"} | table.get("algorithm", {})
        Config.parse({**START, **table, "algorithm": named})


def _named(head: str, registry: Mapping[str, Any], keys: Callable[[Any], Keys], key: str = "name") -> Iterator[str]:
    """One block for every entry of a registry."""
    for name, entry in registry.items():
        yield _block(f"### `{name}`\n\n{_about(entry)}\n", [head, f'{key} = "{name}"', *_lines(keys(entry))])


def _data() -> Iterator[str]:
    makers = {n: getattr(datasets, n, None) for n in datasets.DATASETS if n != "elections"}  # no federation to train on
    return _named("[data]", {n: make for n, make in makers.items() if make is not None}, _parameters)


def _table() -> Iterator[str]:
    reading = [k for k in _parameters(read_table) if k[0] in ("delimiter", "decimal", "encoding")]
    own = [k for k in _parameters(federation_from_frame) if k[0] != "frame"]
    facts = [("public", list[str], ())]
    yield _block("", ["[data]", *_lines([("path", str, MISSING), *own, *reading, *facts])])


def _task() -> Iterator[str]:
    yield _block("", ["[task]", *_lines(_model_fields(TaskSection))])
    yield f"Losses: {_codes(LOSSES)}. Metrics: {_codes(METRICS)}; several are a list.\n"
    yield from _named("[task]", MODELS, lambda m: [k for k in _parameters(m) if k[0] not in FROM_DATA], "model")


def _local() -> Iterator[str]:
    """Steps and epochs exclude one another."""
    example = {"steps": 10, "epochs": None}
    return _named("[algorithm.local]", LOCAL_STEPS, lambda kind: _fields(kind, example))


def _run() -> Iterator[str]:
    yield _block("", ["[run]", *_lines(_model_fields(RunSection))])
    yield f"Engines: {_codes(ENGINES)}.\n"


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "data": _data,
    "table": _table,
    "task": _task,
    "algorithm": lambda: _named("[algorithm]", ALGORITHMS, _fields),
    "local": _local,
    "aggregate": lambda: _named("[algorithm.aggregate]", AGGREGATORS, _fields),
    "radius": lambda: _named('[algorithm]\nname = "federated_clustering"\n\n[algorithm.radius]', RADIUS_RULES, _fields),
    "channels": lambda: _named("[[channels]]", CHANNELS, _fields),
    "privacy": lambda: iter([_block("", ["[privacy]", *_lines(_fields(Privacy, {"delta": 1e-6}))])]),
    "secure": lambda: iter([_block("", ["[secure]", *_lines(_fields(Secure, {"sites": 5}))])]),
    "run": _run,
    "cohort": lambda: _named("[run.cohort]", SAMPLERS, _fields),
    "compare": lambda: iter([_block("", ["[compare]", *_lines(_model_fields(CompareSection))])]),
}


# ---- keys ------------------------------------------------------------------------------------------------------------


def _fields(kind: type, example: Mapping[str, Any] | None = None) -> Keys:
    """The settings of a dataclass; `example` replaces some defaults."""
    hints = get_type_hints(kind)
    made = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(kind) if f.init}
    return [(name, hints[name], usual) for name, usual in (made | dict(example or {})).items() if name in made]


def _parameters(function: Callable[..., Any]) -> Keys:
    hints = get_type_hints(function)
    given = inspect.signature(function).parameters.values()
    return [(p.name, hints.get(p.name, Any), MISSING if p.default is p.empty else p.default) for p in given]


def _model_fields(model: Any) -> Keys:
    """A section's own keys: here TOML has no "none", a key is left out instead, which `str` in the hint says."""
    found = model.model_fields.items()
    usual = {name: f.get_default(call_default_factory=True) for name, f in found}
    return [(name, f.annotation | str if usual[name] is None else f.annotation, usual[name]) for name, f in found]


def _lines(keys: Keys) -> list[str]:
    made = [_line(*key) for key in keys]
    width = min(max((len(left) for left, _ in made), default=0), 44)
    return [f"{left:<{width}}  # {right}" if right else left for left, right in made]


def _line(name: str, hint: Any, usual: Any) -> tuple[str, str]:
    """`key = default` and what the key takes."""
    options = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    takes = " or ".join(dict.fromkeys(_words(o) for o in options if o is not NoneType and _words(o)))
    if usual is MISSING:
        return f"{name} = {_value(NEEDED[name])}", f"{takes}; needed"
    if usual is None and str in options:
        return f'# {name} = "…"', f"{takes}; left out unless you want it"
    if usual is None:
        return f'{name} = "none"', f'{takes}, or "none"'
    return f"{name} = {_value(usual)}", takes


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if is_dataclass(value):
        return _inline(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _inline(value: Any) -> str:
    """A default that is an object: its registered name, and the settings that are not its own defaults."""
    known = {kind: name for registry in REGISTRIES.values() for name, kind in registry.items()}
    own = {name: usual for name, _, usual in _fields(type(value))}
    changed = {k: getattr(value, k) for k in own if getattr(value, k) != own[k]}
    if not changed:
        return f'"{known[type(value)]}"' if _name_alone(value) else f'{{ name = "{known[type(value)]}" }}'
    inner = ", ".join(f"{k} = {_value(v)}" for k, v in changed.items())
    return f'{{ name = "{known[type(value)]}", {inner} }}'


def _name_alone(value: Any) -> bool:
    return type(value) not in RADIUS_RULES.values()


_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "any value"}
_SECTIONS = {
    id(ALGORITHMS): "algorithm",
    id(AGGREGATORS): "aggregate",
    id(RADIUS_RULES): "radius",
    id(LOCAL_STEPS): "local",
}


def _words(option: Any) -> str:
    origin, inner = get_origin(option), get_args(option)
    if option in REGISTRIES:
        return f"name or section, see {_SECTIONS.get(id(REGISTRIES[option]), 'below')}"
    if origin is Literal:
        return ", ".join(json.dumps(i) for i in inner)
    if origin in (tuple, list) or getattr(origin, "__name__", "") in ("Sequence", "Iterable"):
        return f"list of {_words(inner[0])}s" if inner and _words(inner[0]) else "list"
    if origin is dict:
        return "section"
    if isinstance(option, type) and is_dataclass(option):
        return f"section ({option.__name__})"
    return _NAMES.get(option, "")


# ---- text ------------------------------------------------------------------------------------------------------------


def _block(head: str, lines: list[str]) -> str:
    code = "\n".join(lines)
    _check(tomllib.loads(code))
    return f"{head}\n```toml\n{code}\n```\n"


def _about(thing: Any) -> str:
    """What the docstring says; of a class without one, the first lines of its file."""
    text = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    if not text or text.startswith(f"{thing.__name__}("):
        text = (inspect.getdoc(inspect.getmodule(thing)) or "").split("\n\n")[0]
    return inspect.cleandoc(text)


def _codes(names: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)
