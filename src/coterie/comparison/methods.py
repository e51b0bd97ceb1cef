"""The methods to compare: names, objects, a mapping or a comma-separated text become a table name → class or object.

A class is tuned on validation rows; an object is used as it is. Training alone is always among them and always tuned,
unless an object was passed for it: other methods' settings say nothing about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.algorithms import NAMES as NAMES
from coterie.base.text import suggest
from coterie.errors import ConfigError

DEFAULT = ("local", "fedavg", "finetuned", "ditto", "ifca")  # for networks

Algorithms = str | Sequence[str | Any] | Mapping[str, Any]


def parse(algorithms: Algorithms) -> dict[str, Any]:
    """Name → class (to be tuned) or object (to be used as it is); training alone first."""
    from coterie.algorithms import ALGORITHMS
    from coterie.algorithms.local import Local

    if isinstance(algorithms, str):
        algorithms = [a.strip() for a in algorithms.split(",") if a.strip()]
    if not isinstance(algorithms, Sequence | Mapping):
        raise ConfigError(
            f"algorithms is a list of names or algorithms, or a mapping; got {type(algorithms).__name__}."
        )
    items = algorithms.items() if isinstance(algorithms, Mapping) else [(None, a) for a in algorithms]
    methods: dict[str, Any] = {}
    for given, algorithm in items:
        if isinstance(algorithm, str):
            if algorithm not in ALGORITHMS:
                raise ConfigError(f"There is no algorithm {algorithm!r}. {suggest(algorithm, ALGORITHMS)}")
            given, algorithm = given or algorithm, ALGORITHMS[algorithm]
        name = given or registered(algorithm)
        if name in methods and given is not None:
            raise ConfigError(f"The method {name!r} is named twice. Name every method once.")
        count = 2
        while name in methods:
            name, count = f"{name.split(' ')[0]} {count}", count + 1
        methods[name] = algorithm
    if not methods:
        raise ConfigError(f"compare needs at least one algorithm; got none. {suggest('', ALGORITHMS)}")
    return {"local": methods.pop("local", Local), **methods}


def registered(algorithm: Any) -> str:
    """The name of an algorithm in the registry, or its class's name in small letters."""
    from coterie.algorithms import ALGORITHMS

    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    return next((name for name, known in ALGORITHMS.items() if known is kind), kind.__name__.lower())


def way(algorithm: Any, groups: int) -> str:
    """The way (of four) that a method belongs to; a method that does not state it is classified by the groups it found."""
    return getattr(algorithm, "way", None) or ("groups" if groups > 1 else "together")
