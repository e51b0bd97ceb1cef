"""The exact candidates of a table as a comparison: alone, together, shrunk and groups, in the units of the metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from coterie.comparison.deploy.choice import Deploy, Family, deployed
from coterie.comparison.deploy.coding import Coding
from coterie.comparison.deploy.fitted import model_of
from coterie.comparison.deploy.model import TableModel
from coterie.comparison.exact.decision import Decision, decide_table
from coterie.comparison.exact.families import of_kind
from coterie.comparison.exact.levels import Blocks
from coterie.comparison.exact.plan import Projection, narrowed, plan
from coterie.comparison.exact.units import LOWER_IS_BETTER, natural, other_metrics, unit
from coterie.comparison.result import EXACT, Comparison
from coterie.data.coded_table import Table
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
    federation: Federation,
    seeds: Sequence[int],
    metric: str | None,
    progress: Callable[[int, int], None] | None,
    family: Family = "auto",
) -> Comparison:
    """Every exact candidate, cross-validated inside the clients on all rows of the federation, and what to deploy."""
    blocks = Blocks.of(federation.preprocessing)
    table, projection, notes = narrowed(of_kind(federation.table(), federation.judged_as), blocks)
    how = plan(table, seeds)
    how["repeats"] = 1 if table.time is not None else how["repeats"]
    decision = decide_table(table, metric=metric, progress=progress, **how).doubted(_doubts(federation))
    names = pd.Index([str(c) for c in federation.clients], name="client")
    made = comparison_of(decision, about_data(federation, seeds), federation.describe().set_axis(names, axis=0))
    deploy = _deploy(decision, family)
    model = None if deploy is None else _model(federation, decision, deploy, projection)
    return replace(made, deploy=deploy, model=model, warnings=(*notes, *made.warnings))


def comparison_of(decision: Decision, data: dict[str, Any], overview: pd.DataFrame) -> Comparison:
    """The comparison that shows a decision about these data."""
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
        scores=_long(decision, decision.seed),
        curves=pd.DataFrame(),
        settings=_settings(decision),
        clusters=_groups(decision),
        overview=overview,
        about=_about(data, decision),
        decision=decision,
        warnings=decision.warnings,
        regrouped=_regrouped(decision),
    )


def _doubts(federation: Federation) -> list[str]:
    """Sentences on columns that look like a unit or a time."""
    found = {} if federation.notes is None else federation.notes.suspects
    return [
        f"{column!r} looks like the {role} of the rows, which were judged as if they were independent. Compare again with "
        f'{role}="{column}" (--{role} "{column}"), or with {role}="none" if it is not.'
        for role, column in found.items()
    ]


def _deploy(decision: Decision, family: Family) -> Deploy | None:
    """What to deploy; nothing where the target never changes."""
    found = decision.evaluation
    if found is None:
        return None
    assert isinstance(decision.table, Table)
    taken = deployed(
        decision.table,
        found,
        decision.predictors,
        decision.metric,
        family=family,
        level=decision.level,
        seed=decision.seed,
    )
    scale = unit(decision)

    def shown(loss: Any) -> Any:
        return loss * scale if decision.metric in LOWER_IS_BETTER else 1 - loss

    parts = {name: shown(getattr(taken, name)) for name in ("loss", "alone", "constant", "losses")}
    away = taken.new_clients
    if away is not None:
        parts["new_clients"] = replace(away, loss=shown(away.loss), constant=shown(away.constant))
    return replace(taken, **parts)


def _model(
    federation: Federation, decision: Decision, taken: Deploy, projection: Projection | None
) -> TableModel | None:
    """What to deploy, for rows of raw columns; None where every client scaled its own rows, and new rows cannot be."""
    labels, table = federation.labels, decision.table
    assert isinstance(table, Table)
    if labels.get("scaling") == "own":
        return None
    names = table.names if federation.columns is None else federation.columns
    if projection is not None and federation.columns is None:
        names = tuple(f"x{j}" for j in range(len(projection.mean)))
    dtype: Any = "float64" if str(federation.x.dtype).endswith("float64") else "float32"
    blocks = Blocks.of(federation.preprocessing) if table.levels else None
    coding = Coding(federation.preprocessing, tuple(names), dtype, projection, blocks)
    about = {
        "target": labels.get("target", "target"),
        "judged_as": federation.judged_as,
        "metric": decision.metric,
        "seed": decision.seed,
        "alike": "alike" in labels,
    }
    shrunk = decision.predictors["shrunk"].model
    return model_of(table, taken, shrunk, coding, labels.get("client", "client"), about)


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


def _about(data: dict[str, Any], decision: Decision) -> dict[str, Any]:
    return data | {
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
        "labels": dict(federation.labels),
        "columns": None if federation.columns is None else list(federation.columns),
        "seeds": [int(s) for s in seeds],
        "notes": None if federation.notes is None else federation.notes.to_json(),
    }
