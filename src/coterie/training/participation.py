"""Who would stay? What every client gains over training alone, who would rationally leave, and what is left when they do.

A client's gain is the score of the model it gets minus the score it has alone, on the same test rows, in units of the
task's first metric and positive when taking part is better. Its interval is a paired bootstrap: the client's test rows are
drawn with replacement, the same rows for both models. With several runs (one a seed) the runs are resampled too, so that
the interval knows how much training itself varies.

A coalition is stable when nobody in it would leave. When somebody would, the rest is trained again without them, and so on
to a fixed point: those who stayed for what the leavers brought may want to leave next.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch

from coterie.errors import ConfigError, DataError
from coterie.learning.metrics import LOWER_IS_BETTER
from coterie.text import listed
from coterie.training.bootstrap import bootstrap_scores, column_mean
from coterie.training.gains import FEWEST, GAINS, LOSES, ROUNDING, UNCLEAR, Floats, mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from coterie.training.result import Result

Rule = Literal["interval", "mean"]


@dataclass(frozen=True)
class Settings:
    """How an audit judges: see `audit`."""

    level: float = 0.9
    resamples: int = 2000
    rule: Rule = "interval"
    fewest: int = FEWEST
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ConfigError(f"level must be in (0, 1), for example 0.9; got {self.level}.")
        if self.resamples < 100:
            raise ConfigError(f"An interval needs at least 100 resamples; got {self.resamples}. Use for example 2000.")
        if self.rule not in get_args(Rule):
            raise ConfigError(f"rule must be one of {', '.join(get_args(Rule))}; got {self.rule!r}.")


@dataclass(frozen=True, eq=False)
class Participation:
    """`table` has a row a client: `score` with the others and `alone`, `gain` with its interval `low` … `high`, `p_worse`
    (the share of bootstrap draws with a loss, ties counted half), test `rows`, and whether it `leaves`.

    NaN for a client that has no score: no test rows, or for AUC only one class among them."""

    table: pd.DataFrame
    metric: str
    method: str
    settings: Settings
    results: tuple[Result, ...]
    alone: tuple[Result, ...]

    @property
    def leavers(self) -> list[Hashable]:
        """The clients that would rationally leave."""
        return list(self.table.index[self.table["leaves"]])

    @property
    def unknown(self) -> list[Hashable]:
        """The clients without a score, of whom nothing can be said."""
        return list(self.table.index[self.table["gain"].isna()])

    @property
    def stable(self) -> bool:
        """Whether nobody would leave."""
        return not self.leavers

    @property
    def marks(self) -> pd.Series[Any]:
        """Who clearly gains or loses, by the interval and the fewest rows of this audit; see `gains.py`."""
        return _marks(self.table, self.settings)

    @property
    def _unit(self) -> str:
        lower = self.metric in LOWER_IS_BETTER
        return self.metric.replace("_", " ") + (" (how much lower it is)" if lower else "")

    def coalition(self, max_rounds: int = 10) -> Coalition:
        """Train again without the leavers (same algorithm, seeds and rounds), and again, until nobody would leave.

        Those who left are not asked back. It ends early when fewer than two clients are left, or after `max_rounds`."""
        if max_rounds < 1:
            raise ConfigError(f"max_rounds must be at least 1; got {max_rounds}.")
        steps = [self]
        for _ in range(max_rounds):
            now = steps[-1]
            stay = [client for client in now.table.index if client not in now.leavers]
            if now.stable or len(stay) < 2:
                break
            again = tuple(result.again(result.federation.subset(stay)) for result in now.results)
            steps.append(_audit(again, self.alone, self.settings))
        return Coalition(tuple(steps))

    def explain(self) -> str:
        """In plain words: who gains, who loses, who would leave."""
        t, marks = self.table, self.marks
        better, worse = t.index[marks == GAINS], t.index[marks == LOSES]
        sure = f"{self.settings.level:.0%} sure"
        parts = [f"{len(t)} clients learn together with {self.method}; gains are in {self._unit}."]
        parts.append(f"We are {sure} that {_named(t, better)} better off than alone." if len(better) else "")
        parts.append(f"We are {sure} that {_named(t, worse)} worse off." if len(worse) else "")
        rest = int((marks == UNCLEAR).sum())
        if rest:
            how = "For every client" if rest == len(t) else f"For the other {rest if rest > 1 else 'one'}"
            parts.append(f"{how} the difference could be chance.")
        if self.unknown:
            parts.append(f"Nothing can be said of {listed(self.unknown)}: no test rows to score them on.")
        few = t.index[(t["rows"] < self.settings.fewest) & (t["rows"] > 0)]
        if len(few) and self.settings.rule == "interval":
            parts.append(f"Fewer than {self.settings.fewest} test rows, too few to leave for: {listed(few)}.")
        if self.stable:
            parts.append("Nobody has a reason to leave: the coalition is stable.")
        else:
            parts.append(f"{listed(self.leavers)} would do better to leave: the coalition is not stable as it is.")
        return " ".join(p for p in parts if p)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Every client's gain and interval, those who would leave in another colour."""
        from coterie.training.plots import plot_participation

        return plot_participation(self.table, self.marks, self.metric, ax)


@dataclass(frozen=True, eq=False)
class Coalition:
    """What is left when leavers leave; `steps` are the audits, the first one of all clients."""

    steps: tuple[Participation, ...]

    @property
    def last(self) -> Participation:
        return self.steps[-1]

    @property
    def members(self) -> list[Hashable]:
        """Who is left; nobody when fewer than two would stay."""
        stay = [client for client in self.last.table.index if client not in self.last.leavers]
        return stay if len(stay) > 1 else []

    @property
    def stable(self) -> bool:
        """Whether at least two clients are left and none of them would leave."""
        return self.last.stable and len(self.last.table) > 1

    @property
    def history(self) -> pd.DataFrame:
        """A row a step: how many took part, their mean and worst gain, and who left after it."""
        rows = [
            {
                "clients": len(step.table),
                "mean_gain": step.table["gain"].mean(),
                "worst_gain": step.table["gain"].min(),
                "left": ", ".join(str(c) for c in step.leavers),
            }
            for step in self.steps
        ]
        return pd.DataFrame(rows).rename_axis("step")

    @property
    def results(self) -> tuple[Result, ...]:
        """The runs of the last step, one a seed."""
        return self.last.results

    def summary(self) -> str:
        """The first audit in plain words, and what happens when leavers leave."""
        return self.steps[0].explain() + ("" if self.steps[0].stable else f" {self.explain()}")

    def explain(self) -> str:
        """In plain words: who leaves when, and what is left."""
        everyone = len(self.steps[0].table)
        parts = []
        for number, step in enumerate(self.steps):
            if step.leavers:
                when = "First" if number == 0 else "Then, trained without them,"
                verb = "leaves" if len(step.leavers) == 1 else "leave"
                parts.append(f"{when} {listed(step.leavers)} {verb}.")
        if self.stable and len(self.steps) == 1:
            return f"All {everyone} clients stay: nobody has a reason to leave."
        if self.stable:
            mean = self.last.table["gain"].mean()
            parts.append(
                f"The {len(self.members)} clients that are left ({listed(self.members)}) stay: a stable coalition, with a "
                f"mean gain of {mean:+.3f} over training alone."
            )
        elif not self.members:
            parts.append("Fewer than two clients are left: the coalition falls apart, and everybody trains alone.")
        else:
            parts.append(f"No stable coalition was found within {len(self.steps) - 1} new runs; allow more max_rounds.")
        return " ".join(parts)


def audit(
    results: Result | Sequence[Result],
    *,
    level: float = 0.9,
    resamples: int = 2000,
    rule: Rule = "interval",
    fewest: int = FEWEST,
    seed: int = 0,
) -> Participation:
    """Compare what every client gets with what it would have alone.

    results: one run, or several of the same clients (one a seed). rule: a client leaves when the whole interval of its
    gain is below zero and it has at least `fewest` test rows ("interval"), or as soon as its gain is negative ("mean").
    """
    runs = tuple(results) if isinstance(results, Sequence) else (results,)
    if not runs:
        raise ConfigError("A participation audit needs at least one result; got none.")
    alone = tuple(_alone(run) for run in runs)
    return _audit(runs, alone, Settings(level, resamples, rule, fewest, seed))


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


def _audit(runs: tuple[Result, ...], alone: tuple[Result, ...], settings: Settings) -> Participation:
    live = runs[0].evaluation
    clients, metric, sign = runs[0].clients, live.task.metrics[0], live.task.sign
    if any(not run.clients.equals(clients) for run in runs):
        raise DataError("The audited runs must have the same clients in the same order. Split rows, not clients.")
    score, own = (np.stack(part) for part in zip(*(_scores(run, clients, settings) for run in runs), strict=True))
    base, other = (np.stack(part) for part in zip(*(_scores(run, clients, settings) for run in alone), strict=True))
    gains: Floats = sign * (score - base)
    draws = _over_runs(gains, sign * (own - other), _overlap(runs), settings.seed)
    table = pd.DataFrame(
        {"score": column_mean(score), "alone": column_mean(base), "gain": column_mean(gains)}, index=clients
    )
    tail = (1 - settings.level) / 2
    known = np.isfinite(draws).any(axis=1) & table["gain"].notna().to_numpy()
    ends = np.full((2, len(clients)), np.nan)
    if known.any():
        ends[:, known] = np.nanquantile(draws[known], [tail, 1 - tail], axis=1)
    table["low"], table["high"] = ends
    table["p_worse"] = column_mean(np.where(np.isnan(draws), np.nan, (draws < 0) + 0.5 * (draws == 0)).T)
    table["rows"] = np.min([run.federation.n_test for run in runs], axis=0)
    sure = _marks(table, settings) == LOSES
    table["leaves"] = sure if settings.rule == "interval" else table["gain"] < -ROUNDING
    return Participation(
        table.rename_axis("client"), metric, type(live.algorithm).__name__, settings, tuple(runs), tuple(alone)
    )


def _scores(run: Result, clients: pd.Index[Any], settings: Settings) -> tuple[Floats, Floats]:
    """A run's scores and its bootstrap draws, of these clients alone."""
    rows = run.clients.get_indexer(clients)
    draws = bootstrap_scores(run, settings.resamples, settings.seed)
    return run.scores().iloc[:, 0].to_numpy(np.float64)[rows], draws[rows]


def _overlap(runs: tuple[Result, ...]) -> Floats:
    """How many of a client's test rows two runs share beyond those that their draws already share: none when all runs
    have the same split, else the test rows' part of all rows, which is what two random splits share."""
    first, *others = (run.federation for run in runs)
    same = all(torch.equal(first.y, o.y) and torch.equal(first.x, o.x) for o in others)
    return np.zeros(len(first)) if same else np.asarray(first.n_test / first.n_samples, np.float64)


def _over_runs(gains: Floats, draws: Floats, overlap: Floats, seed: int) -> Floats:
    """Gains (S runs, clients) and their draws (S, clients, draws) → draws (clients, draws) of the mean gain.

    Test rows: the runs' deviations are averaged; where splits differ they were drawn independently, but share a part ρ of
    the rows, so the mean's variance is (1 + (S − 1) ρ) times that of independent ones. Training: runs are drawn with
    replacement (√(S/(S − 1)) because S runs vary less around their own mean)."""
    count = len(gains)
    rows = column_mean(draws - gains[..., None]) * np.sqrt(1 + (count - 1) * overlap)[:, None]
    centre = column_mean(gains)[:, None]
    if count == 1:
        return np.asarray(centre + rows)
    picks = np.random.default_rng(seed).integers(count, size=(count, draws.shape[2]))
    training = (column_mean(gains[picks]).T - centre) * np.sqrt(count / (count - 1))
    return np.asarray(centre + rows + training)


def _marks(table: pd.DataFrame, settings: Settings) -> pd.Series[Any]:
    marks = mark(table["gain"], table["low"], table["high"], table["rows"], settings.fewest, ROUNDING)
    return pd.Series(marks, index=table.index, name="mark")


def _named(table: pd.DataFrame, clients: pd.Index[Any], most: int = 6) -> str:
    """The clients with their gains, the largest first, and the verb."""
    gains = table.loc[clients, "gain"].sort_values(key=abs, ascending=False)
    names = listed([f"{client} ({gain:+.3f})" for client, gain in gains.items()], most)
    return f"{names} {'is' if len(clients) == 1 else 'are'}"
