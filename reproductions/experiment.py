"""What an experiment is: cells to measure under every seed, rows beside the paper's values, claims and a figure.

An experiment's file says only what is particular to it. ``reproduce/runner.py`` measures, caches, resumes and writes,
``reproduce/page.py`` makes the page of all experiments from the JSON files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

Scale = Literal["quick", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "paper")
Measured = dict[str, Any]  # numbers and lists of numbers, as JSON keeps them
Verdict = Literal["agrees", "same order", "differs", "not printed"]


@dataclass(frozen=True)
class Records:
    """What was measured: ``of(cell)`` lists the values of one cell, a seed after the other."""

    scale: Scale
    values: Mapping[str, Mapping[str, Measured]]  # cell → seed → what was measured

    def of(self, cell: str) -> list[Measured]:
        return [self.values[cell][seed] for seed in sorted(self.values.get(cell, {}), key=int)]

    def numbers(self, cell: str, name: str) -> list[float]:
        """One measured number of a cell, a seed after the other."""
        return [float(one[name]) for one in self.of(cell)]

    def mean(self, cell: str, name: str) -> float:
        return float(np.mean(self.numbers(cell, name)))

    def curve(self, cell: str, name: str) -> np.ndarray[Any, Any]:
        """The mean of a list over seeds."""
        runs: np.ndarray[Any, Any] = np.asarray([one[name] for one in self.of(cell)], dtype=float)
        return np.asarray(runs.mean(axis=0))


@dataclass(frozen=True)
class Row:
    """One line of the table: a value of the paper (None: not printed) beside ours under every seed."""

    what: str
    paper: float | None
    ours: Sequence[float]
    paper_error: float = 0.0  # as printed
    tolerance: float = 0.0  # a difference that nobody would act on
    digits: int = 3
    own_error: float | None = None  # a standard error over something else than seeds
    runs: int = 1  # of which the printed error is the deviation; 1 where it is a standard error, or nobody knows
    among: str = ""  # rows of the same name are compared with one another; "" stands alone

    @property
    def mean(self) -> float:
        return float(np.mean(self.ours))

    @property
    def error(self) -> float:
        """Standard error of the mean over seeds (0 for one seed, or for what is computed exactly)."""
        if self.own_error is not None:
            return self.own_error
        return float(np.std(self.ours, ddof=1) / np.sqrt(len(self.ours))) if len(self.ours) > 1 else 0.0

    @property
    def agrees(self) -> bool:
        """Within two standard errors, both counted, or within the tolerance."""
        if self.paper is None:
            return False
        return abs(self.mean - self.paper) <= max(self.tolerance, 2 * float(np.hypot(self.error, self._uncertain)))

    @property
    def _uncertain(self) -> float:
        """The standard error of the paper's value."""
        return self.paper_error / float(np.sqrt(self.runs))

    def keeps_order(self, others: Sequence[Row]) -> bool:
        """Above and below the same rows as in the paper; those that the paper cannot tell apart do not count."""
        kept = [
            (self.paper - other.paper) * (self.mean - other.mean) > 0
            for other in others
            if other.among == self.among
            and self.paper is not None
            and other.paper is not None
            and abs(self.paper - other.paper) > 2 * float(np.hypot(self._uncertain, other._uncertain))
        ]
        return bool(self.among) and bool(kept) and all(kept)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper (``says``) and whether what we measured bears it out."""

    says: str
    holds: bool
    found: str  # what we measured, in one sentence
    paper_is_wrong: bool = False  # an erratum: that it does not hold is the finding
    unlike: str = ""  # why it need not hold in our runs, with a measurement

    @property
    def expected(self) -> bool:
        """It holds, or it is known why it does not."""
        return self.holds or self.paper_is_wrong or bool(self.unlike)


Cells = Mapping[str, Any]  # a cell's name and whatever ``measure`` needs to know of it


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. ``why`` explains, row by row (or under ""), what differs, with a measurement."""

    name: str
    work: str
    shows: str
    cells: Callable[[Scale], Cells]
    measure: Callable[[Any, int, Scale], Measured]
    rows: Callable[[Records], list[Row]]
    claims: Callable[[Records], list[Claim]]
    draw: Callable[[Records], Figure]
    needs: tuple[str, ...] = ()  # names of optional data sets
    seeds: Mapping[Scale, int] = field(default_factory=lambda: {"quick": 3, "paper": 5})
    first_seed: int = 0  # smaller ones were looked at while the settings of this file were chosen
    setting: Callable[[Scale], str] = lambda scale: ""  # one sentence: sizes, rounds, how far from the paper's
    why: Mapping[str, str] = field(default_factory=dict)
    ragged: bool = False  # cells count with whatever seeds they have, not only with those that all cells have
    recall: Callable[[Mapping[str, Mapping[str, Measured]]], None] | None = (
        None  # told what an interrupted call measured
    )
    wide: Callable[[Records], pd.DataFrame] | None = None  # the same numbers in another shape, for the documentation

    def verdict(self, row: Row, rows: Sequence[Row]) -> Verdict:
        """A row agrees, or keeps its place among the rows of its table, or differs."""
        if row.paper is None:
            return "not printed"
        if row.agrees:
            return "agrees"
        return "same order" if row.keeps_order(rows) else "differs"
