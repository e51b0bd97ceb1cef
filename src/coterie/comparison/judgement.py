"""The rule for trained methods: the same questions as `decision.rule`, asked of scores on random splits.

1. A method is *learnable* when it beats the overall average (log loss or squared error) beyond chance.
2. A method is *proven* when it is learnable and its mean gain over the tuned `local` exceeds its error, by a factor that
   pays for choosing among the methods, and one per cent of the room for improvement.
3. Of the proven methods the simplest is taken that is not measurably worse than the best.
4. Otherwise the answer is a leaning: to the simplest method whose gain is half of what a proof needs, else to alone, if
   `local` is learnable; otherwise to the simplest learnable method. Alone is clear when all rivals are measurably no better,
   with errors widened by 1.5: rows of the same unit in training and test flatter alone more than any other method.

The error of a mean gain has two parts. The first is that of the test rows (`training.bootstrap.gain_error` already pays for
the rows that splits share; measured in the study of trained networks, it needs no further factor) or, with ten clients or
more, that between clients if it is larger. The second is training noise that all clients of a split have in common, which
neither rows nor clients show: what the splits differ by beyond their test rows, pooled over methods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from coterie.comparison.methods import ORDER
from coterie.evidence.gains import LEVEL, SHARED_ROWS, Floats

ROOM = 0.01
ALPHA = 1 - LEVEL


@dataclass(frozen=True)
class Trained:
    """One method's gains over local (splits, clients), the clients' errors, and by how much it beats the overall average
    (mean over clients, and the error of that mean)."""

    way: str
    gains: Floats
    errors: Floats
    beats: float
    beats_error: float


@dataclass(frozen=True)
class Judgement:
    """The rule's answer and what it rests on. `mean` and `error` are of the mean gain over clients, by method."""

    recommendation: str
    sure: str
    method: str
    learnable: tuple[str, ...]
    proven: tuple[str, ...]
    mean: dict[str, float]
    error: dict[str, float]
    needed: float
    constant: float

    def bounds(self, method: str) -> tuple[float, float]:
        """The 95 % interval of a method's mean gain, or wider, so that it leaves zero out only for gains the rule proves."""
        half = max(float(stats.norm.ppf(0.975)), self.needed) * self.error[method]
        return self.mean[method] - half, self.mean[method] + half

    @property
    def interval(self) -> tuple[float, float]:
        return self.bounds(self.method) if self.method in self.mean else (0.0, 0.0)


def over_splits(splits: int, overlap: float) -> float:
    """The error of S splits' mean, that share a part ρ of their test rows, over the error of one: √((1 + (S − 1) ρ) / S)."""
    return float(np.sqrt((1 + (splits - 1) * overlap) / splits))


def split_error(methods: list[Trained], overlap: float, needed: float) -> float:
    """What training noise that clients share adds to the error of a mean gain: the variance over splits beyond that of
    their test rows, pooled over methods, since three splits say little of one.

    It is widened by Student's t for its few degrees of freedom, so that ``needed`` times it is the right bound."""
    count = len(methods[0].gains) if methods else 0
    if count < 2:
        return 0.0
    excess = []
    for method in methods:
        rows = (_row_error(method.gains, method.errors) / over_splits(count, overlap)) ** 2  # of one split
        excess.append(np.nanmean(method.gains, axis=1).var(ddof=1) - (1 - overlap) * rows)
    spread = np.sqrt(max(float(np.mean(excess)), 0.0) / count)
    return float(spread * stats.t.ppf(1 - ALPHA / len(methods), len(methods) * (count - 1)) / needed)


def _row_error(gains: Floats, errors: Floats) -> float:
    known = np.isfinite(gains).any(0) & np.isfinite(errors)
    return float(np.linalg.norm(errors[known])) / max(int(known.sum()), 1)


def mean_error(gains: Floats, errors: Floats, splits: float) -> tuple[float, float]:
    """The mean gain over clients with a score, and its error."""
    known = np.isfinite(gains).any(0) & np.isfinite(errors)
    m = int(known.sum())
    if not m:
        return 0.0, float("inf")
    clients = np.nanmean(gains[:, known], axis=0)
    between = float(clients.std(ddof=1) / np.sqrt(m)) if m >= 10 else 0.0
    return float(clients.mean()), float(np.hypot(max(_row_error(gains, errors), between), splits))


def judge_trained(methods: dict[str, Trained], overlap: float, room: float, constant: float, rows: float) -> Judgement:
    """The recommendation. `overlap` is the share of rows that are test rows (1 when all seeds share a split); `room` is
    what the best method gains over the overall average, in the metric; `rows` is the number of test rows."""
    others = {name: t for name, t in methods.items() if name != "local"}
    clients = max((int(np.isfinite(t.errors).sum()) for t in methods.values()), default=0)
    df = max(clients - 1 if clients >= 10 else rows - clients, 1)
    needed = float(stats.t.ppf(1 - ALPHA / max(len(others), 1), df))
    gate = (
        float(stats.norm.ppf(1 - ALPHA / len(methods)))
        * SHARED_ROWS
        * over_splits(len(methods["local"].gains), overlap)
    )
    splits = split_error(list(others.values()), overlap, needed)
    found = {name: mean_error(t.gains, t.errors, splits) for name, t in others.items()}
    learnable = tuple(name for name, t in methods.items() if t.beats > gate * t.beats_error)
    floor = ROOM * max(room, 0.0)
    proven, likely = (
        tuple(
            name
            for name, (mean, error) in found.items()
            if name in learnable and methods[name].way != "alone" and mean > share * needed * error and mean > floor
        )
        for share in (1.0, 0.5)
    )
    rival = max(found, key=lambda name: found[name][0], default="local")
    if not learnable:
        choice, sure, method = "alone", "nothing", rival
    elif proven:
        method = _simplest(methods, proven, found, splits, floor)
        steady = (np.nanmean(methods[method].gains, axis=1) > 0).mean() > 0.6
        choice, sure = methods[method].way, "clear" if steady else "borderline"
    elif likely and "local" in learnable:
        method = _simplest(methods, likely, found, splits, floor)
        choice, sure = methods[method].way, "leaning"
    elif "local" in learnable:
        worse = all(mean + SHARED_ROWS * needed * error < floor for mean, error in found.values())
        choice, sure, method = "alone", "clear" if worse and found else "leaning", rival
    else:
        method = min(learnable, key=lambda name: _rank(methods[name].way))
        choice, sure = methods[method].way, "leaning"
    means, errors = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    return Judgement(choice, sure, method, learnable, proven, means, errors, needed, constant)


def _rank(way: str) -> int:
    return ORDER.index(way) if way in ORDER else -1


def _simplest(
    methods: dict[str, Trained],
    proven: tuple[str, ...],
    found: dict[str, tuple[float, float]],
    splits: float,
    floor: float,
) -> str:
    """The first proven method, in order of simplicity, that is not measurably worse than the best of them."""
    best = max(proven, key=lambda name: found[name][0])
    for name in sorted(proven, key=lambda name: (_rank(methods[name].way), -found[name][0])):
        error = np.hypot(methods[name].errors, methods[best].errors) / np.sqrt(2)
        behind, spread = mean_error(methods[best].gains - methods[name].gains, error, splits)
        if not (behind > 1.645 * spread and behind > floor):
            return name
    return best
