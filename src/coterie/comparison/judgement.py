"""The rule for trained methods: the same questions as `decision.rule`, asked of scores on random splits.

1. A method is *learnable* when it beats the overall average (log loss or squared error) beyond chance.
2. A method is *proven* when it is learnable and its mean gain over the tuned `local` exceeds its error, by a factor that
   pays for choosing among the methods, and one per cent of the room for improvement.
3. Of the proven methods the simplest is taken that is not measurably worse than the best.
4. Otherwise alone, if `local` is learnable; otherwise the simplest learnable method, as a leaning.

The error of a mean gain is the largest of three: over test rows (widened by 1.5, since splits share training rows), over
clients (with ten or more), and over splits, pooled over methods and corrected for their overlap as Nadeau and Bengio (2003)
do: clients share one model's training noise, which neither rows nor clients show."""

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


def split_error(gains: list[Floats], overlap: float, needed: float) -> float:
    """What the splits add to the error of a mean gain: pooled over methods, since three splits say little of one.

    It is widened by Student's t for its few degrees of freedom, so that ``needed`` times it is the right bound."""
    if not gains or len(gains[0]) < 2:
        return 0.0
    each = np.stack([np.nanmean(g, axis=1) for g in gains])  # (methods, splits)
    count, df = each.shape[1], len(each) * (each.shape[1] - 1)
    shared = overlap / (1 - overlap) if overlap < 1 else 0.0
    spread = float(np.sqrt(each.var(axis=1, ddof=1).mean() * (1 / count + shared)))
    return spread * float(stats.t.ppf(1 - ALPHA / len(gains), df)) / needed


def mean_error(gains: Floats, errors: Floats, splits: float) -> tuple[float, float]:
    """The mean gain over clients with a score, and its error."""
    known = np.isfinite(gains).any(0) & np.isfinite(errors)
    m = int(known.sum())
    if not m:
        return 0.0, float("inf")
    clients = np.nanmean(gains[:, known], axis=0)
    rows = SHARED_ROWS * float(np.linalg.norm(errors[known])) / m
    between = float(clients.std(ddof=1) / np.sqrt(m)) if m >= 10 else 0.0
    return float(clients.mean()), max(rows, between, splits)


def judge_trained(methods: dict[str, Trained], overlap: float, room: float, constant: float) -> Judgement:
    """The recommendation. `overlap` is the share of rows that are test rows (1 when all seeds share a split); `room` is
    what the best method gains over the overall average, in the metric."""
    others = {name: t for name, t in methods.items() if name != "local"}
    clients = max((int(np.isfinite(t.errors).sum()) for t in methods.values()), default=0)
    df = max(clients - 1, 9)
    needed = float(stats.t.ppf(1 - ALPHA / max(len(others), 1), df))
    gate = float(stats.norm.ppf(1 - ALPHA / len(methods)))
    splits = split_error([t.gains for t in others.values()], overlap, needed)
    found = {name: mean_error(t.gains, t.errors, splits) for name, t in others.items()}
    learnable = tuple(name for name, t in methods.items() if t.beats > gate * SHARED_ROWS * t.beats_error)
    floor = ROOM * max(room, 0.0)
    proven = tuple(
        name
        for name, (mean, error) in found.items()
        if name in learnable and methods[name].way != "alone" and mean > needed * error and mean > floor
    )
    rival = max(found, key=lambda name: found[name][0], default="local")
    if not learnable:
        choice, sure, method = "alone", "nothing", rival
    elif proven:
        method = _simplest(methods, proven, found, splits, floor)
        steady = (np.nanmean(methods[method].gains, axis=1) > 0).mean() > 0.6
        choice, sure = methods[method].way, "clear" if steady else "borderline"
    elif "local" in learnable:
        worse = all(mean + needed * error < floor for mean, error in found.values())
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
