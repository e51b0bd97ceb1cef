"""The decision from what clients have told, and the comparison that shows it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from coterie.base.text import listed
from coterie.comparison.exact.candidates import Fit
from coterie.comparison.exact.continuum import continuum_of_sums
from coterie.comparison.exact.decision import Decision, concluded, refuse_unscored
from coterie.comparison.exact.evaluation import Evaluation
from coterie.comparison.exact.fitting import Model, Scaling
from coterie.comparison.exact.metrics import check_metric
from coterie.comparison.exact.predictor import Predictor
from coterie.comparison.from_decision import comparison_of
from coterie.comparison.result import Comparison
from coterie.comparison.sites.conduct import Found, conduct
from coterie.comparison.sites.study import Study
from coterie.data.coded_table import TableFacts
from coterie.data.federation import Federation
from coterie.engines.base import Engine, Env, answered, rows_env
from coterie.errors import DataError
from coterie.evidence.gains import LEVEL
from coterie.evidence.rule import decide_scores
from coterie.exchange.messages import Ask, Reply

MOST_COLUMNS = 200
USUAL = 20  # exchanges
STOPPED = "A model stopped before it converged."


def study_of(federation: Federation, metric: str | None, seed: int, least: int | None) -> Study:
    """The study of such clients; what it cannot judge is refused."""
    if federation.kind not in ("regression", "classification") or federation.n_outputs > 2 or federation.x.dim() > 2:
        raise DataError(
            "Across sites, tables with a number or two classes to predict are compared; this target is another. Pool the "
            "rows, or choose another target."
        )
    if federation.n_features > MOST_COLUMNS:
        raise DataError(
            f"Across sites, at most {MOST_COLUMNS} columns are compared; there are {federation.n_features}. Name fewer."
        )
    return Study(federation.kind == "classification", check_metric(federation.kind, metric), seed, least)


def all_rows(federation: Federation) -> Federation:
    """The same clients, sorted by name, with all their rows to be asked about."""
    order = sorted(federation.clients, key=str)
    by_name = federation if order == list(federation.clients) else federation.subset(order)
    names, none = pd.Index([str(c) for c in order], name=federation.clients.name), np.zeros(0, np.int64)
    return replace(by_name, n_train=by_name.n_samples, n_valid=0 * by_name.n_valid, clients=names, keys=none)


def across_sites(
    federation: Federation, seeds: Sequence[int], metric: str | None, least: int | None, engine: Engine,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:  # fmt: skip
    """The comparison of clients that answer with sums only; here an engine asks all of them."""
    fed = all_rows(federation)
    study = study_of(fed, metric, int(seeds[0]), least)

    def run(ask: Ask, env: Env) -> Reply:
        if progress is not None:
            progress(min(env.ask, USUAL), USUAL + 1)
        return engine.run(ask, env)

    with threadpool_limits(1, "blas"):
        found = answered(conduct(study, len(fed), len(seeds)), run, rows_env(fed, study.seed))
    return shown(found, study, fed, seeds)


def decision_of(
    found: Found, study: Study, clients: Sequence[Hashable], columns: Sequence[str], classes: Sequence[Any] | None,
    level: float = LEVEL,
) -> Decision:  # fmt: skip
    """The decision, in which clients that told nothing are named."""
    index = pd.Index([str(clients[i]) for i in found.clients], name="client")
    facts = TableFacts(
        found.rows.astype(np.int64), index, tuple(columns), None if classes is None else pd.Index(classes),
        found.variance, found.sums[:, :-1] / found.rows[:, None], found.shape.centre[:-1], found.moments,
    )  # fmt: skip
    refuse_unscored(len(found.scores[study.metric].scored), study.metric)
    fit, predictors = found.final, {}
    for name in ("constant", "together", "shrunk", "groups"):
        coef = np.atleast_2d(getattr(fit, name))[..., None]
        of_client = np.arange(len(index)) if len(coef) > 1 else np.zeros(len(index), np.int64)
        spread = fit.spread[:, None] if name == "shrunk" and fit.spread is not None else None
        if name == "groups":
            _, first = np.unique(fit.group, return_index=True)
            coef, of_client = coef[first], fit.group
        made = Fit(coef, of_client, coef.mean(0) if name == "shrunk" else coef[0], study.classification, spread)
        predictors[name] = Predictor(name, Model(scaling_of(found), made), facts.names, facts.clients, facts.classes)
    assert fit.forms is not None
    A, c, squares = fit.forms
    groups = len(np.unique(fit.group))
    beyond = continuum_of_sums(
        A, c, None if study.classification else squares, groups, study.seed, int(found.rows.sum())
    )
    gradient = beyond is None or not beyond.exceeded
    notes = () if found.settled else (STOPPED,)
    judged = Evaluation(dict(found.scores), notes, found.groupings)
    verdict = decide_scores(judged.scores[study.metric], 1 - level, study.seed, judged.proper(study.metric), gradient)
    decision = concluded(
        facts, judged, study.metric, predictors, verdict, beyond,
        level=level, folds=found.shape.folds, repeats=found.shape.repeats, seed=study.seed,
    )  # fmt: skip
    return replace(decision, warnings=(*decision.warnings, *left_out(found, study, clients, len(columns))))


def scaling_of(found: Found) -> Scaling:
    """From columns as they are to the standardised ones of the fit to all rows."""
    L, centre = found.units.L, found.shape.centre
    inverse = np.diag(L)[1:]
    mean = np.where(inverse > 0, -L[1:, 0] / np.where(inverse > 0, inverse, 1.0), 0.0) + centre
    if found.final.spread is not None:
        return Scaling(mean[:-1], inverse[:-1], np.zeros(1), np.ones(1))
    return Scaling(mean[:-1], inverse[:-1], mean[-1:], 1 / np.where(inverse[-1:] > 0, inverse[-1:], 1.0))


def left_out(found: Found, study: Study, clients: Sequence[Hashable], columns: int) -> list[str]:
    """Sentences that name the clients that told nothing."""
    said = []
    fewer = found.cells < found.shape.folds
    if fewer.any():
        said.append(
            f"{int(fewer.sum())} of {len(fewer)} clients have fewer folds ({found.cells.min()} or more), because no sum is "
            f"of fewer than {study.fewest(columns)} rows; their models saw fewer rows, and alone looks worse than it is."
        )
    if len(found.few):
        named = listed([str(clients[i]) for i in found.few], 10)
        said.append(f"Left out for fewer than {study.fewest(columns)} rows, of which no sums are told: {named}.")
    if len(found.gone):
        said.append(f"Left out because they did not answer: {listed([str(clients[i]) for i in found.gone], 10)}.")
    return said


def shown(found: Found, study: Study, federation: Federation, seeds: Sequence[int]) -> Comparison:
    """The comparison; of the clients it shows what they have told."""
    classes, columns = federation.classes, federation.columns
    columns = columns or tuple(f"x{j}" for j in range(federation.n_features))
    decision = decision_of(found, study, list(federation.clients), columns, classes)
    about = {
        "kind": federation.kind, "classes": None if classes is None else [str(c) for c in classes],
        "clients": len(found.clients), "rows": int(found.rows.sum()), "features": len(columns),
        "columns": list(columns), "seeds": [int(s) for s in seeds], "notes": None, "across": "sites",
        "least": study.fewest(len(columns)),
    }  # fmt: skip
    overview = pd.DataFrame({"samples": found.rows.astype(np.int64)}, index=decision.table.clients)
    share = found.sums[:, -1] / found.rows
    overview["mean target" if classes is None else f"share of {classes[1]}"] = share
    return comparison_of(decision, about, overview)
