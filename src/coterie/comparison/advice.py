"""Does collaboration pay? `decide` answers for tables and federations; `estimation.advice` for means, rates and counts.

`ct.advise` and `ct.compare` use the same estimates, so they cannot contradict one another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from coterie.annotations import guarded
from coterie.arguments import CALLABLE, FEDERATION, NONE, check_arguments
from coterie.comparison.exact.decision import Decision, decide_table
from coterie.comparison.exact.evaluation import Progress
from coterie.comparison.exact.plan import default_seeds, narrowed, plan
from coterie.comparison.exact.units import unit
from coterie.data.coded_table import Table, make_table
from coterie.errors import DataError
from coterie.estimation import advice as estimates
from coterie.estimation.advice import Advice, refuse_other_than_one
from coterie.estimation.checks import Samples, choice, confidence
from coterie.estimation.regression.grouped import known_labels
from coterie.evidence.mean_gains import gain, interval
from coterie.evidence.scores import METHODS, Scores

ALIASES = {"alone": "local", "together": "global", "shrunk": "shrunk", "groups": "clustered"}
FAMILIES = ("auto", "linear", "logistic", "classes")
MEASURES = {
    "mse": "squared error",
    "r2": "1 − r²",
    "log_loss": "log loss",
    "accuracy": "share of wrong classes",
    "auc": "1 − area under the curve",
}


@dataclass(frozen=True)
class TableAdvice(Advice):
    """The advice for a table. `recommendation` uses the words of all advice: local, global, shrunk, clustered; `way` is the
    same in the words of `decide` and `compare`: alone, together, shrunk, groups. `decision` holds the evidence."""

    decision: Decision = field(repr=False, kw_only=True)

    @property
    def way(self) -> str:
        return self.decision.recommendation

    @property
    def sure(self) -> str:
        """ "clear", "borderline", "leaning", or "nothing" where no method beats the overall average."""
        return self.decision.sure

    def explain(self) -> str:
        """The advice in plain words."""
        lines = [
            f"Recommended for these {self.clients} clients: {self.recommendation} ({estimates.WORDS[self.recommendation]}).",
            self.decision.words(),
            *self.decision.warnings,
        ]
        return "\n".join(lines)


@guarded
def advise(
    federation: Any = None,
    *,
    samples: Samples | None = None,
    successes: ArrayLike | None = None,
    trials: ArrayLike | None = None,
    counts: Any = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    family: str = "auto",
    metric: str | None = None,
    clusters: int | tuple[int, ...] = (2, 3, 4),
    level: float = 0.9,
    resamples: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> Advice:
    """Predict the risk of local, global, shrunk and clustered estimation, and recommend one.

    Give exactly one kind of data:

    - `samples`: a list of (n_i, d) arrays, or (m, n, d): means, by Stein's unbiased risk estimate.
    - `successes` and `trials`: rates, by unbiased estimates with the client left out.
    - `counts`: a (users, tokens) table, dense or sparse, or a frame or file of (user, token, count) rows: histograms
      in squared distance, likewise.
    - `X`, `y`, `groups`: a table, by `decide`: cross-validation inside every client; the risk is the loss on a new row.
      `family` is "linear" for numbers, "logistic" or "classes" for labels, or "auto": two values and text are labels.
      `metric` is the measure of the comparison (mse, r2; log_loss, accuracy, auc).
    - a `Federation`: the same on all of its rows; images are replaced by their leading principal components.

    `clusters` (the numbers tried) and `resamples` are used for means, rates and counts only; a table tries up to six.
    `level` is the level of the intervals shown; the recommendation does not depend on it."""
    check_arguments(locals(), federation=FEDERATION | NONE, progress=CALLABLE | NONE)
    refuse_other_than_one([federation], [samples], [successes, trials], [counts], [X, y, groups])
    confidence(level)
    if federation is None and X is None and y is None and groups is None:
        return estimates.advise(
            samples=samples, successes=successes, trials=trials, counts=counts,
            clusters=clusters, level=level, resamples=resamples, seed=seed,
        )  # fmt: skip
    table, notes = narrowed(_table(X, y, groups, family) if federation is None else federation.table())
    decision = decide_table(table, metric=metric, progress=progress, **plan(table, default_seeds(seed)))
    return advice_of(decision, level, notes)


def _table(X: Any, y: Any, groups: Any, family: str) -> Table:
    if X is None or y is None or groups is None:
        raise DataError("advise needs X, y and groups together; got only some of them. Pass all three.")
    choice("family", family, FAMILIES)
    target = np.asarray(y)
    if family != "linear":
        target = known_labels(target)
        values = np.unique(target)
        text = target.dtype.kind not in "biuf"
        if family == "logistic" and len(values) != 2:
            raise DataError(
                f"A logistic family needs exactly two labels in y; got {len(values)}. Use family='classes' for more."
            )
        labels = family != "auto" or len(values) == 2 or text
        kind = "classification" if labels else "regression"
    else:
        kind = "regression"
    return make_table(X, target, groups, kind, None)


def advice_of(decision: Decision, level: float, notes: tuple[str, ...] = ()) -> TableAdvice:
    """A decision as advice: the risk of every method with its interval, from best to worst."""
    measure = f"{MEASURES[decision.metric]} on a new row"
    chosen = ALIASES[decision.recommendation]
    if decision.evaluation is None:
        table = pd.DataFrame({"method": list(ALIASES.values()), **dict.fromkeys(_COLUMNS, np.nan)})
        return TableAdvice(table, chosen, (), {}, measure, decision.table.n_clients, level, 1, decision=decision)
    rows = [_row(decision, name, level) for name in ALIASES]
    table = pd.DataFrame(rows).sort_values("risk", ignore_index=True, kind="stable")
    found = len(np.unique(decision.groups))
    tied = tuple(ALIASES[name] for name in ALIASES if name != decision.recommendation and _near(decision, name, level))
    return TableAdvice(
        table, chosen, tied, {}, measure, decision.table.n_clients, level, found, decision=_noted(decision, notes)
    )


_COLUMNS = ("risk", "low", "high", "gain", "gain_low", "gain_high")


def _noted(decision: Decision, notes: tuple[str, ...]) -> Decision:
    return Decision(**{**decision.__dict__, "warnings": (*notes, *decision.warnings)}) if notes else decision


def _row(decision: Decision, name: str, level: float) -> dict[str, Any]:
    scores, scale = decision.scores, unit(decision)
    risk = gain(_against_nothing(scores, METHODS.index(name)), 0, 1)
    over = gain(scores, METHODS.index(name), METHODS.index("alone"))
    alone = scores.alone()
    low, high = interval(risk, level)
    gain_low, gain_high = (0.0, 0.0) if name == "alone" else interval(over, level)
    return {
        "method": ALIASES[name],
        "risk": scale * risk.mean,
        "low": scale * max(low, 0.0),
        "high": scale * high,
        "gain": over.mean / alone,
        "gain_low": gain_low / alone,
        "gain_high": min(gain_high / alone, 1.0),
    }


def _against_nothing(scores: Scores, method: int) -> Scores:
    """Scores of two methods, one of which has zero loss, so that the loss of the other is a gain with an interval."""
    own = scores.rows[:, [method]]
    rows = np.concatenate([np.zeros_like(own), own], axis=1)
    return Scores(scores.metric, rows, scores.fold, scores.n_folds, scores.owner, scores.scored, scores.n_clients)


def _near(decision: Decision, name: str, level: float) -> bool:
    """Whether a method's lag behind the recommended one could be chance, or is below one per cent of alone's loss."""
    scores = decision.scores
    lag = gain(scores, METHODS.index(decision.recommendation), METHODS.index(name))
    alone = float(scores.losses()[METHODS.index("alone")].mean())
    return bool(interval(lag, level)[0] <= 0 or lag.mean <= 0.01 * alone)


__all__ = ["ALIASES", "TableAdvice", "advice_of", "advise"]
