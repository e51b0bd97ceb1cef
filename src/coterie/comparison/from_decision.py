"""The exact candidates of a table as a comparison: alone, together, shrunk and groups, in the units of the metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from coterie.comparison.exact.decision import Decision, decide_table
from coterie.comparison.exact.plan import narrowed, plan
from coterie.comparison.exact.units import LOWER_IS_BETTER, natural, other_metrics, unit
from coterie.comparison.result import EXACT, Comparison
from coterie.data.federation import Federation
from coterie.evidence.gains import intervals
from coterie.evidence.mean_gains import gain
from coterie.evidence.scores import METHODS

_MODEL = {
    "alone": "a ridge model per client, ten penalties averaged by their leave-one-out loss",
    "together": "one ridge model, the penalty with the lowest leave-one-out loss",
    "shrunk": "coefficients around a common mean, a prior variance each, by marginal likelihood",
    "groups": "a ridge model per group, by hard EM; the number of groups by inner folds",
}


def exact_comparison(
    federation: Federation, seeds: Sequence[int], metric: str | None, progress: Callable[[int, int], None] | None
) -> Comparison:
    """Every exact candidate, cross-validated inside the clients on all rows of the federation."""
    table, notes = narrowed(federation.table())
    how = plan(table, seeds)
    decision = decide_table(table, metric=metric, progress=progress, **how)
    names = list(EXACT)
    scores = natural(decision, decision.losses).loc[names]
    clients = decision.losses.columns
    marks = pd.DataFrame(
        {m: decision.mark(m) if decision.evaluation is not None else decision.marks for m in names}, index=clients
    ).T.rename_axis("method")
    alone = marks.T["alone"]
    marks.loc["alone"] = alone.where((alone == "no score").to_numpy(), "no clear change")
    errors, half_widths = _errors(decision)
    return Comparison(
        table=scores,
        gains=decision.gains.loc[names] * unit(decision),
        errors=errors,
        half_widths=half_widths,
        intervals=_intervals(decision),
        marks=marks,
        metric=decision.metric,
        scores=_long(decision, how["seed"]),
        curves=pd.DataFrame(),
        settings=_settings(decision),
        clusters=_groups(decision),
        overview=federation.describe().set_axis(pd.Index([str(c) for c in federation.clients], name="client"), axis=0),
        about=_about(federation, decision, seeds),
        decision=decision,
        warnings=(*notes, *decision.warnings),
        regrouped=_regrouped(decision),
    )


def _errors(decision: Decision) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Standard errors of single clients' gains, and half the widths of their intervals."""
    empty = pd.DataFrame(np.nan, index=pd.Index(EXACT, name="method"), columns=decision.losses.columns)
    errors, bounds = empty.copy(), empty.copy()
    if decision.evaluation is None:
        return errors, bounds
    for name in EXACT:
        single = gain(decision.scores, METHODS.index(name), METHODS.index("alone")).single(decision.scores)
        low, high = intervals(single, decision.level)
        alone = 0.0 if name == "alone" else unit(decision)
        errors.loc[name], bounds.loc[name] = alone * single.error, alone * (high - low) / 2
    return errors, bounds


def _intervals(decision: Decision) -> pd.DataFrame:
    """The bounds of every method's mean gain over alone."""
    if decision.evaluation is None:
        return pd.DataFrame(np.nan, index=pd.Index(EXACT), columns=["low", "high"])
    return decision.summary().loc[list(EXACT), ["low", "high"]] * unit(decision)


def _long(decision: Decision, seed: int) -> pd.DataFrame:
    found = other_metrics(decision)
    if not found:
        return pd.DataFrame({"method": [], "seed": [], "client": [], decision.metric: []})
    parts = {
        metric: frame.rename_axis("method").rename_axis("client", axis=1).stack() for metric, frame in found.items()
    }
    long = pd.concat(parts, axis=1).reset_index()
    long.insert(1, "seed", seed)
    return long


def _settings(decision: Decision) -> pd.DataFrame:
    rows = [{"method": m, "seed": decision.seed, "rounds": "exact", "algorithm": _MODEL[m]} for m in EXACT]
    return pd.DataFrame(rows)


def _groups(decision: Decision) -> pd.DataFrame:
    clients = decision.losses.columns
    found = {"alone": np.arange(len(clients)), "together": np.zeros(len(clients), int)}
    found["shrunk"] = np.arange(len(clients))
    found["groups"] = decision.groups.to_numpy() if decision.predictors else np.zeros(len(clients), int)
    return pd.DataFrame(found, index=clients).T.rename_axis("method")


def _regrouped(decision: Decision) -> dict[str, pd.DataFrame]:
    """The groups of every fit of the cross-validation; each leaves some rows out."""
    if decision.evaluation is None or not len(decision.evaluation.groupings):
        return {}
    return {"groups": pd.DataFrame(decision.evaluation.groupings, columns=decision.losses.columns).rename_axis("fit")}


def _about(federation: Federation, decision: Decision, seeds: Sequence[int]) -> dict[str, Any]:
    return about_data(federation, seeds) | {
        "metrics": list(decision.evaluation.scores) if decision.evaluation is not None else [decision.metric],
        "lower_is_better": decision.metric in LOWER_IS_BETTER,
        "folds": decision.folds,
        "repeats": decision.repeats,
        "level": decision.level,
        "new_split_each_seed": False,
        "model": "ridge, exact",
    }


def about_data(federation: Federation, seeds: Sequence[int]) -> dict[str, Any]:
    """The entries of a comparison that describe its data."""
    return {
        "kind": federation.kind,
        "classes": None if federation.classes is None else [str(c) for c in federation.classes],
        "clients": len(federation),
        "rows": len(federation.y),
        "features": federation.n_features,
        "columns": None if federation.columns is None else list(federation.columns),
        "seeds": [int(s) for s in seeds],
        "notes": None if federation.notes is None else federation.notes.to_json(),
    }
