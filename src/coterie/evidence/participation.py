"""Who would stay? Every client's gain over training alone, the clients that would leave, and the groups that would hold.

A client's gain is the score of the model it gets minus the score it has alone, on the same test rows, in units of the
task's first metric and positive when taking part is better. Its interval is a paired t interval, corrected for looking
at many clients (`evidence/gains.py`).
A row that several runs test counts once; how much runs differ beyond their rows widens the interval
(`evidence/gains.py`). `training/coalition.py` trains what is compared.

`coalition()` looks for groups that hold: leavers leave one at a time, worst first, and groups that would be better off by
themselves are tried (`evidence/coalitions`). Statements about those who remain are judged on rows that did not choose them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from coterie.base.text import listed
from coterie.errors import ConfigError
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
    column_mean,
    correction,
    intervals,
    mark_intervals,
    worth_it,
)

Rule = Literal["interval", "mean"]


@dataclass(frozen=True)
class Settings:
    """How an audit judges: see `training.coalition.audit`."""

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
    results: tuple[Any, ...]  # of `fit`, one per seed
    alone: tuple[Any, ...]
    search: Callable[..., Coalition]
    worth: float = 0.0
    lower_is_better: bool = False

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
        return self.metric.replace("_", " ") + (" (how much lower it is)" if self.lower_is_better else "")

    def coalition(self, max_rounds: int | None = None, *, brings: bool = False, thorough: bool = False) -> Coalition:
        """Which groups would hold? This trains groups with the same algorithm, seeds and rounds; at most three
        groups per client. See `training/coalition.py`, which made `search`.

        max_rounds: how many may leave the group of all one at a time (None: a quarter of the clients, at least three).
        brings: also train each group without each of its members, to measure what a client brings to the others."""
        return self.search(self, max_rounds, brings=brings, thorough=thorough)

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

    def plot(self, ax: Any = None) -> Any:
        """Every client's gain and interval, those who would leave in another colour: below one another, or sorted along the
        axis when they are many."""
        import matplotlib.pyplot as plt

        shown = self.table.dropna(subset="gain").sort_values("gain")
        few = len(shown) <= 40
        size = (6.0, max(2.0, 0.3 * len(shown) + 1.0) if few else 3.6)
        ax = plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax
        sure = np.where(self.marks.loc[shown.index] == GAINS, "#2a7f62", "#8a8a8a")
        colours = np.where(shown["leaves"], "#b5443c", sure).tolist()
        place, label = np.arange(len(shown)), f"gain over training alone ({self.metric.replace('_', ' ')})"
        if few:
            ax.hlines(place, shown["low"], shown["high"], colors=colours, linewidth=2)
            ax.scatter(shown["gain"], place, c=colours, s=28, zorder=3)
            ax.set_yticks(place, [f"{c}, leaves" if gone else str(c) for c, gone in shown["leaves"].items()])
            ax.set(xlabel=label, ylim=(-0.6, len(shown) - 0.4))
            ax.axvline(0, color="black", linewidth=0.8)
        else:
            ax.vlines(place, shown["low"], shown["high"], colors=colours, linewidth=0.6, alpha=0.5)
            ax.scatter(place, shown["gain"], c=colours, s=4, zorder=3)
            ax.set(xlabel="clients, sorted by gain", ylabel=label.replace(" over training alone", ""))
            ax.axhline(0, color="black", linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
        return ax


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
    def results(self) -> tuple[Any, ...]:
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


def participation(
    score: Floats,
    base: Floats,
    gains: Gains,
    clients: pd.Index[Any],
    lower_is_better: bool,
    settings: Settings,
    **of: Any,
) -> Participation:
    """The audit of the scores (runs, clients) of some runs, given those of the same clients alone and the clients' gains.

    of: the runs, the metric, and the other fields of the answer."""
    each = (-1 if lower_is_better else 1) * (score - base)
    means = {"score": column_mean(score), "alone": column_mean(base), "gain": column_mean(each)}
    table = pd.DataFrame(means, index=clients)
    table["low"], table["high"] = intervals(gains, settings.level, settings.fewest)
    table["p_worse"] = chance_of_loss(gains)
    table["rows"] = gains.rows.astype(np.int64)
    worth = worth_it(lower_is_better, table["alone"])
    enough = table["rows"] >= settings.fewest
    sure = (_marks(table, settings) == LOSES) & (table["gain"] < -worth)
    table["leaves"] = sure if settings.rule == "interval" else (table["gain"] < -ROUNDING) & enough
    return Participation(
        table.rename_axis("client"), settings=settings, worth=worth, lower_is_better=lower_is_better, **of
    )


def _marks(table: pd.DataFrame, settings: Settings) -> pd.Series[Any]:
    found = mark_intervals(table["low"], table["high"], table["rows"], settings.fewest, ROUNDING)
    return pd.Series(found, index=table.index, name="mark")


def _named(table: pd.DataFrame, clients: pd.Index[Any], most: int = 6) -> str:
    """The clients with their gains, the largest first, and the verb."""
    gains = table.loc[clients, "gain"].sort_values(key=abs, ascending=False)
    names = listed([f"{client} ({gain:+.3f})" for client, gain in gains.items()], most)
    return f"{names} {'is' if len(clients) == 1 else 'are'}"
