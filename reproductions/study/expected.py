"""Is the expected gain of the deployed model what fresh rows show? The sentence "its expected error is 5 % less than alone
(interval …)" is measured on worlds in which alone is best, worst, or as good as anything.

The true gain is that of the same stack over the same models alone, on 100 fresh rows of every client."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from coterie.comparison.deploy.choice import Family, deployed
from coterie.comparison.exact.evaluation import evaluate
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.comparison.exact.predictor import learn_all
from reproductions.study.dependent import wilson
from reproductions.study.worlds import World, make

LEVEL = 0.95


def tasks(worlds: int, first_seed: int, only: str) -> list[tuple[str, Callable[[], Any]]]:
    R, C = "regression", "classification"
    truths = ("noise", "identical", "partial", "mixed", "unrelated")
    cells: list[tuple[World, Family]] = [(World(t, m, k), "linear") for t in truths for k in (R, C) for m in (6, 20)]
    cells += [
        (World("unrelated", 20, R, rows=(5, 2000)), "linear"),
        (World("unrelated", 8, R, rows=(60, 200)), "linear"),
    ]
    cells += [(World(t, 8, R), "auto") for t in ("noise", "partial", "unrelated")]
    seeds = range(first_seed, first_seed + worlds)
    named = [(f"{w.name} {f}", w, f) for w, f in cells if only in f"{w.name} {f}"]
    return [(f"{name}/{s}", partial(simulate_expected, w, f, s)) for s in seeds for name, w, f in named]


def simulate_expected(world: World, family: Family, seed: int) -> dict[str, float]:
    table, fresh = make(world, seed)
    kind, metric = ("regression", "mse") if table.classes is None else ("classification", "log_loss")
    found, predictors = evaluate(table, folds=10, seed=seed), learn_all(table, seed)
    taken = deployed(table, found, predictors, metric, family=family, level=LEVEL, seed=seed, newcomers=False)
    scored = np.isin(fresh.owner, found.scores[metric].scored)
    alone, stack = (
        float(METRICS[kind][metric](fresh, Predictions(outputs))[scored].mean())
        for outputs in (
            predictors["alone"].model.outputs(fresh.X, fresh.owner),
            taken.stack.outputs(fresh.X, fresh.owner),
        )
    )
    said = {"gain": taken.gain, "low": taken.interval[0], "high": taken.interval[1], "true": 1 - stack / alone}
    return {name: round(value, 4) for name, value in said.items()}


def tabulate_expected(records: dict[str, Any]) -> str:
    cells: dict[str, list[dict[str, float]]] = {}
    for key, record in records.items():
        cells.setdefault(key.rpartition("/")[0], []).append(record)
    lines = [f"{'world':42s} worlds   said   true  covered  claims  false claims"]
    for name, some in [*cells.items(), ("All", list(records.values()))]:
        said, true = (100 * float(np.mean([r[k] for r in some])) for k in ("gain", "true"))
        hit = sum(r["low"] <= r["true"] <= r["high"] for r in some)
        claims = sum(r["low"] > 0 or r["high"] < 0 for r in some)
        wrong = sum((r["low"] > 0 >= r["true"]) or (r["high"] < 0 <= r["true"]) for r in some)
        low, high = wilson(wrong, len(some))
        lines.append(
            f"{name:42s} {len(some):6d} {said:6.1f} {true:6.1f} {100 * hit / len(some):7.1f}  {claims:6d}  "
            f"{wrong} = {100 * wrong / len(some):.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"
        )
    return "\n".join(lines)
