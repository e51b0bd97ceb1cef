"""A table → a model to deploy, with or without a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadpoolctl import threadpool_limits

import coterie
from coterie.comparison.deploy.choice import Deploy, Family, deployed
from coterie.comparison.deploy.coding import Coding
from coterie.comparison.deploy.intervals import Intervals
from coterie.comparison.deploy.model import TableModel
from coterie.comparison.deploy.statistics import Statistics
from coterie.comparison.exact.evaluation import evaluate
from coterie.comparison.exact.fitting import Model
from coterie.comparison.exact.metrics import check_metric
from coterie.comparison.exact.predictor import learn_all
from coterie.data.client_names import client_text
from coterie.data.coded_table import Table
from coterie.data.table_targets import plain_value

_FOLDS = 10


def fitted(
    table: Table, coding: Coding, client: str, target: str, family: Family = "auto", seed: int = 0
) -> tuple[TableModel, Deploy]:
    """The model alone: nothing is claimed about collaboration, so the cross-validation runs once."""
    metric = check_metric(table.judged_as, None)
    with threadpool_limits(1, "blas"):
        found = evaluate(table, folds=_FOLDS, seed=seed)
        predictors = learn_all(table, seed)
        taken = deployed(table, found, predictors, metric, family=family, seed=seed)
    about = {"target": target, "metric": metric, "seed": seed}
    return model_of(table, taken, predictors["shrunk"].model, coding, client, about), taken


def model_of(
    table: Table, taken: Deploy, shrunk: Model, coding: Coding, client: str, about: Mapping[str, Any]
) -> TableModel:
    """What to deploy as a model for raw rows. ``shrunk`` is the fit whose sums `update` needs."""
    away, classes, judged = taken.new_clients, table.classes, table.rows(taken.judged)
    if classes is None:
        left_out = None if away is None else away.unseen[:, 0]
        bounds = Intervals.of_numbers(judged.y, taken.unseen[:, 0], judged.owner, table.n_clients, left_out)
    else:
        bounds = Intervals.of_classes(judged.y, taken.unseen, judged.owner, table.n_clients)
    told = {
        "kind": "regression" if classes is None else "classification",
        "loss": taken.loss,
        "constant": taken.constant,
        "rows": len(table.y),
        "made_of": taken.words(),
        "covariates": [] if away is None else list(away.covariates),
        "coterie": coterie.__version__,
    }
    return TableModel(
        taken.stack,
        coding,
        tuple(map(client_text, table.clients)),
        None if classes is None else tuple(plain_value(c) for c in classes),
        bounds,
        client,
        told | dict(about),
        Statistics.of(table, shrunk),
    )
