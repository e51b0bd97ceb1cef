"""Alone, together, shrunk or in groups: the answer for a table, with its evidence."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from coterie.base.annotations import guarded
from coterie.base.arguments import CALLABLE, NONE, check_arguments
from coterie.comparison.exact.candidates.rows import Floats
from coterie.comparison.exact.continuum import Continuum, continuum
from coterie.comparison.exact.evaluation import FEWEST, Evaluation, Progress, default_repeats, measure
from coterie.comparison.exact.metrics import check_metric
from coterie.comparison.exact.predictor import Predictor, learn_all
from coterie.data.coded_table import Table, TableFacts, make_table
from coterie.errors import ConfigError, DataError
from coterie.evidence.gainers import Gainers, gainers
from coterie.evidence.gains import marks
from coterie.evidence.mean_gains import gain, interval
from coterie.evidence.rule import Verdict, decide_scores
from coterie.evidence.scores import METHODS, Scores


@dataclass(frozen=True)
class Decision:
    """The recommendation, how sure it is, and what every client gains.

    ``sure`` is "clear" (then the interval leaves zero out), "borderline" (a gain beyond chance by the rule, but the interval
    includes zero or other splits disagree), "leaning", or "nothing" where no method beats the overall average.

    ``losses`` and ``gains`` are methods × clients on rows that training did not see; gains are over alone, positive is
    better. ``interval`` bounds the mean gain of ``method`` over alone, as a share of alone's loss. ``method`` is the
    recommended one or, where that is alone, its best rival. Clients with fewer than four rows have no score.
    ``continuum`` compares the groups with those found among clients without groups; None where there is one group.
    ``doubts`` are sentences about columns that may be a unit or a time, on which nobody has decided."""

    table: Table | TableFacts = field(repr=False)
    metric: str
    recommendation: str
    sure: str
    method: str
    losses: pd.DataFrame = field(repr=False)
    gains: pd.DataFrame = field(repr=False)
    marks: pd.Series = field(repr=False)
    interval: tuple[float, float]
    level: float
    folds: int
    repeats: int
    seed: int
    verdict: Verdict | None = field(repr=False)
    evaluation: Evaluation | None = field(repr=False)
    predictors: dict[str, Predictor] = field(repr=False)
    warnings: tuple[str, ...] = ()
    continuum: Continuum | None = None
    doubts: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "regression" if self.table.classes is None else "classification"

    @property
    def groups(self) -> pd.Series:
        """The group of every client in the fit to all rows; 0 is the largest."""
        found = self.predictors["groups"].model.fit.of_client
        return pd.Series(found, index=self.table.clients, name="group")

    @property
    def scores(self) -> Scores:
        if self.evaluation is None:
            raise DataError("There are no scores: the target never changes.")
        return self.evaluation.scores[self.metric]

    def against_continuum(self) -> dict[str, Any] | None:
        """How the groups compare with clients that differ gradually, as plain values; None where there is one group."""
        found = self.continuum
        return None if found is None else {**vars(found), "exceeded": found.exceeded}

    def coefficients(self, method: str) -> pd.DataFrame:
        """Coefficients in the units of the table, clients × (intercept and columns), per class with several."""
        if method not in self.predictors:
            raise ConfigError(f"method is {method!r}; it must be one of {', '.join(self.predictors)}.")
        return self.predictors[method].coefficients()

    def summary(self) -> pd.DataFrame:
        """A row per method: mean loss over clients, mean gain over alone, its standard error and interval."""
        rows, scores = {}, self.scores
        loss = scores.losses().mean(1)
        for j, name in enumerate(METHODS):
            g = gain(scores, j, METHODS.index("alone"))
            low, high = (0.0, 0.0) if name == "alone" else interval(g, self.level)
            se = 0.0 if name == "alone" else g.gate_se()
            rows[name] = {"loss": loss[j], "gain": g.mean, "se": se, "low": low, "high": high}
        return pd.DataFrame(rows).T

    def mark(self, method: str) -> pd.Series:
        """ "gains", "loses", "no clear change" or "no score" for every client, under ``method`` rather than alone."""
        g = gain(self.scores, METHODS.index(method), METHODS.index("alone"))
        return pd.Series(marks(g.single(self.scores), self.level), index=self.table.clients, name=method)

    def gainers(self, method: str | None = None) -> Gainers | None:
        """The share of clients that gain under a method (by default `method`), and shrunken gains in the units of the loss;
        None for fewer than four clients with a score."""
        return None if self.evaluation is None else self._gainers[method or self.method]

    @cached_property
    def _gainers(self) -> dict[str, Gainers | None]:
        gains = {m: gain(self.scores, j, METHODS.index("alone")) for j, m in enumerate(METHODS)}
        return {m: gainers(g.single(self.scores), self.level, self.seed) for m, g in gains.items()}

    def times_needed(self) -> float:
        """How many times as many clients (of ten or more), or rows per client (of fewer), would settle an open question, if
        the gain and its spread stayed as measured; infinite for no gain."""
        best = None if self.verdict is None else self.verdict.over_alone[self.method]
        if best is None or self.verdict is None or best.mean <= 0:
            return float("inf")
        return float((self.verdict.needed * best.gate_se() / best.mean) ** 2)

    def doubted(self, doubts: Sequence[str]) -> "Decision":
        """The same decision, a leaning at most while there are doubts."""
        sure = "leaning" if doubts and self.sure in ("clear", "borderline") else self.sure
        return replace(self, sure=sure, doubts=tuple(doubts))

    def words(self) -> str:
        """The decision in plain sentences."""
        from coterie.comparison.exact.words import words

        return words(self)


def decide(
    X: Any,
    y: Any,
    clients: Any,
    *,
    kind: str = "regression",
    metric: str | None = None,
    folds: int = 10,
    repeats: int | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
    level: float = 0.95,
) -> Decision:
    """Should these clients learn alone, together, shrunk towards all, or in groups?

    Parameters
    ----------
    X, y, clients
        Numeric columns, the target, and the client of every row.
    kind
        "regression" or "classification" (any number of classes).
    metric
        "mse" or "r2"; "log_loss", "accuracy" or "auc". The first of its kind by default.
    folds, repeats
        Cross-validation inside every client; by default 3 repeats below 2000 rows, 2 below 20,000, else 1.
    progress
        Called with (fits done, fits in all)."""
    check_arguments(locals(), progress=CALLABLE | NONE)
    table = make_table(X, y, clients, kind, names)
    return decide_table(table, metric=metric, folds=folds, repeats=repeats, seed=seed, progress=progress, level=level)


@guarded
def decide_table(
    table: Table,
    *,
    metric: str | None = None,
    folds: int = 10,
    repeats: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    level: float = 0.95,
) -> Decision:
    """The same as `decide`, for a table already checked and coded."""
    if folds < 2:
        raise ConfigError(f"folds is {folds}; it must be at least 2.")
    if not 0.5 < level < 1:
        raise ConfigError(f"level is {level}; it must lie between 0.5 and 1.")
    if repeats is not None and repeats < 1:
        raise ConfigError(f"repeats is {repeats}; it must be at least 1.")
    metric = check_metric(table.judged_as, metric)
    repeats = repeats or default_repeats(len(table.y))
    refuse_unscored(int((table.sizes >= FEWEST).sum()), metric)
    if np.ptp(table.y) == 0:
        return _nothing(table, metric, level, folds, repeats, seed)
    with threadpool_limits(1, "blas"):  # thousands of small products: threads would only wait for one another
        found = measure(table, metric, folds=folds, repeats=repeats, seed=seed, progress=progress)
        return from_evaluation(table, found, metric, level=level, folds=folds, repeats=repeats, seed=seed)


@guarded
def from_evaluation(
    table: Table, found: Evaluation, metric: str, *, level: float, folds: int, repeats: int, seed: int
) -> Decision:
    """The decision from scores already measured, for example for another metric."""
    if metric not in found.scores:
        raise ConfigError(
            f"metric must be one that was measured, {', '.join(map(repr, found.scores))}; got {metric!r}."
        )
    refuse_unscored(len(found.scores[metric].scored), metric)
    predictors = learn_all(table, seed)
    verdict, beyond = against_continuum(table, found, metric, predictors, alpha=1 - level, seed=seed)
    return concluded(
        table, found, metric, predictors, verdict, beyond, level=level, folds=folds, repeats=repeats, seed=seed
    )


def concluded(
    table: Table | TableFacts, found: Evaluation, metric: str, predictors: dict[str, Predictor], verdict: Verdict,
    beyond: Continuum | None, *, level: float, folds: int, repeats: int, seed: int,
) -> Decision:  # fmt: skip
    """The decision from the rule's answer."""
    scores = found.scores[metric]
    method, (low, high) = verdict.method, verdict.share
    losses = _frame(scores, scores.losses(), table)
    notes = {note for p in predictors.values() for note in p.model.fit.notes} | set(found.notes)
    marked = marks(verdict.over_alone[method].single(scores), level)
    return Decision(
        table=table,
        metric=metric,
        recommendation=verdict.recommendation,
        sure=verdict.shown,
        method=method,
        losses=losses,
        gains=losses.loc["alone"] - losses,
        marks=pd.Series(marked, index=table.clients, name=method),
        interval=(low, min(high, 1.0)),  # no error falls by more than all of it
        level=level,
        folds=folds,
        repeats=repeats,
        seed=seed,
        verdict=verdict,
        evaluation=found,
        predictors=predictors,
        warnings=tuple(sorted(notes)) + _warnings(table, scores, verdict),
        continuum=beyond,
    )


def against_continuum(
    table: Table, found: Evaluation, metric: str, predictors: dict[str, Predictor], *, alpha: float, seed: int
) -> tuple[Verdict, Continuum | None]:
    """The rule's answer, in which groups count only where they explain more than among clients without groups."""
    beyond = continuum(table, len(np.unique(predictors["groups"].model.fit.of_client)), seed)
    gradient = beyond is None or not beyond.exceeded
    return decide_scores(found.scores[metric], alpha, seed, found.proper(metric), gradient), beyond


def refuse_unscored(count: int, metric: str) -> None:
    if count < 2:
        both = " of both classes" if metric == "auc" else ""
        raise DataError(
            f"At least 2 clients must have {FEWEST} rows{both} to be scored by {metric}; {count or 'none'} can be. "
            "Merge small clients, or give them more rows."
        )


def _frame(scores: Scores, values: Floats, table: Table | TableFacts) -> pd.DataFrame:
    full = np.full((len(METHODS), table.n_clients), np.nan)
    full[:, scores.scored] = values
    return pd.DataFrame(full, index=pd.Index(METHODS, name="method"), columns=table.clients)


def _warnings(table: Table | TableFacts, scores: Scores, verdict: Verdict) -> tuple[str, ...]:
    found = []
    best, loss = verdict.over_alone[verdict.method], scores.mean_rows()[METHODS.index(verdict.method)]
    if loss.size and scores.metric in ("mse", "r2", "log_loss") and np.nanmax(loss) > 0.25 * np.nansum(loss):
        found.append(f"Row {int(np.nanargmax(loss))} alone makes up more than a quarter of the loss; look at it first.")
    if best.mean * best.row_mean < 0 and abs(best.row_mean) > best.gate_se():
        found.append("Counted by rows instead of clients, the gain changes its sign: large and small clients differ.")
    missing = table.n_clients - len(scores.scored)
    if missing:
        found.append(f"{missing} of {table.n_clients} clients have too few rows or only one class, and have no score.")
    return tuple(found)


def _nothing(table: Table, metric: str, level: float, folds: int, repeats: int, seed: int) -> Decision:
    """The decision where the target never changes, so that there is nothing to learn or compare."""
    empty = pd.DataFrame(np.nan, index=pd.Index(METHODS, name="method"), columns=table.clients)
    return Decision(
        table=table,
        metric=metric,
        recommendation="alone",
        sure="nothing",
        method="together",
        losses=empty,
        gains=empty,
        marks=pd.Series("no score", index=table.clients, name="together"),
        interval=(0.0, 0.0),
        level=level,
        folds=folds,
        repeats=repeats,
        seed=seed,
        verdict=None,
        evaluation=None,
        predictors={},
        warnings=("The target never changes, so there is nothing to learn.",),
    )
