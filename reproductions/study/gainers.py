"""Does the interval of the share of clients that gain hold the true share? Regressions have exact true gains."""

from typing import Any

import numpy as np

from coterie.comparison.exact.evaluation import measure
from coterie.comparison.exact.predictor import learn_all
from coterie.evidence.gainers import gainers
from coterie.evidence.mean_gains import gain
from coterie.evidence.scores import METHODS
from reproductions.study.dependent import wilson
from reproductions.study.worlds import World, coefficients, make


def gainer_worlds() -> list[World]:
    R = "regression"
    found = [World("partial", m, R, tau=tau) for m in (6, 20, 60) for tau in (0.2, 0.4, 0.8)]
    return [*found, World("identical", 20, R), World("mixed", 20, R), World("unrelated", 20, R)]


def simulate_gainers(world: World, seed: int) -> dict[str, Any]:
    """The estimated share that gains with `shrunk`, `together` and `groups`, and the true one."""
    table, _ = make(world, seed)
    truth = coefficients(world, np.random.default_rng([seed, 77]))[..., 0]
    found, predictors = measure(table, "mse", seed=seed), learn_all(table, seed)
    excess = {n: ((p.coefficients().to_numpy() - truth) ** 2).sum(1) for n, p in predictors.items()}
    record = {}
    for name in METHODS[2:]:
        scores = found.scores["mse"]
        made = gainers(gain(scores, METHODS.index(name), METHODS.index("alone")).single(scores), seed=seed)
        assert made is not None
        real = (excess["alone"] - excess[name]) / max(float(table.y.var()), 1e-300)
        plain = gain(scores, METHODS.index(name), METHODS.index("alone")).clients
        record[name] = {
            "share": round(made.share, 3),
            "low": round(made.low, 3),
            "high": round(made.high, 3),
            "true": round(float((real[scores.scored] > 0).mean()), 3),
            "error": float(f"{((made.gains[scores.scored] - real[scores.scored]) ** 2).mean():.4g}"),
            "error plain": float(f"{((plain - real[scores.scored]) ** 2).mean():.4g}"),
        }
    return record


def tabulate_gainers(records: dict[str, Any]) -> str:
    lines = [
        f"{'world':34s} {'method':9s} worlds  covered        true  said  width  error of gains: shrunken / measured"
    ]
    cells: dict[tuple[str, str], list[dict[str, float]]] = {}
    for key, record in records.items():
        for name, one in record.items():
            cells.setdefault((key.split("/")[0], name), []).append(one)
    total = [0, 0]
    for (world, name), some in cells.items():
        hit = sum(r["low"] <= r["true"] <= r["high"] for r in some)
        total = [total[0] + hit, total[1] + len(some)]
        true, said, width, error, plain = (
            float(np.mean(v))
            for v in (
                [r["true"] for r in some],
                [r["share"] for r in some],
                [r["high"] - r["low"] for r in some],
                [r["error"] for r in some],
                [r["error plain"] for r in some],
            )
        )
        lines.append(
            f"{world:34s} {name:9s} {len(some):5d} {100 * hit / len(some):6.1f} %      {true:6.2f} {said:5.2f} {width:6.2f}"
            f"  {error:.2e} / {plain:.2e}"
        )
    low, high = wilson(*total) if total[1] else (0.0, 1.0)
    return "\n".join(
        [*lines, f"All: {100 * total[0] / max(total[1], 1):.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"]
    )
