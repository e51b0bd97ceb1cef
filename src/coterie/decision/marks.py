"""Single clients: who measurably gains or loses, corrected for looking at many; and what would settle a doubt."""

import numpy as np
from scipy import stats

from coterie.decision.candidates.rows import Floats
from coterie.decision.errors_of_gains import Gain

GAINS, LOSES, UNCLEAR, NO_SCORE = "gains", "loses", "no clear change", "no score"
# Rows of a client share training rows (1.5, see `errors_of_gains`); log loss has heavy tails besides.
WIDEN = {"mse": 1.5, "r2": 1.5, "accuracy": 1.5, "auc": 2.1, "log_loss": 2.1}


def p_values(gain: Gain, widen: float) -> Floats:
    """Two-sided, per scored client, by t = gain / (widen · standard error) with n + 3 degrees of freedom."""
    error = widen * np.sqrt(gain.variance / gain.sizes)
    t = np.where(error > 0, np.abs(gain.clients) / np.where(error > 0, error, 1), 0.0)
    return np.asarray(2 * stats.t.sf(t, gain.sizes + 3))


def benjamini_hochberg(p: Floats, level: float) -> np.ndarray:
    """Which hypotheses are rejected so that the expected share of false ones stays below ``level``."""
    if not len(p):
        return np.zeros(0, bool)
    order = np.argsort(p)
    below = np.flatnonzero(p[order] <= level * np.arange(1, len(p) + 1) / len(p))
    rejected = np.zeros(len(p), bool)
    if len(below):
        rejected[order[: below[-1] + 1]] = True
    return rejected


def marks(gain: Gain, scored: np.ndarray, n_clients: int, widen: float, level: float = 0.05) -> np.ndarray:
    """A mark per client."""
    found = benjamini_hochberg(p_values(gain, widen), level)
    result = np.full(n_clients, NO_SCORE, dtype=object)
    result[scored] = np.where(found, np.where(gain.clients > 0, GAINS, LOSES), UNCLEAR)
    return result


def rows_to_settle(gain: Gain, needed: float) -> float:
    """How many times today's rows would make this gain exceed its gate, if the gain stayed; infinite if it is ≤ 0."""
    if gain.mean <= 0:
        return float("inf")
    return float((needed * gain.gate_se() / gain.mean) ** 2)
