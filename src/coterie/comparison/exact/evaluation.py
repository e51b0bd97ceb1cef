"""Cross-validation inside every client: all fitting, scaling and choosing happens on the training part.

Rows of a client are permuted and dealt to folds from a random starting fold, so small clients do not all lose a row
in the same fold (`folds` deals units and time). A row's loss is averaged over the repeats before any variance is taken:
repeats of the same row are not new evidence."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from coterie.base.annotations import guarded
from coterie.comparison.exact.candidates import CANDIDATES, Candidate
from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.fitting import learn
from coterie.comparison.exact.folds import Bools, folds_of, judged_folds, training
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.data.coded_table import Table
from coterie.evidence.scores import Scores

FEWEST = 4  # a client with fewer rows trains but is not scored
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """Scores by metric, the notes of the fits, and the groups each of them found (fits, clients).

    ``outputs`` (candidates, rows, classes or 1) are the predictions of rows that training did not see, in the first repeat
    and by models that bound columns, as the deployed one does; scores are of models without bounds. ``judged`` marks these
    rows in the table: all of them, but for the first stretch of time."""

    scores: dict[str, Scores]
    notes: tuple[str, ...]
    groupings: Ints
    outputs: Floats = field(repr=False, default_factory=lambda: np.empty((0, 0, 0)))
    judged: Bools = field(repr=False, default_factory=lambda: np.empty(0, bool))

    def proper(self, metric: str) -> Scores | None:
        """The log loss that must confirm a metric that does not show the size of an effect."""
        return self.scores["log_loss"] if metric in ("accuracy", "auc") else None


def default_repeats(n_rows: int) -> int:
    return 3 if n_rows < 2000 else 2 if n_rows < 20000 else 1


@guarded
def evaluate(
    table: Table,
    *,
    folds: int = 10,
    repeats: int = 1,
    seed: int = 0,
    pairs: bool = False,
    candidates: dict[str, Candidate] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Out-of-fold losses of every candidate, for every metric of the kind of target.

    ``pairs`` deals rows of different classes together, as judging by the area under the curve needs."""
    candidates = candidates or CANDIDATES
    classification = table.classes is not None
    width = table.n_classes if classification else 1
    shape = (repeats, len(candidates), len(table.y), width)
    outputs, inside = np.empty(shape), np.empty(shape[1:])
    fold = np.empty((repeats, len(table.y)), np.int64)
    notes: set[str] = set()
    groupings: list[Ints] = []
    for repeat in range(repeats):
        rng = np.random.default_rng([seed, 1, repeat])
        fold[repeat] = folds_of(table, folds, rng, table.y if pairs else None)
        for f in judged_folds(fold[repeat]):
            test = fold[repeat] == f
            models = learn(table, training(table, fold[repeat], f), candidates, rng)
            X, owner = table.X[test], table.owner[test]
            for j, model in enumerate(models.values()):
                predicted, far = model.outputs(X, owner), model.beyond(X)
                if not repeat:
                    inside[j, test] = predicted
                predicted[far] = model.unbounded().outputs(X[far], owner[far])
                outputs[repeat, j, test] = predicted
                notes.update(model.fit.notes)
            groupings += [models["groups"].fit.of_client] if "groups" in models else []
            if progress is not None:
                progress(repeat * folds + f + 1, repeats * folds)
    judged = fold[0] >= 0
    outputs, fold, table = outputs[:, :, judged], fold[:, judged], table.rows(judged)
    n_folds = folds if table.time is None else int(fold.max()) + 1
    kinds = METRICS[table.judged_as]
    made = {}
    for metric, loss in kinds.items():
        shown = _with_majority(table, outputs, list(candidates)) if metric == "accuracy" else outputs
        rows = np.stack([[loss(table, Predictions(o, f)) for o in of] for of, f in zip(shown, fold, strict=True)])
        rows = rows if table.weight is None or metric == "auc" else rows * table.relative_weight
        finite = np.isfinite(rows).all((0, 1))
        usable = np.bincount(table.owner, weights=finite, minlength=table.n_clients) == table.sizes
        scored = np.flatnonzero(usable & (table.sizes >= FEWEST))
        names = tuple(candidates)
        made[metric] = Scores(
            metric,
            rows,
            fold,
            n_folds,
            table.owner,
            scored,
            table.n_clients,
            names,
            names,
            unit=_evidence(table, fold),
            ordered=table.time is not None,
        )
    return Evaluation(
        made, tuple(sorted(notes)), np.array(groupings).reshape(-1, table.n_clients), inside[:, judged], judged
    )


def _evidence(table: Table, fold: Ints) -> Ints | None:
    """What counts once as evidence, if not a row: a unit, or a client's rows of one stretch of time."""
    if table.time is not None:
        return np.asarray(table.owner * (int(fold.max()) + 1) + fold[0])
    return table.unit


def measure(
    table: Table,
    metric: str,
    *,
    folds: int = 10,
    repeats: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """The same as `evaluate`, but the scores of the area under the curve come from a second run with rows dealt in pairs.

    The other metrics keep the first run: if every fold had the same share of each class, that share would be predictable
    even in noise."""
    runs = 2 if metric == "auc" else 1

    def part(run: int) -> Progress | None:
        if progress is None:
            return None
        return lambda done, total: progress(run * total + done, runs * total)

    found = evaluate(table, folds=folds, repeats=repeats, seed=seed, progress=part(0))
    if metric != "auc":
        return found
    paired = evaluate(table, folds=folds, repeats=repeats, seed=seed, pairs=True, progress=part(1))
    notes = tuple(sorted({*found.notes, *paired.notes}))
    return Evaluation(
        {**found.scores, "auc": paired.scores["auc"]}, notes, found.groupings, found.outputs, found.judged
    )


def _with_majority(table: Table, outputs: Floats, names: list[str]) -> Floats:
    """Let the constant guess the commonest class of the whole table.

    The commonest class of the other folds would be wrong too often where classes are equally common: if a fold has more of
    one class, the other folds have more of the other class."""
    if "constant" not in names:
        return outputs
    common = np.bincount(table.y.astype(np.int64), minlength=table.n_classes).argmax()
    shown = outputs.copy()
    shown[:, names.index("constant")] = np.eye(table.n_classes)[common]
    return shown
