"""What decides a claim: an interval over seeds for every quantity that the claim says is above zero.

A claim compares paired differences: two methods are measured under the same seeds, and their difference under every seed is
one value. It *holds* if the 95 % interval of each of its margins is above zero, and it *does not hold* if one of them is
below zero (with the level corrected for their number). Everything else is *undecided*, and so is any claim from fewer than
three seeds, unless what it compares is computed and not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy import stats

LEVEL = 0.95
FEWEST = 3  # seeds that can decide anything

PAPER_IS_WRONG = "the paper is wrong here"
Finding = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True)
class Margin:
    """A quantity that a claim says is above zero, one value per seed. `exact` ones are computed and know no chance.

    `own_error` is a standard error over something else than seeds, where that is larger than the one over seeds."""

    what: str
    values: Sequence[float]
    exact: bool = False
    own_error: float = 0.0

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def decides(self) -> bool:
        return self.exact or len(self.values) >= FEWEST

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Student's interval of the mean over seeds."""
        if self.exact:
            return float(np.min(self.values)), float(np.max(self.values))
        wide = half_width(self.values, level, self.own_error)
        return self.mean - wide, self.mean + wide


@dataclass(frozen=True)
class Share:
    """The share of runs in which something happened, less the share that the claim says it exceeds."""

    what: str
    happened: Sequence[bool]
    above: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.happened)) - self.above

    @property
    def decides(self) -> bool:
        return len(self.happened) >= FEWEST

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """The exact interval of Clopper and Pearson."""
        low, high = stats.binomtest(int(np.sum(self.happened)), len(self.happened)).proportion_ci(level, "exact")
        return float(low) - self.above, float(high) - self.above


def sure(what: str, true: bool) -> Margin:
    """Something computed that is so or not."""
    return Margin(what, [1.0 if true else -1.0], exact=True)


def half_width(values: Sequence[float], level: float = LEVEL, own_error: float = 0.0) -> float:
    """Half of Student's interval of a mean; infinite for a single value."""
    n = len(values)
    if n < 2:
        return float("inf")
    error = max(float(np.std(values, ddof=1)) / np.sqrt(n), own_error)
    return float(stats.t.ppf((1 + level) / 2, n - 1) * error)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper (`says`) and what its margins, each of which it says is above zero, make of it."""

    says: str
    margins: Sequence[Margin | Share]
    found: str  # what we measured, in one sentence
    paper_is_wrong: bool = False  # an erratum: that it does not hold is the finding
    unlike: str = ""  # why it need not hold in our runs, with a measurement
    finding: Finding = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "finding", self._decide())

    def _decide(self) -> Finding:
        if not self.margins or not all(margin.decides for margin in self.margins):
            return "undecided"
        if all(margin.interval()[0] > 0 for margin in self.margins):
            return "holds"
        each = 1 - (1 - LEVEL) / len(self.margins)
        return "does not hold" if any(margin.interval(each)[1] < 0 for margin in self.margins) else "undecided"

    @property
    def holds(self) -> bool:
        return self.finding == "holds"

    @property
    def refuted(self) -> bool:
        return self.finding == "does not hold"

    @property
    def expected(self) -> bool:
        """The means point its way, or it is known why they need not."""
        return all(margin.mean > 0 for margin in self.margins) or self.paper_is_wrong or bool(self.unlike)

    @property
    def mark(self) -> str:
        """The verdict in a few words."""
        return PAPER_IS_WRONG if self.refuted and self.paper_is_wrong else self.finding

    @property
    def decided_by(self) -> str:
        """The margin that is clearest against the claim, or least clear for it, with its interval."""
        if not self.margins:
            return ""
        least = min(self.margins, key=lambda margin: margin.interval()[1 if self.refuted else 0])
        if not all(margin.decides for margin in self.margins):
            fewest = min(_runs(margin) for margin in self.margins)
            return f"{least.what}: {_short(least.mean)}, from {fewest} seed{'s' if fewest != 1 else ''} only."
        if isinstance(least, Margin) and least.exact:
            return ""
        low, high = least.interval()
        first = "" if len(self.margins) == 1 else "Clearest, " if self.refuted else "Least clear, "
        return f"{first}{least.what}: {_short(least.mean)} ({_short(low)} to {_short(high)})."


def _runs(margin: Margin | Share) -> int:
    return len(margin.values if isinstance(margin, Margin) else margin.happened)


def _short(value: float) -> str:
    """Three digits, with a sign."""
    return "0" if value == 0 else f"{value:+.3g}" if abs(value) < 1000 else f"{value:+.0f}"
