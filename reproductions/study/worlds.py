"""Made-up federations whose truth is known, and what the rule makes of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.decision import against_continuum
from coterie.comparison.exact.evaluation import measure
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.comparison.exact.predictor import Predictor, learn_all
from coterie.data.coded_table import Table, make_table
from coterie.evidence.gains import GAINS, LOSES, marks
from coterie.evidence.mean_gains import Gain
from coterie.evidence.scores import METHODS, Scores

TEST_ROWS = 100  # fresh rows per client that stand for the truth


@dataclass(frozen=True)
class World:
    """Rows per client are log-uniform in ``rows``; columns are standard normal.

    ``truth``: "noise" (no column matters; coin flips for classes), "identical", "partial" (deviations of size ``tau``),
    "line" and "even" (deviations along one direction, normal or even), "groups" (three), "pair" (two), "unrelated",
    "shuffled" (a partial world whose client labels are dealt anew), "mixed" (half of the clients identical, half with the
    signs turned). Effects on log-odds are 1.8 times those of a regression."""

    truth: str
    m: int
    kind: str
    effect: float = 0.35
    tau: float = 0.4
    columns: int = 4
    rows: tuple[int, int] = (10, 60)
    classes: int = 2

    @property
    def name(self) -> str:
        extra = "" if self.truth not in ("partial", "line", "even") else f" {self.tau:g}"
        return f"{self.truth}{extra} {self.kind[0]}{self.m} e{self.effect:g} n{self.rows[0]}-{self.rows[1]} c{self.classes}"


def coefficients(world: World, rng: np.random.Generator) -> Floats:
    """(clients, 1 + columns, outputs)."""
    q = 1 if world.kind == "regression" or world.classes == 2 else world.classes
    factor = 1.0 if world.kind == "regression" else 1.8
    shape, effect = (1 + world.columns, q), world.effect * factor
    centre = rng.normal(size=shape) * effect
    if world.truth == "noise":
        return np.zeros((world.m, *shape))
    if world.truth in ("partial", "shuffled"):
        return centre + rng.normal(size=(world.m, *shape)) * world.tau * factor
    if world.truth in ("groups", "pair"):
        kinds = 3 if world.truth == "groups" else 2
        return np.asarray((rng.normal(size=(kinds, *shape)) * 2 * effect)[rng.integers(kinds, size=world.m)])
    if world.truth in ("line", "even"):
        even = rng.uniform(-np.sqrt(3), np.sqrt(3), world.m)
        place = rng.normal(size=world.m) if world.truth == "line" else even
        return centre + place[:, None, None] * rng.normal(size=shape) * world.tau * factor
    if world.truth == "unrelated":
        return rng.normal(size=(world.m, *shape)) * 3 * effect
    sign = np.where((np.arange(world.m) % 2 == 0) | (world.truth == "identical"), 1.0, -1.0)
    return np.asarray(centre * sign[:, None, None])


def _rows(world: World, coef: Floats, owner: Ints, rng: np.random.Generator) -> tuple[Floats, Floats]:
    X = rng.normal(size=(len(owner), world.columns))
    eta = np.einsum("np,npq->nq", np.hstack([np.ones((len(X), 1)), X]), coef[owner])
    if world.kind == "regression":
        return X, eta[:, 0] + rng.normal(size=len(X))
    if world.classes == 2:
        return X, (rng.random(len(X)) < 1 / (1 + np.exp(-eta[:, 0]))) * 1.0
    return X, (eta + rng.gumbel(size=eta.shape)).argmax(1).astype(float)


def make(world: World, seed: int) -> tuple[Table, Table]:
    """A table to decide on, and fresh rows of the same clients."""
    rng = np.random.default_rng([seed, 77])
    coef = coefficients(world, rng)
    sizes = np.exp(rng.uniform(np.log(world.rows[0]), np.log(world.rows[1]), world.m)).astype(int)
    owner, fresh = np.repeat(np.arange(world.m), sizes), np.repeat(np.arange(world.m), TEST_ROWS)
    if world.truth == "shuffled":  # a row belongs to a client of its own choosing, whatever the label says
        X, y = _rows(world, coef, rng.integers(world.m, size=len(owner)), rng)
        X_new, y_new = _rows(world, coef, rng.integers(world.m, size=len(fresh)), rng)
    else:
        X, y = _rows(world, coef, owner, rng)
        X_new, y_new = _rows(world, coef, fresh, rng)
    return make_table(X, y, owner, world.kind, None), make_table(X_new, y_new, fresh, world.kind, None)


def all_true_losses(fresh: Table, predictors: dict[str, Predictor]) -> dict[str, Floats]:
    """(methods, clients) by metric: losses on fresh rows of the models fitted to all rows of the table."""
    kind = "regression" if fresh.classes is None else "classification"
    found: dict[str, list[Floats]] = {metric: [] for metric in METRICS[kind]}
    for predictor in predictors.values():
        outputs = predictor.model.outputs(fresh.X, fresh.owner)
        for metric, loss in METRICS[kind].items():
            rows = loss(fresh, Predictions(outputs)).reshape(fresh.n_clients, -1)
            found[metric].append(rows.mean(1))
    return {metric: np.stack(losses) for metric, losses in found.items()}


def _false_marks(gain: Gain, scores: Scores, truth: Floats) -> tuple[int, int]:
    """How many clients are marked, and how many of them with the wrong sign of the true gain."""
    marked = marks(gain.single(scores))
    wrong = ((marked == GAINS) & (truth <= 0)) | ((marked == LOSES) & (truth >= 0))
    return int(((marked == GAINS) | (marked == LOSES)).sum()), int(wrong.sum())


def simulate(world: World, seed: int, repeats: int = 1) -> dict[str, Any]:
    """Decide on one world by every metric, and compare with the truth."""
    table, fresh = make(world, seed)
    found = measure(table, "mse" if table.classes is None else "auc", repeats=repeats, seed=seed)
    predictors = learn_all(table, seed)
    truths = all_true_losses(fresh, predictors)
    record: dict[str, Any] = {"world": world.name, "seed": seed, "metrics": {}}
    alone = METHODS.index("alone")
    for metric, scores in found.scores.items():
        verdict, _ = against_continuum(table, found, metric, predictors, alpha=0.05, seed=seed)
        truth = truths[metric]
        method = verdict.rival if verdict.recommendation == "alone" else verdict.recommendation
        gain, j = verdict.over_alone[method], METHODS.index(method)
        real = truth[alone] - truth[j]
        record["metrics"][metric] = {
            "advice": verdict.recommendation,
            "sure": verdict.sure,
            "best": METHODS[int(np.nanmean(truth, 1).argmin())],
            "wrong": _wrong(world, verdict.recommendation, verdict.sure, np.nanmean(truth, 1)),
            "method": method,
            "gain": round(gain.mean, 5),
            "real": round(float(np.nanmean(real[scores.scored])), 5),
            "se": [float(f"{v:.3g}") for v in (gain.se_clients, gain.se_rows, gain.fold_se)],
            "marks": _false_marks(gain, scores, np.nan_to_num(real)),
        }
    return record


def _wrong(world: World, advice: str, sure: str, truth: Floats) -> bool:
    """Collaboration advised though its true loss is not below alone's, or anything advised in noise."""
    if world.truth == "noise":
        return sure != "nothing"
    return advice != "alone" and bool(truth[METHODS.index(advice)] >= truth[METHODS.index("alone")])
