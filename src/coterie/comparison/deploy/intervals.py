"""Intervals of predictions, conformal per client, with strength borrowed from all clients where a client has few rows.

The scores are the deployed stack's own errors on rows that neither its parts nor its weights saw (Lei et al. 2018, split
conformal prediction, with out-of-fold predictions in place of one split). An error is divided by the size of errors at
predictions of this height, and by that of its client, computed without the row itself; both are shrunk towards those of
all rows. Scores of a client and of all clients are then mixed as if all clients were worth ``_BORROWED`` rows: a large
client has its own quantiles (Mondrian), a small one those of everybody. A client never seen gets the errors of clients
that were left out, every client counting once.

For classes the bounds are those of the chance that the predicted class is right: the share of right predictions among unseen
rows of the same confidence, as an interval of its beta posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import beta

from coterie.data.coded_table import Floats, Ints

LEVEL = 0.9
_BORROWED = 60.0  # rows that the scores of all clients are worth beside those of one
_LARGE = 60  # rows from which a client has quantiles of its own
_STRENGTHS = (2.0, 6.0, 20.0, 60.0, 1e9)  # rows that the common size of errors is worth; the best is chosen
_GRID = (np.arange(1000) + 0.5) / 1000
_OWN_GRID = (np.arange(100) + 0.5) / 100
_KNOTS = 10  # heights of predictions at which the size of errors is measured
_BINS, _BIN_ROWS = 20, 40  # of confidence


@dataclass(frozen=True)
class Intervals:
    """What bounds need: quantiles, never single errors by row. Clients are rows; the last is a client never seen."""

    knots: Floats
    sizes: Floats  # of errors at the knots, relative to their mean
    total: Floats  # (clients,) the sum of scaled absolute errors
    count: Floats  # (clients,)
    middle: Floats  # () the mean size of scaled errors
    strength: Floats  # ()
    pooled: Floats  # quantiles of the scores of all rows
    own: Floats  # (large clients, grid)
    which: Ints  # (clients,) the row of ``own``, or −1
    new: Floats  # quantiles of errors of clients left out
    clients: Floats  # () clients that were left out
    edges: Floats  # classes: bounds of the bins of confidence
    right: Floats  # classes: (bins, 2) right predictions and all

    @classmethod
    def of_numbers(cls, y: Floats, made: Floats, owner: Ints, n_clients: int, left_out: Floats | None) -> Intervals:
        """From targets, out-of-fold predictions, and predictions of every row by models that never saw its client."""
        error = y - made
        spread = max(float(np.abs(error).mean()), 1e-300)
        knots = np.unique(np.quantile(made, np.linspace(0, 1, _KNOTS + 1)))
        sizes = _heights(made, np.abs(error), knots, spread)
        scaled = error / _size_at(made, knots, sizes)
        count = np.bincount(owner, minlength=n_clients).astype(float)
        total = np.bincount(owner, weights=np.abs(scaled), minlength=n_clients).astype(np.float64)
        middle = float(np.abs(scaled).mean())
        strength = min(_STRENGTHS, key=lambda k: _winkler(scaled, owner, total, count, middle, k))
        score = scaled / _left_out_scale(scaled, owner, total, count, middle, strength)
        large = np.flatnonzero(count >= _LARGE)
        which = np.full(n_clients, -1, np.int64)
        which[large] = np.arange(len(large))
        order = np.argsort(owner, kind="stable")
        parts = np.split(score[order], np.cumsum(count).astype(int)[:-1])
        own = np.array([np.quantile(parts[c], _OWN_GRID) for c in large]).reshape(len(large), len(_OWN_GRID))
        away = scaled if left_out is None else (y - left_out) / _size_at(left_out, knots, sizes)
        new = _weighted_quantiles(away, 1 / count[owner], _GRID)
        none = np.empty(0)
        values = (np.array(middle), np.array(strength), np.quantile(score, _GRID), own)
        at = np.array(0.0 if left_out is None else float((count > 0).sum()))
        return cls(knots, sizes, total, count, *values, which, new, at, none, none.reshape(0, 2))

    @classmethod
    def of_classes(cls, y: Floats, made: Floats, owner: Ints, n_clients: int) -> Intervals:
        confidence, right = made.max(1), made.argmax(1) == y
        bins = int(np.clip(len(y) // _BIN_ROWS, 1, _BINS))
        edges = np.unique(np.quantile(confidence, np.linspace(0, 1, bins + 1)[1:-1]))
        place = np.searchsorted(edges, confidence, side="right")
        table = np.stack([np.bincount(place, weights=w, minlength=len(edges) + 1) for w in (right, np.ones(len(y)))], 1)
        empty, whole, one = np.empty(0), np.empty(0, np.int64), np.array(1.0)
        blank = empty.reshape(0, len(_OWN_GRID))
        count = np.bincount(owner, minlength=n_clients).astype(float)
        right_of = table.astype(np.float64)
        return cls(empty, empty, empty, count, one, one, empty, blank, whole, empty, one, edges, right_of)

    def numbers(self, made: Floats, owner: Ints, level: float) -> tuple[Floats, Floats]:
        """Lower and upper bounds of targets; owner −1 is a client never seen."""
        tail = (1 - level) / 2
        low, high = (self._quantiles(p) for p in (tail, 1 - tail))
        scale = np.append((self.total + self.strength * self.middle) / (self.count + self.strength), 1.0)
        size = _size_at(made, self.knots, self.sizes) * scale[owner]
        return made + np.minimum(low[owner], 0) * size, made + np.maximum(high[owner], 0) * size

    def _quantiles(self, p: float) -> Floats:
        """The quantile of every client's scores, and last that of a client never seen."""
        found = np.full(len(self.which) + 1, np.interp(_beyond(p, self.count.sum()), _GRID, self.pooled))
        for c in np.flatnonzero(self.which >= 0):
            n = self.count[c]
            both = np.concatenate([self.own[self.which[c]], self.pooled])
            weight = np.repeat([n / len(_OWN_GRID), _BORROWED / len(_GRID)], [len(_OWN_GRID), len(_GRID)])
            found[c] = _weighted_quantiles(both, weight, np.array([_beyond(p, n + _BORROWED)]))[0]
        found[-1] = np.interp(_beyond(p, max(float(self.clients), 1.0)), _GRID, self.new)
        return found

    def chances(self, made: Floats, level: float) -> tuple[Floats, Floats]:
        """Bounds of the chance that the likeliest class is right."""
        place = np.searchsorted(self.edges, made.max(1), side="right")
        right, count = self.right[place].T
        tail = (1 - level) / 2
        prior = made.max(1)  # one row that is as often right as the model says
        low, high = (beta.ppf(p, right + prior, count - right + 1 - prior + 1e-9) for p in (tail, 1 - tail))
        return np.asarray(low), np.asarray(high)

    def with_rows(self, y: Floats, made: Floats, owner: Ints) -> Intervals:
        """The sizes of clients' errors with further rows, which the predictions did not see."""
        scaled = np.abs(y - made) / _size_at(made, self.knots, self.sizes)
        m = len(self.count)
        more = np.bincount(owner, weights=scaled, minlength=m)
        return replace(self, total=self.total + more, count=self.count + np.bincount(owner, minlength=m))

    def with_clients(self, number: int) -> Intervals:
        """Room for further clients, without rows."""
        none = np.zeros(number)
        if not len(self.total):  # of classes
            return replace(self, count=np.append(self.count, none))
        which = np.append(self.which, np.full(number, -1, np.int64))
        return replace(self, total=np.append(self.total, none), count=np.append(self.count, none), which=which)


def _beyond(p: float, n: float) -> float:
    """The place of a bound among n scores that leaves out a further one with the same chance: (n + 1) p of n."""
    return float(np.clip(p * (n + 1) / n - (0.0 if p > 0.5 else 1 / n), 0, 1))


def _size_at(made: Floats, knots: Floats, sizes: Floats) -> Floats:
    return np.interp(made, knots, sizes)


def _heights(made: Floats, size: Floats, knots: Floats, spread: float) -> Floats:
    """The mean size of errors around every knot, shrunk towards that of all as if by 30 rows; 1 on average."""
    if len(knots) < 3 or len(made) < 100:
        return np.ones(len(knots))
    middles = (knots[1:] + knots[:-1]) / 2
    place = np.searchsorted(middles, made)
    total, count = (np.bincount(place, weights=w, minlength=len(knots)) for w in (size, np.ones(len(made))))
    return np.asarray((total + 30 * spread) / (count + 30) / spread)


def _left_out_scale(score: Floats, owner: Ints, total: Floats, count: Floats, middle: float, k: float) -> Floats:
    """The size of its client's errors for every row, without the row itself."""
    return np.asarray((total[owner] - np.abs(score) + k * middle) / (count[owner] - 1 + k)) + 1e-300


def _winkler(score: Floats, owner: Ints, total: Floats, count: Floats, middle: float, k: float) -> float:
    """The mean interval score (Winkler 1972) of 90 % intervals: their width, and 20 times the distance to rows outside."""
    scale = _left_out_scale(score, owner, total, count, middle, k)
    low, high = np.quantile(score / scale, [0.05, 0.95])
    miss = np.maximum(low * scale - score, 0) + np.maximum(score - high * scale, 0)
    return float(((high - low) * scale + 20 * miss).mean())


def _weighted_quantiles(values: Floats, weight: Floats, at: Floats) -> Floats:
    order = np.argsort(values, kind="stable")
    place = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return np.interp(at, place, values[order])
