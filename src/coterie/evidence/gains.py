"""The gain of each client, its interval, and whether it is clear.

Exact fits, trained methods, participation audits and coalitions hand over `Gains`: per client a mean gain with its standard
error. They all use this file's

- factors (`widening`): by how much the plain standard error of test rows understates the error of a gain;
- correction for looking at many clients: the procedure of Benjamini and Hochberg (1995);
- interval: Student's t at the level that the procedure ends with (Benjamini and Yekutieli 2005), so that an interval leaves
  zero out exactly when the procedure calls the gain clear;
- mark: "gains", "loses", "no clear change" or "no score".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GAINS, LOSES, UNCLEAR, NO_SCORE = "gains", "loses", "no clear change", "no score"
MARKS = (GAINS, LOSES, UNCLEAR, NO_SCORE)

LEVEL = 0.95  # the level of intervals, and 1 − the false discovery rate of marks
FEWEST = 10  # test rows below which no client is called clear
ROUNDING = 1e-6  # a client does not leave for a smaller gain
_COMMON_ROWS = 4  # rows that the clients' common variance counts for in the variance of each

SHARED_ROWS = 1.5  # folds and splits share training rows: √(1 + K/(K − 1)) ≈ 1.5, as in Nadeau and Bengio (2003)
HEAVY_TAILS = {"log_loss": 1.4, "auc": 1.4}  # rare rows have large losses, and a few test rows may miss all of them

WORTH_SHARE, WORTH_SCORE = 0.01, 0.005  # of the mean loss alone; of a score in [0, 1]


def widening(metric: str, shared_rows: bool) -> float:
    """The factor of a standard error over test rows. `shared_rows`: the models of different test rows share training rows,
    as in cross-validation and repeated splits. With one split this is not so."""
    return (SHARED_ROWS if shared_rows else 1.0) * HEAVY_TAILS.get(metric, 1.0)


@dataclass(frozen=True)
class Gains:
    """Per client: the mean gain (positive is better, NaN without a score), its standard error, that error's degrees of
    freedom, and the number of test rows."""

    mean: Floats
    error: Floats
    freedom: Floats
    rows: Floats

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.mean) & (self.rows > 0)

    @property
    def average(self) -> float:
        """Mean over the clients with a score."""
        return float(self.mean[self.known].mean()) if self.known.any() else 0.0

    @property
    def average_error(self) -> float:
        """√Σe²/n over the clients with a score."""
        if not self.known.any():
            return float("inf")
        return float(np.linalg.norm(self.error[self.known]) / self.known.sum())

    def widened(self, factor: float) -> Gains:
        """The same gains with errors `factor` times as large."""
        return replace(self, error=factor * self.error)


def gains_of(rows: Floats, owner: Ints, n_clients: int, weight: Floats | None = None) -> Gains:
    """The gains per client from the gain of every row; NaN rows are left out, and `weight` counts rows."""
    use = np.isfinite(rows)
    count = np.asarray(use * (1.0 if weight is None else weight), np.float64)
    value = np.where(use, rows, 0.0)
    n = np.bincount(owner, weights=count, minlength=n_clients).astype(np.float64)
    mean = np.bincount(owner, weights=count * value, minlength=n_clients) / np.maximum(n, 1)
    spread = np.bincount(owner, weights=count * (value - mean[owner]) ** 2, minlength=n_clients)
    return from_variances(np.where(n > 0, mean, np.nan), spread / np.maximum(n - 1, 1), n)


def from_variances(mean: Floats, variance: Floats, rows: Floats) -> Gains:
    """The gains from the variance of a row's gain per client, each shrunk towards the clients' common variance."""
    return Gains(mean, np.sqrt(steadied(variance, rows) / np.maximum(rows, 1)), rows + (_COMMON_ROWS - 1), rows)


def steadied(variance: Floats, rows: Floats) -> Floats:
    """((n − 1) v + 4 v̄) / (n + 3), with the common variance v̄ = Σ (n − 1) v / Σ (n − 1), which also replaces a variance
    that is not finite."""
    free = np.where(np.isfinite(variance), np.maximum(rows - 1, 0), 0.0)
    own = free * np.where(np.isfinite(variance), variance, 0.0)
    if not free.sum():
        return np.full(len(rows), np.inf)
    common = float(own.sum() / free.sum())
    return np.asarray((own + _COMMON_ROWS * common) / (free + _COMMON_ROWS))


def paired_gains(rows: Sequence[Floats], each: Floats, sizes: Ints, metric: str) -> Gains:
    """The gains of trained models, one client at a time, from runs on the same clients.

    rows: per client the gain of every distinct test row, a mean over the runs that test it. each: the gain in every run
    (runs, clients). sizes: the test rows of every run. The variance of a row has two parts: that of distinct rows, and that
    of training beyond them. Runs of one split differ only by the randomness of training. Runs of different splits also
    differ by their rows; the variance beyond that of the rows they do not share is due to training."""
    n = np.array([len(r) for r in rows], np.float64)
    return trained_gains(np.array([r.var(ddof=1) if len(r) > 1 else np.inf for r in rows]), n, each, sizes, metric)


def trained_gains(variance: Floats, n: Floats, each: Floats, sizes: Ints, metric: str) -> Gains:
    """The same from the variance of the gains of a client's `n` distinct test rows."""
    count = len(each)
    variance = np.where(np.isnan(variance), np.inf, variance)  # a score that depends on a single row
    if count > 1:
        size = np.maximum(sizes.mean(axis=0), 1)
        shared = np.clip((count - n / size) / (count - 1), 0, 1)  # of two runs' test rows: 1 for one split
        fresh = np.where(np.isfinite(variance), variance, 0) / size * (1 - shared)
        between = np.asarray(np.ma.masked_invalid(each).var(axis=0, ddof=1).filled(0.0))
        variance = variance + n * np.maximum(between - fresh, 0) / count
    return from_variances(column_mean(each), variance, n).widened(widening(metric, several_splits(n, sizes)))


def several_splits(distinct: Floats, sizes: Ints) -> bool:
    """Whether runs with these numbers of test rows test different rows, `distinct` ones per client in all."""
    return bool((distinct > sizes[0]).any())


def column_mean(values: Floats) -> Floats:
    """The mean of every column over its finite numbers; NaN for a column without any."""
    mean: Floats = np.ma.masked_invalid(values).mean(axis=0).filled(np.nan)
    return mean


def p_values(gains: Gains) -> Floats:
    """The two-sided p-value of t = gain / error, per client; 1 without a score."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num(np.abs(gains.mean) / gains.error, posinf=np.inf)  # 0 of 0 is no evidence
    return np.asarray(2 * stats.t.sf(t, np.maximum(gains.freedom, 1)))


def corrected_level(gains: Gains, level: float = LEVEL, fewest: int = FEWEST) -> float:
    """The two-sided level α* = max(R, 1) α / m at which each of m clients is judged, where R counts the clear clients,
    those with p ≤ α*. Clients with fewer than `fewest` rows are not judged."""
    p = p_values(gains)[gains.known & (gains.rows >= fewest)]
    if not len(p):
        return 1 - level
    rejected = int((stats.false_discovery_control(p) <= 1 - level).sum())
    return (1 - level) * max(rejected, 1) / len(p)


def intervals(gains: Gains, level: float = LEVEL, fewest: int = FEWEST) -> tuple[Floats, Floats]:
    """The bounds of every client's gain, corrected for looking at many; NaN without a score."""
    alpha = corrected_level(gains, level, fewest)
    wide = stats.t.ppf(1 - alpha / 2, np.maximum(gains.freedom, 1)) * gains.error
    mean = np.where(gains.known, gains.mean, np.nan)
    return mean - wide, mean + wide


def chance_of_loss(gains: Gains) -> Floats:
    """Per client, without a correction: the level at which its gain is shown to be positive; NaN without a score."""
    one_sided = p_values(gains) / 2
    return np.where(gains.known, np.where(gains.mean > 0, one_sided, 1 - one_sided), np.nan)


def marks(gains: Gains, level: float = LEVEL, fewest: int = FEWEST, least: float = 0.0) -> npt.NDArray[np.object_]:
    """A mark per client."""
    return mark_intervals(*intervals(gains, level, fewest), gains.rows, fewest, least)


def mark_intervals(low: Any, high: Any, rows: Any, fewest: int = FEWEST, least: float = 0.0) -> npt.NDArray[np.object_]:
    """The marks of gains with these intervals; a clear gain has enough rows and an interval more than `least` from zero."""
    low, high, enough = np.asarray(low, np.float64), np.asarray(high, np.float64), np.asarray(rows) >= fewest
    found = np.where(np.isnan(low), NO_SCORE, UNCLEAR).astype(object)
    found[enough & (low > least)] = GAINS
    found[enough & (high < -least)] = LOSES
    return found


def clear_losers(gains: Gains, worth: float = 0.0, level: float = 0.9, fewest: int = FEWEST) -> npt.NDArray[np.bool_]:
    """The clients that clearly lose more than `worth`."""
    with np.errstate(invalid="ignore"):
        return np.asarray((marks(gains, level, fewest) == LOSES) & (gains.mean < -worth))


def worth_it(lower_is_better: bool, alone: Any) -> float:
    """The smallest gain that is worth a move: one per cent of the mean loss alone, or half a point of a score."""
    if not lower_is_better:
        return WORTH_SCORE
    known = np.asarray(alone, np.float64)
    known = known[np.isfinite(known)]
    return WORTH_SHARE * abs(float(known.mean())) if len(known) else 0.0


def correction(n_clients: int) -> str:
    """A phrase that says how single clients were corrected for looking at many."""
    return f"corrected for looking at {n_clients} clients" if n_clients > 1 else "one client"
