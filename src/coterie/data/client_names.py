"""Clients by name: the same client is found again whatever type its column has in another file.

An identifier may be a whole number in one file, a float in the next (because a cell is empty) and text in a third; a
date may be a timestamp or text. All are compared as text: 3, 3.0, "3" and "3.0" are one client, unless training told them
apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.preprocessing import as_text

Ints = npt.NDArray[np.int64]
_WHOLE = re.compile(r"-?\d+\.0+")
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)[T ]00:00:00(\.0+)?")


def client_text(value: Any) -> str:
    """The name of a client; a date without a time of day is written as 2026-03-31."""
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, datetime):
        return _plain(value.isoformat(sep=" "))
    return value.isoformat() if isinstance(value, date) else as_text(value)


def _plain(text: str) -> str:
    """Whole numbers without a point, and dates without midnight."""
    found = _MIDNIGHT.fullmatch(text)
    return found[1] if found else text.split(".")[0] if _WHOLE.fullmatch(text) else text


def places(known: Iterable[str], values: pd.Series[Any], *, alike: bool = False) -> Ints:
    """The place of every value among the known clients, −1 for a client that is not known (or missing).

    An exact name comes first. ``alike`` takes names for one that differ only by case or blank space."""
    names = list(known)
    exact = {name: i for i, name in enumerate(names)}
    loose: dict[str, int] = {}
    for i, name in enumerate(names):
        loose[_plain(name)] = -1 if _plain(name) in loose else i  # two known clients: only the exact name will do
    folded = {" ".join(name.split()).casefold(): i for i, name in enumerate(names)} if alike else {}
    codes, uniques = pd.factorize(values)
    found = []
    for value in uniques:
        text = client_text(value)
        place = exact.get(text, loose.get(_plain(text), -1))
        found.append(folded.get(" ".join(text.split()).casefold(), -1) if alike and place < 0 else place)
    return np.array([*found, -1], np.int64)[codes]
