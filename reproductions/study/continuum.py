"""Groups against a continuum: what is advised where clients differ gradually, and where they form groups."""

from typing import Any

import pandas as pd

from coterie.comparison.exact.decision import against_continuum
from coterie.comparison.exact.evaluation import measure
from coterie.comparison.exact.predictor import learn_all
from coterie.comparison.likeness import stability
from coterie.evidence.rule import decide_scores
from coterie.evidence.scores import METHODS
from reproductions.study.worlds import World, all_true_losses, make

GROUPED = ("groups", "pair")


def continuum_worlds() -> list[World]:
    """Clients spread in all directions or in one, normally or evenly; and clients of two or three kinds."""
    kinds = ("regression", "classification")
    gradual = [World(t, m, kind, tau=0.8) for m in (20, 60) for kind in kinds for t in ("partial", "line", "even")]
    return gradual + [World(t, m, kind) for m in (20, 60) for kind in kinds for t in GROUPED]


def simulate_continuum(world: World, seed: int) -> dict[str, Any]:
    """The advice with and without the comparison with a continuum, and how steady the groups are."""
    table, fresh = make(world, seed)
    metric = "mse" if table.classes is None else "log_loss"
    found, predictors = measure(table, metric, seed=seed), learn_all(table, seed)
    before = decide_scores(found.scores[metric], seed=seed)
    verdict, beyond = against_continuum(table, found, metric, predictors, alpha=0.05, seed=seed)
    groups = pd.Series(predictors["groups"].model.fit.of_client)
    truth = dict(zip(METHODS, all_true_losses(fresh, predictors)[metric].mean(1), strict=True))
    return {
        "world": world.name,
        "seed": seed,
        "before": before.recommendation,
        "advice": verdict.recommendation,
        "sure": verdict.sure,
        "best": min(truth, key=lambda name: float(truth[name])),
        "truth": {name: float(f"{value:.4g}") for name, value in truth.items()},
        "groups": int(groups.nunique()),
        "found_again": round(float(stability(groups, pd.DataFrame(found.groupings)).mean()), 3),
        "explained": None if beyond is None else round(beyond.explained, 4),
        "reference": None if beyond is None else round(beyond.reference, 4),
        "chance": None if beyond is None else round(beyond.chance, 2),
    }


def tabulate_continuum(records: dict[str, Any]) -> str:
    """Per cell: how often groups are advised with and without the reference, and how steady the groups are."""
    table = pd.DataFrame(list(records.values()))
    rows = []
    for world, cell in table.groupby("world", sort=False):
        several = cell[cell["groups"] > 1]
        low, high = several["found_again"].quantile([0.05, 0.95])
        rows.append(
            {
                "world": world,
                "worlds": len(cell),
                "groups before": int((cell["before"] == "groups").sum()),
                **{way: int((cell["advice"] == way).sum()) for way in ("groups", "shrunk", "together", "alone")},
                "exceeded": int((cell["chance"] <= 0.05).sum()),
                "found again": f"{low:.2f}–{high:.2f}",
                "explained": round(several["explained"].mean(), 2),
                "reference": round(several["reference"].mean(), 2),
            }
        )
    return pd.DataFrame(rows).to_string()
