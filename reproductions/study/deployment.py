"""What to deploy, on real tables: five outer folds inside clients, the same for coterie and for its peers.

coterie sees the training part only: it cross-validates, stacks and fits there. Peers: ridge with a column per client, a
mixed model with random slopes (lme4), boosted trees with and without the client (scikit-learn, LightGBM), GPBoost.
A peer whose package is missing is left out. Choices of the deployed model were made on the development tables alone; the
held-out ones were run once. Tables are cut to 1,000 rows, so that all of them take an hour or two."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.comparison.deploy.choice import Deploy, deployed
from coterie.comparison.exact.decision import from_evaluation
from coterie.comparison.exact.evaluation import evaluate
from coterie.comparison.exact.folds import deal
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.data.coded_table import Floats, Table
from reproductions.study.sources import HELD, MORE, SOURCES, Source, load

FOLDS, MOST_ROWS = 5, 1000
Peer = Callable[[Table, Table], Floats | None]
_SECONDS = 120  # for one mixed model
_MOST_SLOPES = 6  # with more columns a mixed model has intercepts only


def tasks(only: str, first_seed: int) -> list[tuple[str, Callable[[], Any]]]:
    halves = {"held-out": HELD, "development": (*SOURCES, *MORE)}
    named = [(f"{half}/{s.name}", s) for half, sources in halves.items() for s in sources]
    return [(name, partial(study, s, first_seed)) for name, s in named if only in name]


def study(source: Source, seed: int, ours: bool = True, theirs: bool = True) -> dict[str, Any]:
    """Losses of every contender on rows of outer folds, over rows and over clients. Peers see nothing of our code, so that
    their losses can be kept while ours are measured again."""
    table = load(source, MOST_ROWS)
    fold = deal(table.owner, table.n_clients, FOLDS, np.random.default_rng([seed, 31]))
    made: dict[str, Floats] = {}
    advice, weights, expected, seconds = [], [], [], 0.0
    for f in range(FOLDS):
        test = fold == f
        train, new = _rows(table, ~test), _rows(table, test)
        began = time.process_time()
        found: dict[str, Floats] = {}
        if ours:
            found, said, taken = coterie(train, new, seed)
            advice.append(said)
            weights.append(taken.weights.to_dict())
            expected.append([round(v, 4) for v in (taken.gain, *taken.interval)])
        seconds += time.process_time() - began
        for name, outputs in {**found, **(peers(train, new) if theirs else {})}.items():
            made.setdefault(name, np.full((len(table.y), max(table.n_classes, 1)), np.nan))[test] = outputs
    kind = "regression" if table.classes is None else "classification"
    loss = METRICS[kind]["mse" if table.classes is None else "log_loss"]
    rows = {name: loss(table, Predictions(outputs)) for name, outputs in made.items()}
    each = {n: np.bincount(table.owner, weights=v, minlength=table.n_clients) / table.sizes for n, v in rows.items()}
    made = {name: outputs for name, outputs in made.items() if np.isfinite(outputs).all()}  # there in every fold
    rows = {name: v for name, v in rows.items() if name in made}
    each = {name: v for name, v in each.items() if name in made}
    return {
        "clients": table.n_clients,
        "rows": len(table.y),
        "columns": table.X.shape[1],
        "classes": table.n_classes,
        "by_row": {name: round(float(v.mean()), 6) for name, v in rows.items()},
        "by_client": {name: round(float(v.mean()), 6) for name, v in each.items()},
        "advice": advice,
        "expected": expected,
        "weights": {k: round(float(v), 3) for k, v in pd.DataFrame(weights).fillna(0).mean().items()},
        "seconds": round(seconds, 1),
    }


def _rows(table: Table, keep: np.ndarray) -> Table:
    return replace(table, X=table.X[keep], y=table.y[keep], owner=table.owner[keep])


def coterie(train: Table, new: Table, seed: int) -> tuple[dict[str, Floats], list[str], Deploy]:
    """Predictions of the advised method, of every candidate and of the deployed stack; the advice; what is deployed."""
    metric = "mse" if train.classes is None else "log_loss"
    found = evaluate(train, folds=10, repeats=1, seed=seed)
    decision = from_evaluation(train, found, metric, level=0.95, folds=10, repeats=1, seed=seed)
    taken = deployed(train, found, decision.predictors, metric, seed=seed, newcomers=False)
    made = {name: part.outputs(new.X, new.owner) for name, part in taken.stack.parts.items()}
    made["advised"] = made[decision.recommendation]
    made["deployed"] = taken.stack.outputs(new.X, new.owner)
    return made, [decision.recommendation, decision.sure], taken


def peers(train: Table, new: Table) -> dict[str, Floats]:
    found = {}
    for name, peer in PEERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outputs: Floats | None = peer(train, new)
            except (ImportError, ValueError, RuntimeError, np.linalg.LinAlgError, subprocess.SubprocessError):
                outputs = None
        if outputs is not None and np.isfinite(outputs).all():
            found[f"peer {name}"] = outputs
    return found


def _with_id(table: Table) -> Floats:
    return np.column_stack([table.X, table.owner])


def _labels(model: Any, X: Any, q: int) -> Floats:
    """Probabilities of all classes, also of those that training did not hold."""
    chance = np.full((len(X), q), 1e-6)
    chance[:, model.classes_.astype(np.int64)] = model.predict_proba(X)
    return np.asarray(chance / chance.sum(1, keepdims=True))


def _ridge_dummies(train: Table, new: Table) -> Floats:
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV

    mean, sd = train.X.mean(0), np.where(train.X.std(0) > 0, train.X.std(0), 1)
    both = [np.hstack([(t.X - mean) / sd, np.eye(t.n_clients)[t.owner]]) for t in (train, new)]
    if train.classes is None:
        return np.asarray(RidgeCV(np.logspace(-3, 3, 13)).fit(both[0], train.y).predict(both[1]))[:, None]
    model = LogisticRegressionCV(
        Cs=[0.01, 0.1, 1.0, 10.0], cv=3, scoring="neg_log_loss", max_iter=300, use_legacy_attributes=False
    )
    return _labels(model.fit(both[0], train.y), both[1], train.n_classes)


def _hist(train: Table, new: Table, with_id: bool) -> Floats:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    a, b = (_with_id(t) if with_id else t.X for t in (train, new))
    category = [a.shape[1] - 1] if with_id and train.n_clients <= 255 else None
    if train.classes is None:
        model = HistGradientBoostingRegressor(categorical_features=category, random_state=0)
        return np.asarray(model.fit(a, train.y).predict(b))[:, None]
    chosen = HistGradientBoostingClassifier(categorical_features=category, random_state=0)
    return _labels(chosen.fit(a, train.y), b, train.n_classes)


def _light(train: Table, new: Table, with_id: bool) -> Floats:
    light = importlib.import_module("lightgbm")
    a, b = (pd.DataFrame(_with_id(t) if with_id else t.X) for t in (train, new))
    a.columns = b.columns = [f"c{j}" for j in range(a.shape[1])]
    category = [a.columns[-1]] if with_id else "auto"
    for frame in (a, b):
        if with_id:
            frame[a.columns[-1]] = frame[a.columns[-1]].astype(int)
    kind = light.LGBMRegressor if train.classes is None else light.LGBMClassifier
    model = kind(verbosity=-1, n_jobs=1, random_state=0).fit(a, train.y, categorical_feature=category)
    if train.classes is None:
        return np.asarray(model.predict(b))[:, None]
    return _labels(model, b, train.n_classes)


def _gpboost(train: Table, new: Table) -> Floats | None:
    """Trees with a random intercept per client; two classes by the Laplace approximation."""
    gp = importlib.import_module("gpboost")
    if train.n_classes > 2:
        return None
    likelihood = "gaussian" if train.classes is None else "bernoulli_logit"
    effects = gp.GPModel(group_data=train.owner, likelihood=likelihood)
    params = {"learning_rate": 0.05, "max_depth": 6, "min_data_in_leaf": 10, "verbose": 0, "num_threads": 1}
    model = gp.train(params=params, train_set=gp.Dataset(train.X, train.y), gp_model=effects, num_boost_round=100)
    told = model.predict(data=new.X, group_data_pred=new.owner, predict_var=False, pred_latent=False)
    mean = np.asarray(told["response_mean"])
    return mean[:, None] if train.classes is None else np.column_stack([1 - mean, mean])


_R = """
suppressMessages(library(lme4)); a <- read.csv("a.csv"); b <- read.csv("b.csv"); x <- setdiff(names(a), c("y", "client"))
right <- paste(x, collapse = " + "); slopes <- paste0("(1 + ", right, " || client)")
if (length(x) > 6) slopes <- "(1 | client)"
f <- as.formula(paste("y ~", right, "+", slopes))
m <- if (%s) glmer(f, a, family = binomial, nAGQ = 0) else lmer(f, a)
write.csv(predict(m, b, type = "response", allow.new.levels = TRUE), "p.csv", row.names = FALSE)
"""


def _lme4(train: Table, new: Table) -> Floats | None:
    """lme4 itself, or the same model (slopes independent of each other) as GPBoost fits it where R is missing."""
    if train.n_classes > 2:
        return None
    if shutil.which("Rscript") is None:
        return _mixed(train, new)
    mean, sd = train.X.mean(0), train.X.std(0)
    use = sd > 0
    with tempfile.TemporaryDirectory() as folder:
        for name, table in (("a", train), ("b", new)):
            X = (table.X[:, use] - mean[use]) / sd[use]
            frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
            frame.assign(y=table.y, client=[f"c{o}" for o in table.owner]).to_csv(f"{folder}/{name}.csv", index=False)
        script = _R % ("FALSE" if train.classes is None else "TRUE")
        subprocess.run(
            ["Rscript", "-e", script], cwd=folder, check=True, capture_output=True, timeout=_SECONDS, text=True
        )
        told = pd.read_csv(Path(folder) / "p.csv").to_numpy()[:, 0]
    return told[:, None] if train.classes is None else np.column_stack([1 - told, told])


def _mixed(train: Table, new: Table) -> Floats:
    gp = importlib.import_module("gpboost")
    mean, sd = train.X.mean(0), train.X.std(0)
    a, b = ((t.X[:, sd > 0] - mean[sd > 0]) / sd[sd > 0] for t in (train, new))
    slopes = a.shape[1] <= _MOST_SLOPES
    random = {"group_rand_coef_data": a, "ind_effect_group_rand_coef": [1] * a.shape[1]} if slopes else {}
    likelihood = "gaussian" if train.classes is None else "bernoulli_logit"
    model = gp.GPModel(group_data=train.owner, likelihood=likelihood, num_parallel_threads=1, **random)
    ones = [np.column_stack([np.ones(len(x)), x]) for x in (a, b)]
    model.fit(y=train.y, X=ones[0], params={"trace": False})
    seen = {"group_rand_coef_data_pred": b} if slopes else {}
    told = model.predict(group_data_pred=new.owner, X_pred=ones[1], predict_response=True, predict_var=False, **seen)
    found = np.asarray(told["mu"])
    return found[:, None] if train.classes is None else np.column_stack([1 - found, found])


PEERS: dict[str, Peer] = {
    "ridge with client columns": _ridge_dummies,
    "hist boosting": partial(_hist, with_id=False),
    "hist boosting with client": partial(_hist, with_id=True),
    "lightgbm": partial(_light, with_id=False),
    "lightgbm with client": partial(_light, with_id=True),
    "gpboost": _gpboost,
    "lme4 slopes": _lme4,
}
_WAYS = ("alone", "together", "shrunk", "groups")


def regrets(records: dict[str, Any], by: str = "by_row") -> pd.DataFrame:
    """Loss over the best of all contenders, minus one, per table."""
    rows = {}
    for name, record in records.items():
        loss = record[by]
        peer = {k: v for k, v in loss.items() if k.startswith("peer")}
        best_peer, best_way = min(peer.values()), min(loss[w] for w in _WAYS)
        best = min(best_peer, best_way, *(v for k, v in loss.items() if k not in ("advised", "deployed")))
        rows[name] = {
            "deployed": loss["deployed"] / best - 1,
            "advised": loss["advised"] / best - 1,
            "shrunk": loss["shrunk"] / best - 1,
            "best way": best_way / best - 1,
            "best peer": best_peer / best - 1,
            "against peers": loss["deployed"] / best_peer - 1,
            "against ways": loss["deployed"] / best_way - 1,
        }
    return pd.DataFrame(rows).T


def tabulate_deployment(records: dict[str, Any]) -> str:
    found = regrets(records)
    close = int((found["against peers"] <= 0.02).sum())
    mean = found[["deployed", "advised", "shrunk", "best way", "best peer"]].agg(["mean", "median"])
    return (
        f"{found.round(4).to_string()}\n\nRegret against the best of all contenders:\n{(100 * mean).round(2).to_string()}\n"
        f"Mean regret against the best way: {100 * found['against ways'].clip(lower=0).mean():.2f} %.\n"
        f"Within 2 % of the best peer: {close} of {len(found)} tables."
    )
