"""How sure a mean gain is: standard errors over clients, over rows, and over folds."""

from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from coterie.evidence.gains import SHARED_ROWS, Floats, Gains, steadied, widening
from coterie.evidence.scores import Scores

MANY = 10  # with so many clients or more, the error of their mean is the spread between them


@dataclass(frozen=True)
class Gain:
    """The gain of one method over another: per client, on the mean over clients, and its standard errors."""

    clients: Floats
    mean: float
    se_clients: float
    se_rows: float
    row_mean: float
    row_error: float  # of ``row_mean``, over rows
    weighted: float  # mean with clients weighted by how precisely they are measured
    weighted_se: float
    variance: Floats  # of a row's gain in each client, shrunk towards the common one
    sizes: Floats
    fold_se: float
    fold_df: int
    trained: bool = False  # on several splits, whose shared rows `sizes` counts once; exact fits are cross-validated
    noise: float = 0.0  # of training, which all clients of a run share; exact fits have none
    flips: Floats = field(default_factory=lambda: np.zeros(0))  # studentised means under random signs that clients drew

    @property
    def m(self) -> int:
        return len(self.clients)

    def single(self, scores: Scores) -> Gains:
        """The gains of all clients of a table, one by one; those without a score have NaN."""
        found = Gains(*(np.full(scores.n_clients, value) for value in (np.nan, np.nan, 1.0, 0.0)))
        found.mean[scores.scored], found.rows[scores.scored] = self.clients, self.sizes
        found.error[scores.scored] = widening(scores.metric, True) * np.sqrt(self.variance / self.sizes)
        found.freedom[scores.scored] = self.sizes + 3
        return found

    def beyond(self, needed: float, least: float = 0.0) -> bool:
        """Whether the mean over clients is ``needed`` standard errors above zero, and at least so large.

        A second test weights clients by their precision, so that small, noisy clients have little weight. Since it is a
        second test, it must reach 1.2 times as much, and the plain mean must exceed one standard error. The weighted mean
        must be large enough, too: a large client can show a gain that is next to nothing."""
        plain = self.mean > needed * self.gate_se()
        error = float(np.hypot(self.weighted_se, self.noise))
        second = self.m >= MANY and self.weighted > max(1.2 * needed * error, least) and self.mean > self.se_clients
        return bool((plain or second) and self.mean > least)

    def gate_se(self) -> float:
        """The standard error for the test against alone: between clients when there are ten or more, else over rows, widened
        where folds share training rows. The noise of training is added."""
        rows = self.se_rows if self.trained else SHARED_ROWS * self.se_rows
        return float(np.hypot(self.se_clients if self.m >= MANY else rows, self.noise))


def gain(scores: Scores, method: int, over: int) -> Gain:
    """Positive where ``method`` has the smaller loss."""
    made: Gain | None = scores.gain(method, over)
    if made is not None:
        return made
    found = scores.difference(over, method)
    clients, spread, sizes = found.clients, found.squares, scores.sizes
    m = len(clients)
    common = float(spread.sum() / max((sizes - 1).sum(), 1))
    variance = steadied(spread / np.maximum(sizes - 1, 1), sizes)
    if scores.metric == "auc":  # a few rows of one class may have no spread at all, which is no evidence
        variance = np.maximum(variance, common)
    mean = float(clients.mean()) if m else 0.0
    se_clients = float(clients.std(ddof=1) / np.sqrt(m)) if m > 1 else np.inf
    se_rows = float(np.sqrt((variance / sizes).sum()) / m) if m else np.inf
    row_mean = float((clients * sizes).sum() / sizes.sum()) if m else 0.0
    row_error = float(np.sqrt((variance * sizes).sum()) / sizes.sum()) if m else np.inf
    weighted, weighted_se = _weighted(clients, SHARED_ROWS**2 * variance / np.maximum(sizes, 1))
    errors = (mean, se_clients, se_rows, row_mean, row_error, weighted, weighted_se, variance, sizes)
    return Gain(clients, *errors, *fold_error(scores, found.per_fold), scores.test_share is not None)


def _weighted(clients: Floats, error: Floats) -> tuple[float, float]:
    """Random-effects mean (DerSimonian and Laird's weights) with an error from the spread itself."""
    m = len(clients)
    if m < 2:
        return 0.0, np.inf
    between = max(0.0, float(clients.var(ddof=1) - error.mean()))
    weight = 1 / np.maximum(error + between, 1e-300)
    weight = weight / weight.sum()
    mean = float((weight * clients).sum())
    return mean, float(np.sqrt((weight**2 * (clients - mean) ** 2).sum() * m / (m - 1)))


def fold_error(scores: Scores, per_fold: Floats) -> tuple[float, int]:
    """The corrected resampled error of Nadeau and Bengio (2003): folds share training rows, so test rows per training row
    are added. Splits of trained methods get the plain error; the rule adds what their shared rows need."""
    K, R = scores.n_folds, scores.repeats
    spread = float(per_fold.var(axis=1, ddof=1).mean()) if K > 1 else 0.0
    shared = 1 / max(K - 1, 1) if scores.test_share is None else 0.0
    return float(np.sqrt(spread * (1 / (K * R) + shared))), K - 1


def interval(gain: Gain, level: float) -> tuple[float, float]:
    """Bounds of the mean gain on new rows of these clients: the widest of the errors over folds, rows and clients.

    Each of them alone covers too rarely (see the study of coverage); the factors were chosen on its first seeds and
    checked on others. Trained methods use the error of the test against alone, which has a study of its own."""
    z = float(stats.norm.ppf((1 + level) / 2))
    if gain.trained:
        return gain.mean - z * gain.gate_se(), gain.mean + z * gain.gate_se()
    folds = float(stats.t.ppf((1 + level) / 2, gain.fold_df)) * gain.fold_se if gain.fold_df else 0.0
    clients = 1.4 * z * gain.se_clients if gain.m >= MANY else 0.0
    half = max(folds, 1.7 * z * gain.se_rows, clients)
    return gain.mean - half, gain.mean + half
