"""When is a gain clear? One definition, and one way to say it, for tables, reports, verdicts and audits.

A client clearly gains (or loses) when the whole interval of its gain is above (or below) zero and it has at least `FEWEST`
test rows. Who compares methods takes the gain ± `CLEAR` standard errors as the interval; a participation audit has a
paired t interval, corrected for looking at many clients, with the level it was asked for. A client leaves only for a
loss that is worth it: `worth_it`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

GAINS, LOSES, UNCLEAR, NO_SCORE = "gains", "loses", "no clear change", "no score"
MARKS = (GAINS, LOSES, UNCLEAR, NO_SCORE)

CLEAR = 2.0  # standard errors on either side of a gain
FEWEST = 10  # test rows below which nothing is called clear
ROUNDING = 1e-6  # an audit asks for more than this: nobody leaves for a rounding error

WORTH_SHARE, WORTH_SCORE = 0.01, 0.005  # of the mean loss alone; of a score in [0, 1]

WITHIN = "within two standard errors"
LEGEND = f"Green: clearly gains, red: clearly loses; uncoloured differences are {WITHIN}, so chance could make them."
DEFINITION = (
    "A gain is called clear when it exceeds two standard errors, from resampled test rows and the variation over seeds."
)
ON_AVERAGE = {
    GAINS: "a clear gain on average",
    LOSES: "a clear loss on average",
    UNCLEAR: "a difference within chance",
    NO_SCORE: "not comparable",
}


def interval(gain: Any, error: Any) -> tuple[Any, Any]:
    """The interval of a gain with a standard error: numbers, arrays or tables."""
    return gain - CLEAR * error, gain + CLEAR * error


def mark(gain: Any, low: Any, high: Any, rows: Any, fewest: int = FEWEST, least: float = 0.0) -> npt.NDArray[np.str_]:
    """What to call each gain, given its interval and the number of test rows behind it.

    `gain`, `low` and `high` have one shape; `rows` fits it by broadcasting. A gain that is NaN has no score.
    The interval must be more than `least` away from zero."""
    gain, low, high = (np.asarray(values, np.float64) for values in (gain, low, high))
    enough = np.asarray(rows) >= fewest
    marks = np.where(enough & (low > least), GAINS, np.where(enough & (high < -least), LOSES, UNCLEAR))
    return np.where(np.isnan(gain), NO_SCORE, marks)


def worth_it(lower_is_better: bool, alone: Any) -> float:
    """The smallest gain anybody would move for: one per cent of the mean loss alone, or half a point of a score."""
    if not lower_is_better:
        return WORTH_SCORE
    known = np.asarray(alone, np.float64)
    known = known[np.isfinite(known)]
    return WORTH_SHARE * abs(float(known.mean())) if len(known) else 0.0


def clearly(clients: str, verb: str, count: int) -> str:
    """`a and b clearly gain`, `a clearly gains`, `no client clearly gains`."""
    if not count:
        return f"no client clearly {verb}s"
    return f"{clients} clearly {verb}{'s' if count == 1 else ''}"
