"""What to deploy: the stack of all candidates, its expected loss, and what it gains over learning alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from coterie.base.text import listed
from coterie.comparison.deploy.newcomers import Newcomers, judge_newcomers
from coterie.comparison.deploy.parts import LinearPart, Part
from coterie.comparison.deploy.stack import INNER, Stack, Weights, learn_weights
from coterie.comparison.deploy.trees import fit_trees
from coterie.comparison.exact.candidates import CANDIDATES, Candidate
from coterie.comparison.exact.candidates.last import LastValue
from coterie.comparison.exact.candidates.offsets import Offsets
from coterie.comparison.exact.evaluation import Evaluation
from coterie.comparison.exact.families import KINDS
from coterie.comparison.exact.fitting import learn
from coterie.comparison.exact.folds import inner_folds, judged_folds, training
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.comparison.exact.predictor import Predictor
from coterie.data.coded_table import Floats, Ints, Table
from coterie.evidence.mean_gains import gain, interval
from coterie.evidence.scores import Scores

Family = Literal["auto", "linear", "trees"]
Progress = Callable[[int, int], None]
TINY = 80  # rows below which trees are not tried
_LARGE = 50_000  # rows from which three folds do, and residuals come from the folds of the decision
_FURTHER: dict[str, Candidate] = {"offsets": Offsets()}  # linear candidates that only the stack uses
_IN_TIME: dict[str, Candidate] = {"last value": LastValue()}
_NEW = ("together", "offsets", "shrunk", "trees together", "trees with client", "shrunk + trees")  # know new clients

_DEFAULT = {"shrunk": 0.5, "shrunk + trees": 0.2, "offsets": 0.2, "trees with client": 0.1}


@dataclass(frozen=True)
class NewClients:
    """What a client never seen can expect: the mean loss over clients that were left out, that of the overall average, and
    the columns that place such a client. ``unseen`` are the predictions of every row by models without its client."""

    loss: float
    constant: float
    covariates: tuple[str, ...]
    unseen: Floats = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {"loss": self.loss, "constant": self.constant, "covariates": list(self.covariates)}


def _percent(gain: float) -> str:
    return f"{abs(100 * gain):.1f} % {'less' if gain >= 0 else 'more'}"


@dataclass(frozen=True)
class Deploy:
    """The model with the lowest expected loss. ``loss``, ``alone`` and ``constant`` are mean losses over clients on rows
    that training did not see. ``gain`` is a share of the loss alone; ``losses`` are those of every candidate."""

    name: str
    weights: pd.Series
    by_client: pd.DataFrame = field(repr=False)
    loss: float
    alone: float
    constant: float
    gain: float
    interval: tuple[float, float]
    losses: pd.Series = field(repr=False)
    stack: Stack = field(repr=False)
    unseen: Floats = field(repr=False)
    rows: int = 0
    new_clients: NewClients | None = None
    judged: np.ndarray = field(repr=False, default_factory=lambda: np.empty(0, bool))  # the rows of ``unseen``

    def to_json(self) -> dict[str, Any]:
        """Everything that is shown, as plain values."""
        return {
            "name": self.name,
            "weights": {str(name): float(w) for name, w in self.weights.items()},
            "loss": self.loss,
            "alone": self.alone,
            "constant": self.constant,
            "gain": self.gain,
            "interval": list(self.interval),
            "losses": {str(name): float(v) for name, v in self.losses.items()},
            "new_clients": None if self.new_clients is None else self.new_clients.to_json(),
            "words": self.words(),
        }

    def words(self) -> str:
        """What the model is made of, and what it is expected to gain or lose against alone."""
        main = self.weights[self.weights >= 0.05].sort_values(ascending=False)
        made = listed([f"{100 * w:.0f} % {name}" for name, w in main.items()], 5)
        low, high = self.interval
        if low < 0 < high:
            span = f"the interval from {_percent(low)} to {_percent(high)} holds no difference, too"
        else:
            span = f"interval {_percent(low)} to {_percent(high)}"
        return f"Deploy the {self.name} ({made}): its expected error is {_percent(self.gain)} than alone ({span})."


def deployed(
    table: Table,
    found: Evaluation,
    predictors: dict[str, Predictor],
    metric: str,
    *,
    family: Family = "auto",
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
    newcomers: bool = True,
) -> Deploy:
    """The stack of all candidates, from the out-of-fold predictions of the decision and of trees on the same rows. Without
    ``newcomers`` no client is left out to see what a new one would get."""
    names = list(next(iter(found.scores.values())).methods)
    fold = np.full(len(table.y), -1)
    fold[found.judged] = next(iter(found.scores.values())).fold[0]
    unseen = dict(zip(names, found.outputs, strict=True))
    parts: dict[str, Part] = {name: LinearPart(predictors[name].model) for name in names}
    shrunk_at = names.index("shrunk")
    everyone = np.ones(len(table.y), bool)
    if family != "trees":
        final = learn(table, everyone, _further(table), np.random.default_rng([seed, 19]))
        parts |= {name: LinearPart(model) for name, model in final.items()}
        unseen |= _further_predictions(table, fold, seed)
    if family != "linear" and (family == "trees" or len(table.y) >= TINY):
        base = unseen["shrunk"] if table.time is None else None
        made = tree_predictions(table, fold, base, seed, progress)
        shrunk, groups = predictors["shrunk"].model, predictors["groups"].model.fit.of_client
        grown = fit_trees(table, everyone, groups, shrunk, base, seed)
        both = [name for name in made if name in grown]
        if family == "trees":
            parts, unseen = {}, {"constant": unseen["constant"], "alone": unseen["alone"]}
        parts |= {name: grown[name] for name in both}
        unseen |= {name: made[name] for name in both}
    judged = table.rows(found.judged)
    weights = _weights(judged, parts, unseen, seed)
    names, grown_too = list(parts), any("trees" in name for name in parts)
    whole = None if table.time is not None else found.outputs[shrunk_at]
    away = judge_newcomers(table, grown_too, family != "trees", whole, seed) if newcomers else None
    parts.setdefault("constant", LinearPart(predictors["constant"].model))  # clients never seen may need it
    if away is not None and away.placed is not None:
        parts["placed"] = away.placed
    away = None if away is None else away.of(found.judged)
    return _described(judged, metric, parts, names, unseen, weights, found, level, away)


def _further(table: Table) -> dict[str, Candidate]:
    return _FURTHER if table.time is None else {**_FURTHER, **_IN_TIME}


def _further_predictions(table: Table, fold: Ints, seed: int) -> dict[str, Floats]:
    """Predictions of the linear candidates that only the stack uses, for rows that they did not see."""
    found = {name: np.empty((len(table.y), max(table.n_classes, 1))) for name in _further(table)}
    for f in judged_folds(fold):
        test, keep = fold == f, training(table, fold, f)
        for name, model in learn(table, keep, _further(table), np.random.default_rng([seed, 23, f])).items():
            found[name][test] = model.outputs(table.X[test], table.owner[test])
    return {name: made[fold >= 0] for name, made in found.items()}


def tree_predictions(
    table: Table, fold: Ints, shrunk: Floats | None, seed: int, progress: Progress | None
) -> dict[str, Floats]:
    """Predictions of every candidate with trees for rows that it did not see (rows, outputs), by joined folds."""
    n, large = len(table.y), len(table.y) >= _LARGE
    number = 3 if large else 5
    part = fold % number if table.time is None else fold
    number = int(part.max()) + 1
    found: dict[str, Floats] = {}
    missing: set[str] = set()
    for p in range(number):
        keep, test = training(table, part, p), part == p
        rng = np.random.default_rng([seed, 17, p])
        some = {name: CANDIDATES[name] for name in ("shrunk", "groups")}
        models = learn(table, keep, some, rng)
        groups = models["groups"].fit.of_client
        grown = fit_trees(table, keep, groups, models["shrunk"], shrunk if large else None, seed)
        missing |= set(found) - set(grown) if p else set()
        for name, tree in grown.items():
            if p and name not in found:
                missing.add(name)
            found.setdefault(name, np.empty((n, max(table.n_classes, 1))))
            found[name][test] = tree.outputs(table.X[test], table.owner[test])
        if progress is not None:
            progress(p + 1, number)
    return {name: made[fold >= 0] for name, made in found.items() if name not in missing}


def _weights(table: Table, parts: dict[str, Part], unseen: dict[str, Floats], seed: int) -> Weights:
    default = np.array([_DEFAULT.get(name, 0.0) for name in parts])
    default = default / default.sum() if default.sum() else np.full(len(parts), 1 / len(parts))
    stacked = np.stack([unseen[name] for name in parts])
    fold = inner_folds(table, INNER, np.random.default_rng([seed, 13]))
    args = (stacked, table.y, table.owner, table.n_clients, table.classes is not None, default, seed, fold)
    return learn_weights(*args, ordered=table.time is not None, scale=_scale(table, stacked, default))


def _scale(table: Table, stacked: Floats, default: Floats) -> Floats | None:
    """What a row's error is divided by before weights minimise its square, so that this comes close to the deviance."""
    kind = KINDS.get(table.judged_as)
    if kind is None and table.weight is None:
        return None
    scale = np.ones(len(table.y))
    if kind is not None:
        scale = np.sqrt(kind.variance(np.tensordot(default, stacked[..., 0], 1)))
        if kind.link == "identity":  # one large error is not to decide
            worst = np.abs(np.tensordot(default, stacked[..., 0], 1) - table.y)
            scale = np.sqrt(np.maximum(worst, np.median(worst) + 1e-12))
    return scale if table.weight is None else scale / np.sqrt(table.weight / table.weight.mean())


def _described(
    table: Table,
    metric: str,
    parts: dict[str, Part],
    names: list[str],
    unseen: dict[str, Floats],
    weights: Weights,
    found: Evaluation,
    level: float,
    away: Newcomers | None,
) -> Deploy:
    base = found.scores[metric]

    def lost(outputs: Floats) -> Floats:
        loss = METRICS[table.judged_as][metric](table, Predictions(outputs, base.fold[0]))
        return loss if table.weight is None or metric == "auc" else loss * table.relative_weight

    rows = np.stack([lost(o) for o in (unseen["constant"], unseen["alone"], weights.unseen)])[None]
    scores = Scores(
        metric,
        rows,
        base.fold[:1],
        base.n_folds,
        base.owner,
        base.scored,
        base.n_clients,
        ("constant", "alone", "stack"),
        ("constant", "alone", "shrunk"),
        unit=base.unit,
    )
    mean = scores.mean_losses()
    over = gain(scores, 2, 1)
    low, high = interval(over, level)
    alone, every = scores.alone(), list(parts)
    by_client = pd.DataFrame(weights.by_client, index=table.clients, columns=names)
    new = _for_new(weights.overall, names) if away is None else away.weights
    stacked = np.vstack([by_client.reindex(columns=every, fill_value=0.0), [new.get(name, 0.0) for name in every]])
    single = pd.Series({n: float(base.by_client(lost(o)).mean()) for n, o in unseen.items()})
    return Deploy(
        "stack",
        pd.Series(weights.by_client.mean(0), index=names),
        by_client,
        mean["stack"],
        mean["alone"],
        mean["constant"],
        over.mean / alone,
        (low / alone, min(high / alone, 1.0)),
        single,
        Stack(parts, stacked),
        weights.unseen,
        len(table.y),
        None if away is None else _left_out(table, away, base, lost),
        found.judged,
    )


def _left_out(table: Table, away: Newcomers, base: Scores, lost: Callable[[Floats], Floats]) -> NewClients:
    made, constant = (float(base.by_client(lost(o)).mean()) for o in (away.unseen, away.constant))
    return NewClients(made, constant, tuple(table.names[j] for j in away.covariates), away.unseen)


def _for_new(overall: Floats, names: list[str]) -> dict[str, float]:
    """The weights for a client never seen where too few clients can be left out: those of all rows, on the candidates
    that know such clients."""
    known = np.array([name in _NEW for name in names])
    weights = np.where(known, overall, 0.0)
    if weights.sum() < 1e-6:
        weights = known.astype(float) if known.any() else np.ones(len(names))
    return dict(zip(names, (weights / weights.sum()).tolist(), strict=True))
