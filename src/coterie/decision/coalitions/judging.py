"""Who clearly loses, corrected for looking at many: one rule for tables and for trained models.

Ten clients or more: empirical Bayes. Variances are steadied towards their median (as ten further rows), gains are drawn
towards their mean by the spread between clients (DerSimonian and Laird 1986). Fewer: paired t with Holm's correction
(1979). Both are told as an interval that leaves zero out exactly when the rule calls a gain clear."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from coterie.decision.candidates.rows import Floats, Ints

MANY = 10  # clients from which on they lend one another strength
FEWEST = 10  # test rows below which nothing is called clear
STEADY = 10  # how many rows the median variance counts for
WIDEN = {"log_loss": 1.4}  # heavy tails: rare rows cost much, and few test rows may hold none of them


@dataclass(frozen=True)
class Gains:
    """The gain of every client: mean over its rows, variance of a row, number of rows; NaN without a score."""

    mean: Floats
    variance: Floats
    rows: Floats

    @property
    def known(self) -> np.ndarray:
        return np.isfinite(self.mean) & (self.rows > 0)

    @property
    def error(self) -> Floats:
        """Standard error of every mean; infinite for one row."""
        return np.asarray(np.where(self.rows > 1, np.sqrt(self.variance / np.maximum(self.rows, 1)), np.inf))

    def widened(self, factor: float) -> "Gains":
        """With errors ``factor`` times as large."""
        return Gains(self.mean, factor**2 * self.variance, self.rows)

    @property
    def average(self) -> float:
        """Mean over the clients with a score."""
        return float(self.mean[self.known].mean()) if self.known.any() else 0.0

    @property
    def average_error(self) -> float:
        """√Σse²/n; a client with a single row borrows the median variance."""
        if not self.known.any():
            return float("inf")
        variance = steadied(self)[self.known] / self.rows[self.known]
        return float(np.sqrt(variance.sum()) / self.known.sum())


def gains_of(rows: Floats, owner: Ints, n_clients: int, weight: Floats | None = None) -> Gains:
    """Means and variances of row gains per client; rows that are NaN are left out, ``weight`` counts rows."""
    use = np.isfinite(rows)
    count = np.asarray(use * (1.0 if weight is None else weight), np.float64)
    value = np.where(use, rows, 0.0)
    n = np.bincount(owner, weights=count, minlength=n_clients).astype(np.float64)
    mean = np.bincount(owner, weights=count * value, minlength=n_clients) / np.maximum(n, 1)
    centred = (value - mean[owner]) ** 2
    spread = np.bincount(owner, weights=count * centred, minlength=n_clients)
    return Gains(np.where(n > 0, mean, np.nan), spread / np.maximum(n - 1, 1), n)


def steadied(gains: Gains) -> Floats:
    """Variances of a row, drawn towards the median as by ``STEADY`` further rows."""
    known = gains.known & (gains.rows > 1)
    if not known.any():
        return np.full(len(gains.mean), np.inf)
    typical, free = float(np.median(gains.variance[known])), np.maximum(gains.rows - 1, 0)
    return np.asarray((STEADY * typical + free * gains.variance) / (STEADY + free))


def shrunk(gains: Gains) -> tuple[Floats, Floats]:
    """Posterior means and standard deviations of the gains, given the spread between clients; NaN without a score."""
    known = gains.known
    m = int(known.sum())
    error = np.maximum(steadied(gains)[known] / gains.rows[known], 1e-30)
    value, weight = gains.mean[known], 1 / error
    mean = float((weight * value).sum() / weight.sum())
    excess = float((weight * (value - mean) ** 2).sum()) - (m - 1)
    between = max(0.0, excess / float(weight.sum() - (weight**2).sum() / weight.sum())) if m > 1 else 0.0
    weight = 1 / (error + between)
    mean = float((weight * value).sum() / weight.sum())
    own = between / (between + error)  # how much a client's own gain counts
    centre, sd = np.full(len(known), np.nan), np.full(len(known), np.nan)
    centre[known] = own * value + (1 - own) * mean
    sd[known] = np.sqrt(own * error + (1 - own) ** 2 / weight.sum())
    return centre, sd


def _holm_levels(p: Floats, alpha: float) -> Floats:
    """The level at which each of the hypotheses is judged in Holm's procedure; two-sided."""
    m, order = len(p), np.argsort(p, kind="stable")
    step = alpha / (m - np.arange(m))
    stop = np.flatnonzero(p[order] > step)
    rank = np.minimum(np.arange(m), stop[0] if len(stop) else m)
    levels = np.empty(m)
    levels[order] = alpha / (m - rank)
    return levels


def interval(gains: Gains, level: float = 0.9, correct: bool = True) -> tuple[Floats, Floats, Floats]:
    """(low, high, chance of a loss) of every client's gain, corrected for looking at many.

    The interval leaves zero out exactly when the rule calls the gain clear. Without ``correct``: a plain paired t."""
    known = gains.known
    low, high, worse = (np.full(len(known), np.nan) for _ in range(3))
    if not known.any():
        return low, high, worse
    alpha = 1 - level
    if correct and known.sum() >= MANY:
        centre, sd = (v[known] for v in shrunk(gains))
        wide = float(stats.norm.ppf(1 - alpha / 2)) * sd
        low[known], high[known] = centre - wide, centre + wide
        worse[known] = stats.norm.cdf(0.0, centre, np.maximum(sd, 1e-300))
        return low, high, worse
    mean, error, free = gains.mean[known], gains.error[known], np.maximum(gains.rows[known] - 1, 1)
    t = np.clip(mean / np.maximum(error, 1e-300), -1e300, 1e300)
    each = np.full(len(mean), alpha)
    if correct:
        each = _holm_levels(2 * stats.t.sf(np.abs(t), free), alpha)
    wide = stats.t.ppf(1 - each / 2, free) * np.where(np.isfinite(error), error, 0)
    wide = np.where(np.isfinite(error), wide, np.inf)
    low[known], high[known] = mean - wide, mean + wide
    worse[known] = stats.t.sf(t, free)
    return low, high, worse


def clear_losers(gains: Gains, worth: float = 0.0, level: float = 0.9, fewest: int = FEWEST) -> np.ndarray:
    """Who clearly loses more than ``worth``: the whole interval below zero, its middle below −worth, enough rows."""
    low, high, _ = interval(gains, level)
    with np.errstate(invalid="ignore"):
        return np.asarray((high < 0) & ((low + high) / 2 < -worth) & (gains.rows >= fewest))


def correction(n_clients: int) -> str:
    """How single clients were corrected for many, in a few words."""
    if n_clients >= MANY:
        return f"corrected for looking at {n_clients} clients by drawing their gains towards the mean"
    return f"corrected for looking at {n_clients} clients (Holm)" if n_clients > 1 else "one client"
