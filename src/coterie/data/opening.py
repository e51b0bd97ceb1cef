"""Whatever holds clients' rows becomes a federation: a file, a table, arrays, or a function that draws a split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd

from coterie.base.text import suggest
from coterie.data.federation import Federation
from coterie.data.reading import read_table
from coterie.data.table_targets import levels_told_apart
from coterie.data.tables import federation_from_frame
from coterie.errors import ConfigError, DataError

Split = Callable[[int], Federation]
_READING = ("delimiter", "decimal", "encoding")


def opened(data: Any, reading: Mapping[str, Any], exact: bool = False) -> Split:
    """A function from a seed to a federation, which draws every split once. A federation has its split already.

    reading: how to read a file or a table (`Federation.from_csv`, with client= and target=) or arrays
    (`Federation.from_arrays`). For ``exact`` models many levels of a category are told apart."""
    if isinstance(data, Federation) or callable(data):
        if reading:
            raise ConfigError(f"A federation is read already; got {', '.join(reading)} with it. Leave them out.")
        return (lambda seed: data) if isinstance(data, Federation) else cache(data)
    if isinstance(data, str | Path | pd.DataFrame):
        return _table(data, dict(reading), exact)
    if isinstance(data, Mapping) or (isinstance(data, Sequence) and len(data) and isinstance(data[0], tuple)):
        _refuse_unknown(reading, signature(Federation.from_arrays).parameters)
        return cache(lambda seed: Federation.from_arrays(data, **{"seed": seed, **reading}))
    raise DataError(
        "compare takes a file, a DataFrame, arrays {client: (X, y)}, a Federation, or a function from a seed to one; got "
        f"{type(data).__name__}. Pass one of them."
    )


def _table(data: str | Path | pd.DataFrame, reading: dict[str, Any], exact: bool) -> Split:
    missing = [name for name in ("client", "target") if reading.get(name) is None]
    if missing:
        raise ConfigError(
            f"A table needs the names of two columns, client= (whose row it is) and target= (what to predict); "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Name them."
        )
    if "weights" in reading:
        reading["weight"] = reading.pop("weights")
    _refuse_unknown(reading, (*signature(federation_from_frame).parameters, *_READING))
    how = {name: reading.pop(name) for name in _READING if name in reading}
    frame = data if isinstance(data, pd.DataFrame) else read_table(data, client=reading["client"], **how)
    usual = {"one_class": "allow"} | (
        {"max_categories": levels_told_apart(frame, reading["target"], reading.get("kind"))} if exact else {}
    )
    return cache(lambda seed: Federation.from_frame(frame, **{"seed": seed, **usual, **reading}))


def _refuse_unknown(reading: Iterable[str], known: Iterable[str]) -> None:
    for name in reading:
        if name not in known:
            raise ConfigError(f"compare has no keyword {name!r}. {suggest(name, known)}")
