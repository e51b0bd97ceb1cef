"""What an experiment is: cells to measure under every seed, rows beside the paper's values, claims and a figure.

An experiment's file says only what is particular to it. ``runner.py`` measures, caches, resumes and writes,
``page.py`` makes the page of all experiments from the JSON files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproductions.claims import FEWEST, Claim, Finding, Margin, half_width

Scale = Literal["quick", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "paper")
Measured = dict[str, Any]  # numbers and lists of numbers, as JSON keeps them
Verdict = Literal["agrees", "same order", "undecided", "differs", "impossible", "matches", "not printed"]


Of = Callable[[str], Measured]  # what was measured of a cell, under one seed


class _Absent(Exception):
    """A cell was not measured under a seed."""


def _at(values: Mapping[str, Mapping[str, Measured]], seed: str) -> Of:
    def of(cell: str) -> Measured:
        if seed not in values[cell]:
            raise _Absent
        return values[cell][seed]

    return of


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

    def margin(self, what: str, value: Callable[..., float], exact: bool = False) -> Margin:
        """`value` under every seed that all its cells have; it asks for what was measured of a cell by the cell's name."""
        found = []
        for seed in sorted({seed for by in self.values.values() for seed in by}, key=int):
            with suppress(_Absent):
                found.append(float(value(_at(self.values, seed))))
        return Margin(what, found, exact)

    def above(self, one: str, other: str, name: str, by: float = 0.0, scale: float = 1.0) -> Margin:
        """How much more one cell has than another, less `by`."""
        what = f"{one}, less {other}" + (f", less {by:g}" if by > 0 else f", plus {-by:g}" if by else "")
        return self.margin(what, lambda of: scale * (of(one)[name] - of(other)[name]) - by)

    def within(self, one: str, other: str, name: str, by: float, scale: float = 1.0) -> list[Margin]:
        """That two cells differ by less than `by`, either way."""
        return [
            self.margin(f"{b}, less {a}, plus {by:g}", lambda of, a=a, b=b: by - scale * (of(a)[name] - of(b)[name]))
            for a, b in ((one, other), (other, one))
        ]

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
    reference: str = ""  # what `paper` is if the paper does not print it: a theorem's value, another program's
    impossible: str = ""  # the erratum that says that the printed value cannot be
    exact: bool = False  # computed, not drawn: one value decides

    @property
    def mean(self) -> float:
        return float(np.mean(self.ours))

    @property
    def error(self) -> float:
        """Standard error of the mean over seeds (0 for what is computed exactly, NaN for one seed)."""
        if self.own_error is not None:
            return self.own_error
        if self.exact:
            return 0.0
        return float(np.std(self.ours, ddof=1) / np.sqrt(len(self.ours))) if len(self.ours) > 1 else float("nan")

    @property
    def shown(self) -> str:
        """Our mean with its standard error. An error too small for the digits is shown with its first own digit; one of
        rounding alone, or of one seed, is not shown."""
        if lost := sum(one != one for one in self.ours):  # NaN: a run ended in no numbers
            return f"diverged in {lost} of {len(self.ours)}"
        return f"{self.mean:.{self.digits}f}" + plus_minus(self.error, self.digits)

    @property
    def printed(self) -> str:
        """The paper's value, or the reference's with its name."""
        if self.paper is None:
            return ""
        named = f" ({self.reference})" if self.reference else ""
        return f"{self.paper:.{self.digits}f}" + plus_minus(self.paper_error, self.digits) + named

    @property
    def wide(self) -> float:
        """Half of the 95 % interval of our mean."""
        if self.own_error is not None or self.exact:
            return 2 * self.error
        return half_width(self.ours)

    def verdict(self, rows: Sequence[Row]) -> Verdict:
        """How this row's value, or its place among the rows of its table, compares with the paper's."""
        if self.paper is None:
            return "not printed"
        if not (self.exact or self.own_error is not None or len(self.ours) >= FEWEST):
            return "undecided"
        apart, uncertain = abs(self.mean - self.paper), float(np.hypot(self.wide, 2 * self._uncertain))
        if apart <= max(self.tolerance, uncertain):
            return self._alike()
        order = self._order([row for row in rows if row.among == self.among != "" and row is not self])
        return "differs" if self.reference and order != "same order" else order

    def _alike(self) -> Verdict:
        """The same value, if our interval is narrow enough to tell: no wider than the paper's error, or 1 % of its value."""
        assert self.paper is not None
        if self.wide > max(self.tolerance, 2 * self._uncertain, 0.01 * abs(self.paper)):
            return "undecided"
        if self.impossible:
            return "impossible"
        return "matches" if self.reference else "agrees"

    @property
    def _uncertain(self) -> float:
        """The standard error of the paper's value."""
        return self.paper_error / float(np.sqrt(self.runs))

    def _order(self, others: Sequence[Row]) -> Verdict:
        """Above and below the same rows as in the paper, by paired intervals; those that the paper cannot tell apart do not
        count."""
        ahead: list[Margin] = []
        for other in others:
            if self.paper is None or other.paper is None:
                continue
            if abs(self.paper - other.paper) <= 2 * float(np.hypot(self._uncertain, other._uncertain)):
                continue
            sign = float(np.sign(self.paper - other.paper))
            ahead.append(Margin("", (sign * np.subtract(self.ours, other.ours)).tolist(), exact=self.exact))
        if not ahead:
            return "differs"
        return _VERDICTS[Claim("", ahead, "").finding]


def plus_minus(error: float, digits: int) -> str:
    """An error as a table shows it."""
    if not error >= 1e-9:
        return ""
    shown = f"{error:.{digits}f}"
    return f" ± {shown if float(shown) else np.format_float_positional(error, precision=1, fractional=False)}"


_VERDICTS: dict[Finding, Verdict] = {
    "holds": "same order",
    "does not hold": "differs",
    "undecided": "undecided",
}


Cells = Mapping[str, Any]  # a cell's name and whatever ``measure`` needs to know of it


@dataclass(frozen=True, kw_only=True)
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
    size: str  # of the paper scale, beside the paper's own
    needs: tuple[str, ...] = ()  # names of optional data sets
    seeds: Mapping[Scale, int] = field(default_factory=lambda: {"quick": 3, "paper": 5})
    first_seed: int = 0  # smaller ones were looked at while the settings of this file were chosen
    setting: Callable[[Scale], str] = lambda scale: ""  # one sentence: sizes, rounds, how far from the paper's
    why: Mapping[str, str] = field(default_factory=dict)
    ragged: bool = False  # cells count with whatever seeds they have, not only with those that all cells have
    recall: Callable[[Mapping[str, Mapping[str, Measured]]], None] | None = (
        None  # told what an interrupted call measured
    )
    drawn: bool = True  # False: computed exactly, so that seeds say nothing
    wide: Callable[[Records], pd.DataFrame] | None = None  # the same numbers in another shape, for the documentation
