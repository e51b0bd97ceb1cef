"""Values that are wrong almost everywhere, one maker each, because some can be used once alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

NAN = float("nan")


def _lists_in_cells() -> Any:
    cells = np.empty(48, dtype=object)
    cells[:] = [[1, 2]] * 48
    return cells


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "nan": lambda: NAN,
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "-0.5": lambda: -0.5,
    "True": lambda: True,
    "text": lambda: "x",
    "no text": lambda: "",
    "bytes": lambda: b"x",
    "empty list": list,
    "dict": dict,
    "object": object,
    "masked": lambda: np.ma.masked_array(np.arange(48.0), mask=np.arange(48) == 3),
    "0-d array": lambda: np.array(2.5),
    "0-d nan": lambda: np.array(NAN),
    "object array": lambda: np.array([object(), None, "x"], dtype=object),
    "lists in cells": _lists_in_cells,
    "nan array": lambda: np.full((48, 2), NAN),
    "empty array": lambda: np.zeros((0, 2)),
    "huge": lambda: 10**30,
    "complex": lambda: 1 + 2j,
    "path": lambda: Path("x"),
    "function": lambda: lambda *a: None,
    "class": lambda: dict,
    "duplicated columns": lambda: pd.DataFrame(np.zeros((4, 2)), columns=["u", "u"]),
    "generator": lambda: (i for i in range(3)),
    "tensor": lambda: torch.tensor([1.0, NAN]),
    "list of nan": lambda: [NAN, NAN],
    "tuple of text": lambda: ("x", "y"),
    "date": lambda: pd.Timestamp("2020-01-01"),
    "nested": lambda: [[1, 2], [3]],
    "set": lambda: {1, 2},
}
NAN_ONES = {"nan", "0-d nan", "nan array", "list of nan", "tensor"}
