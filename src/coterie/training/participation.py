"""Who would stay? Every client's gain over training alone, the clients that would leave, and the groups that would hold.

A client's gain is the score of the model it gets minus the score it has alone, on the same test rows, in units of the
task's first metric and positive when taking part is better. Its interval is a paired t interval, corrected for looking
at many clients (`evidence/gains.py`).
A row that several runs test counts once; how much runs differ beyond their rows widens the interval.

`coalition()` looks for groups that hold: leavers leave one at a time, worst first, and groups that would be better off by
themselves are tried (`evidence/coalitions`). What is told of those who remain is judged on rows that did not choose them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd

from coterie.errors import ConfigError, DataError
from coterie.evidence.coalitions.answer import Coalitions
from coterie.evidence.gains import (
    FEWEST,
    GAINS,
    LOSES,
    ROUNDING,
    UNCLEAR,
    Floats,
    Gains,
    chance_of_loss,
    correction,
    from_variances,
    intervals,
    mark_intervals,
    widening,
    worth_it,
)
from coterie.text import listed
from coterie.training.bootstrap import column_mean
from coterie.training.row_losses import pool, pooled_rows, row_losses, row_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from coterie.training.result import Result

Rule = Literal["interval", "mean"]


@dataclass(frozen=True)
class Settings:
    """How an audit judges: see `audit`."""

    level: float = 0.9
    rule: Rule = "interval"
    fewest: int = FEWEST
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ConfigError(f"level must be in (0, 1), for example 0.9; got {self.level}.")
        if self.rule not in get_args(Rule):
            raise ConfigError(f"rule must be one of {', '.join(get_args(Rule))}; got {self.rule!r}.")


@dataclass(frozen=True, eq=False)
class Participation:
    """`table` has a row per client: `score` with the others and `alone`, `gain` with its interval `low` … `high` (corrected
    for looking at many), `p_worse` (the chance of a loss), distinct test `rows`, and whether it `leaves`.

    NaN for a client that has no score: no test rows, or for AUC only one class among them. `worth`: a loss
    smaller than this is no reason to leave."""

    table: pd.DataFrame
    metric: str
    method: str
    settings: Settings
    results: tuple[Result, ...]
    alone: tuple[Result, ...]
    worth: float = 0.0

    @property
    def leavers(self) -> list[Hashable]:
        """The clients that would rationally leave."""
        return list(self.table.index[self.table["leaves"]])

    @property
    def unknown(self) -> list[Hashable]:
        """The clients without a score."""
        return list(self.table.index[self.table["gain"].isna()])

    @property
    def mean_gain(self) -> float:
        """The mean gain over the clients with a score."""
        return float(self.table["gain"].mean())

    @property
    def stable(self) -> bool:
        """Whether nobody would leave and the clients do not lose on average."""
        return not self.leavers and not self.mean_gain < -ROUNDING

    @property
    def marks(self) -> pd.Series[Any]:
        """Who clearly gains or loses, by the interval and the fewest rows of this audit; see `evidence/gains.py`."""
        return _marks(self.table, self.settings)

    @property
    def _unit(self) -> str:
        lower = self.results[0].evaluation.task.sign < 0
        return self.metric.replace("_", " ") + (" (how much lower it is)" if lower else "")

    def coalition(self, max_rounds: int | None = None, *, brings: bool = False, thorough: bool = False) -> Coalition:
        """Which groups would hold? This trains groups with the same algorithm, seeds and rounds; at most three
        groups per client. See `training/coalition.py`.

        max_rounds: how many may leave the group of all one at a time (None: a quarter of the clients, at least three).
        brings: also train each group without each of its members, to measure what a client brings to the others."""
        from coterie.training.coalition import find_coalition

        return find_coalition(self, max_rounds, brings=brings, thorough=thorough)

    def explain(self) -> str:
        """In plain words: who gains, who loses, who would leave."""
        t, marks = self.table, self.marks
        better, worse = t.index[marks == GAINS], t.index[marks == LOSES]
        sure = f"{self.settings.level:.0%} sure"
        known = len(t) - len(self.unknown)
        parts = [f"{len(t)} clients learn together with {self.method}; gains are in {self._unit}."]
        parts.append(f"We are {sure} that {_named(t, better)} better off than alone." if len(better) else "")
        parts.append(f"We are {sure} that {_named(t, worse)} worse off." if len(worse) else "")
        rest = int((marks == UNCLEAR).sum())
        if rest:
            how = "For every client" if rest == len(t) else f"For the other {rest if rest > 1 else 'one'}"
            parts.append(f"{how} the difference could be chance.")
        if known > 1:
            parts.append(f"This is {correction(known)}.")
        if self.unknown:
            parts.append(f"Nothing can be said of {listed(self.unknown)}: no test rows to score them on.")
        few = t.index[(t["rows"] < self.settings.fewest) & (t["rows"] > 0)]
        if len(few):
            parts.append(f"Fewer than {self.settings.fewest} test rows, too few to leave for: {listed(few)}.")
        return " ".join(p for p in [*parts, self._ending(worse)] if p)

    def _ending(self, worse: pd.Index[Any]) -> str:
        if self.leavers:
            return f"{listed(self.leavers)} would do better to leave: the coalition is not stable as it is."
        if self.mean_gain < -ROUNDING:
            return f"Nobody clearly loses, but the mean gain is {self.mean_gain:+.3f}: the coalition is not stable."
        if len(worse):
            return f"The loss is below what is worth leaving for ({self.worth:.3g}): the coalition is stable."
        return "Nobody has a reason to leave: the coalition is stable."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Every client's gain and interval, those who would leave in another colour."""
        from coterie.training.plots import plot_participation

        return plot_participation(self.table, self.marks, self.metric, ax)


@dataclass(frozen=True, eq=False)
class Coalition:
    """Which groups hold. `found` has for every client its group, what it gets and brings, and how sure that is. `steps` are
    the audit of all clients and, when they do not stay together, that of the largest group."""

    steps: tuple[Participation, ...]
    found: Coalitions

    @property
    def last(self) -> Participation:
        return self.steps[-1]

    @property
    def groups(self) -> list[list[Hashable]]:
        """The groups of two or more, the largest first."""
        return [list(group) for group in self.found.groups]

    @property
    def alone(self) -> list[Hashable]:
        """The clients that are better off alone."""
        return self.found.lone

    @property
    def members(self) -> list[Hashable]:
        """The largest group; empty when every client trains alone."""
        return self.groups[0] if self.groups else []

    @property
    def stable(self) -> bool:
        """Whether there are groups, they gain on rows that did not choose them, and none that was tried would secede."""
        return self.found.stable

    @property
    def history(self) -> pd.DataFrame:
        """A row per step: how many took part, their mean and worst gain, and who was not in the next one."""
        stayed = [set(step.table.index) for step in self.steps[1:]] + [set(self.members)]
        rows = [
            {
                "clients": len(step.table),
                "mean_gain": step.table["gain"].mean(),
                "worst_gain": step.table["gain"].min(),
                "left": ", ".join(str(c) for c in step.table.index if c not in stay),
            }
            for step, stay in zip(self.steps, stayed, strict=True)
        ]
        return pd.DataFrame(rows).rename_axis("step")

    @property
    def results(self) -> tuple[Result, ...]:
        """The runs of the last step, one per seed."""
        return self.last.results

    def summary(self) -> pd.DataFrame:
        """A row per client: its group, what it gets and brings, and how sure that is."""
        return self.found.table

    def verdict(self) -> str:
        """The first audit in plain words, and which groups would hold."""
        together = self.steps[0].stable and self.found.together
        return self.steps[0].explain() + ("" if together else f" {self.explain()}")

    def explain(self) -> str:
        """In plain words: which groups hold, who is alone, and how sure that is."""
        everyone = len(self.steps[0].table)
        if self.found.together and self.stable:
            said = f"All {everyone} clients stay."
        elif not self.groups:
            said = f"No group of the {everyone} clients holds: everybody trains alone."
        else:
            named = "; ".join(f"{listed(g, 12)} ({len(g)})" for g in self.groups)
            rest = f" Alone: {listed(self.alone, 12)}." if self.alone else ""
            said = f"These would learn together: {named}.{rest}"
        return f"{said} {self.found.words()}"


def audit(
    results: Result | Sequence[Result],
    *,
    level: float = 0.9,
    rule: Rule = "interval",
    fewest: int = FEWEST,
    seed: int = 0,
) -> Participation:
    """Compare every client's score with its score alone.

    results: one run, or several of the same clients (one per seed or split). rule: a client with at least `fewest` test rows
    leaves when the whole interval of its gain is below zero and the loss is worth it ("interval"), or as soon as its gain
    is negative ("mean").
    """
    runs = tuple(results) if isinstance(results, Sequence) else (results,)
    if not runs:
        raise ConfigError("A participation audit needs at least one result; got none.")
    alone = tuple(_alone(run) for run in runs)
    return judge(runs, alone, Settings(level, rule, fewest, seed))


def _alone(run: Result) -> Result:
    if run.loaded:
        raise ConfigError("A loaded result has no participation audit. Audit the result that fit returned.")
    alone = run.alone()
    if alone is None:
        raise ConfigError(
            f"There is nothing to compare {type(run.evaluation.algorithm).__name__} with: the clients were not trained "
            "alone. Call fit with alone=True, or with alone=fit(Local(…), federation, …) for an algorithm without local "
            "steps."
        )
    return alone


def judge(runs: tuple[Result, ...], alone: tuple[Result, ...], settings: Settings) -> Participation:
    """The audit of runs against given runs alone, which may have more clients."""
    live = runs[0].evaluation
    clients, metric, sign = runs[0].clients, live.task.metrics[0], live.task.sign
    if any(not run.clients.equals(clients) for run in runs):
        raise DataError("The audited runs must have the same clients in the same order. Split rows, not clients.")
    score, base = (
        np.stack([run.scores().iloc[:, 0].loc[list(clients)].to_numpy(np.float64) for run in group])
        for group in (runs, alone)
    )
    each: Floats = sign * (score - base)
    gains = _gains(runs, alone, each)
    table = pd.DataFrame(
        {"score": column_mean(score), "alone": column_mean(base), "gain": column_mean(each)}, index=clients
    )
    table["low"], table["high"] = intervals(gains, settings.level, settings.fewest)
    table["p_worse"] = chance_of_loss(gains)
    table["rows"] = gains.rows.astype(np.int64)
    worth = worth_it(sign < 0, table["alone"])
    enough = table["rows"] >= settings.fewest
    sure = (_marks(table, settings) == LOSES) & (table["gain"] < -worth)
    table["leaves"] = sure if settings.rule == "interval" else (table["gain"] < -ROUNDING) & enough
    return Participation(
        table.rename_axis("client"), metric, type(live.algorithm).__name__, settings, runs, alone, worth
    )


def _gains(runs: tuple[Result, ...], alone: tuple[Result, ...], each: Floats) -> Gains:
    """Every client's gain with the variance of a row: of distinct rows, and of training beyond them.

    Runs of one split differ only by the randomness of training. Runs of different splits also differ by their rows; the
    variance beyond that of the rows they do not share is due to training."""
    names = row_names(runs) if len(runs) > 1 else None
    clients = list(runs[0].clients)
    theirs = pooled_rows(runs, names)
    place = [int(i) for i in alone[0].clients.get_indexer(pd.Index(clients))]
    own = pool([[losses[i] for i in place] for losses in map(row_losses, alone)], names)
    rows = [b - a for a, b in zip(theirs, own, strict=True)]
    n = np.array([len(r) for r in rows], np.float64)
    variance = np.array([r.var(ddof=1) if len(r) > 1 else np.inf for r in rows])
    variance = np.where(np.isnan(variance), np.inf, variance)  # a score that depends on a single row
    count = len(runs)
    if count > 1:
        size = np.maximum(np.mean([run.federation.n_test for run in runs], axis=0), 1)
        shared = np.clip((count - n / size) / (count - 1), 0, 1)  # of two runs' test rows: 1 for one split
        fresh = np.where(np.isfinite(variance), variance, 0) / size * (1 - shared)
        between = np.asarray(np.ma.masked_invalid(each).var(axis=0, ddof=1).filled(0.0))
        variance = variance + n * np.maximum(between - fresh, 0) / count
    widen = widening(runs[0].evaluation.task.metrics[0], several_splits(runs, n))
    return from_variances(column_mean(each), variance, n).widened(widen)


def several_splits(runs: Sequence[Result], distinct: Floats) -> bool:
    """Whether the runs test different rows, `distinct` ones per client in all."""
    return bool((distinct > runs[0].federation.n_test).any())


def _marks(table: pd.DataFrame, settings: Settings) -> pd.Series[Any]:
    found = mark_intervals(table["low"], table["high"], table["rows"], settings.fewest, ROUNDING)
    return pd.Series(found, index=table.index, name="mark")


def _named(table: pd.DataFrame, clients: pd.Index[Any], most: int = 6) -> str:
    """The clients with their gains, the largest first, and the verb."""
    gains = table.loc[clients, "gain"].sort_values(key=abs, ascending=False)
    names = listed([f"{client} ({gain:+.3f})" for client, gain in gains.items()], most)
    return f"{names} {'is' if len(clients) == 1 else 'are'}"
