"""Real tables: the advice, the losses against reference packages, and promised against realised gains."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from coterie.comparison.exact.decision import from_evaluation
from coterie.comparison.exact.evaluation import default_repeats, evaluate
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.comparison.exact.predictor import learn_all
from coterie.data.coded_table import Table, make_table
from coterie.evidence.scores import METHODS
from reproductions.study.references import compare
from reproductions.study.sources import SOURCES, Source, load

FOLDS = 5


def tasks(only: str) -> list[tuple[str, Callable[[], Any]]]:
    return [(source.name, partial(study, source)) for source in SOURCES if only in source.name]


def study(source: Source) -> dict[str, Any]:
    """One table: the decision with its time, the reference losses, and three halvings."""
    table = load(source)
    metric = "mse" if table.classes is None else "log_loss"
    began = time.process_time()
    repeats = default_repeats(len(table.y))
    decision = from_evaluation(
        table,
        evaluate(table, folds=FOLDS, repeats=repeats),
        metric,
        level=0.95,
        folds=FOLDS,
        repeats=repeats,
        seed=0,
    )
    seconds = time.process_time() - began
    return {
        "clients": table.n_clients,
        "rows": len(table.y),
        "columns": table.X.shape[1],
        "classes": table.n_classes,
        "losses": {name: round(float(v), 5) for name, v in decision.summary()["loss"].items()},
        "advice": decision.recommendation,
        "sure": decision.sure,
        "interval": [round(v, 4) for v in decision.interval],
        "groups": int(decision.groups.nunique()),
        "seconds": round(seconds, 1),
        "reference": compare(table, decision.scores, metric),
        "halves": [halve(table, metric, seed) for seed in range(3)],
        "words": decision.words(),
        "warnings": list(decision.warnings),
    }


def halve(table: Table, metric: str, seed: int) -> dict[str, Any]:
    """Decide on one half of every client's rows; measure the gain of the models of that half on the other."""
    rng = np.random.default_rng([seed, 5])
    order = np.lexsort((rng.random(len(table.y)), table.owner))
    first = np.zeros(len(table.y), bool)
    first[order[::2]] = True
    kind = "regression" if table.classes is None else "classification"
    sizes = np.minimum(*(np.bincount(table.owner[h], minlength=table.n_clients) for h in (first, ~first)))
    use = (sizes >= 4)[table.owner]
    labels = table.y if table.classes is None else table.classes.to_numpy()[table.y.astype(np.int64)]
    if use.sum() < 20 or len(np.unique(table.owner[use])) < 2:
        return {}
    known = (
        np.isin(table.y, np.unique(table.y[first & use])) if table.classes is not None else np.ones(len(table.y), bool)
    )
    half, rest = (
        make_table(table.X[k], labels[k], table.owner[k], kind, None) for k in (first & use, ~first & use & known)
    )
    if half.n_clients != rest.n_clients or half.n_classes != rest.n_classes:
        return {}
    found = from_evaluation(half, evaluate(half, folds=FOLDS), metric, level=0.95, folds=FOLDS, repeats=1, seed=seed)
    models = learn_all(half, seed)
    loss = METRICS[kind][metric]
    rows = {}
    for name in ("alone", found.method):
        outputs = models[name].model.outputs(rest.X, rest.owner)
        rows[name] = loss(rest, Predictions(outputs)) * (rest.y.var() / half.y.var() if kind == "regression" else 1)
    difference = rows["alone"] - rows[found.method]
    each = np.bincount(rest.owner, weights=difference) / rest.sizes
    spread = np.bincount(rest.owner, weights=(difference - each[rest.owner]) ** 2) / np.maximum(rest.sizes - 1, 1)
    alone = float(np.nanmean(found.losses.loc["alone"].to_numpy()))
    error = float(np.sqrt((spread / rest.sizes).sum()) / len(each))
    return {
        "advice": found.recommendation,
        "sure": found.sure,
        "method": found.method,
        "gain": round(float(np.nanmean(found.gains.loc[found.method].to_numpy())), 5),
        "low": round(found.interval[0] * alone, 5),
        "high": round(found.interval[1] * alone, 5),
        "real": round(float(each.mean()), 5),
        "real_se": round(error, 6),
    }


def half_covered(half: dict[str, Any]) -> bool:
    """Whether promise and realised gain agree, given that the realised one has an error of its own."""
    side = half["gain"] - half["low"] if half["real"] < half["gain"] else half["high"] - half["gain"]
    return bool(abs(half["real"] - half["gain"]) <= np.hypot(side, 1.96 * half["real_se"]))


def tabulate_tables(records: dict[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        row = {"table": name, "m": record["clients"], "N": record["rows"], "d": record["columns"]}
        row |= {way: round(record["losses"][way], 4) for way in METHODS}
        row |= {"advice": record["advice"], "sure": record["sure"], "s": record["seconds"]}
        for way in ("alone", "together", "shrunk"):
            found = record["reference"].get(way)
            row[f"ref {way}"] = f"{found['ours']:.4f}/{found['theirs']:.4f}" if found else ""
        halves = [h for h in record["halves"] if h]
        row["covered"] = f"{sum(map(half_covered, halves))}/{len(halves)}"
        rows.append(row)
    close = [f["ours"] <= f["theirs"] + f["se_loss"] for r in records.values() for f in r["reference"].values()]
    covered = [half_covered(h) for r in records.values() for h in r["halves"] if h]
    last = f"\nNot worse than the reference by more than one standard error: {sum(close)} of {len(close)}."
    last += f"\nRealised gain of a fresh half within the interval: {sum(covered)} of {len(covered)}."
    return pd.DataFrame(rows).to_string(index=False) + last
