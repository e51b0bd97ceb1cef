"""Losses of trained methods in the form that the rule of `evidence` takes: row by row, or as sums that clients tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.comparison.methods import way
from coterie.errors import DataError
from coterie.evidence.gains import Floats, Gains, Ints, paired_gains
from coterie.evidence.scores import METHODS, Scores
from coterie.evidence.told import Told, sums_of
from coterie.learning.scoring import Scorer
from coterie.learning.task import Task
from coterie.training.result import Result
from coterie.training.row_losses import named, pooled_rows, row_losses, row_names, rows_apart

_PROPER = Scorer("log_loss")


def trained_scores(runs: Mapping[str, Sequence[Result]], test_share: float) -> tuple[Scores, Scores | None]:
    """The first metric on the test rows of every split, and the log loss of the same predictions where the metric does not
    show how small an effect is. The methods' first is the overall average, their second `local`."""
    first = runs["local"][0]
    metric = first.task.scorers[0]
    vouched = len(judged_by(first.task, first.federation.kind)) > 1
    return _scores(runs, metric, test_share), _scores(runs, _PROPER, test_share) if vouched else None


def ways_of(runs: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """The way of every method."""
    return {name: way(r[0].evaluation.algorithm, len(np.unique(r[0].clusters))) for name, r in runs.items()}


def _scores(runs: Mapping[str, Sequence[Result]], metric: Scorer, test_share: float) -> Scores:
    base = runs["local"]
    parts = [[row_losses(r, metric) for r in split] for split in zip(*runs.values(), strict=True)]
    for split, alone in zip(parts, base, strict=True):
        split.insert(0, row_losses(alone, metric, overall_average(alone)))
        if any(len(mine) != len(own) for method in split for mine, own in zip(method, split[1], strict=True)):
            raise DataError("All methods of a split must be tested on the same rows. Pass data with the same rows.")
    rows = np.concatenate([np.stack([np.concatenate(method) for method in split]) for split in parts], axis=1)
    owner = np.concatenate([np.repeat(np.arange(len(r.clients)), r.federation.n_test) for r in base])
    run = np.repeat(np.arange(len(base)), [int(r.federation.n_test.sum()) for r in base])
    known = np.isfinite(rows).all(0)
    if not known.any():
        raise DataError(f"No client has a score by {metric.name} on its test rows. Choose another metric.")
    return Scores(
        metric.name,
        rows[None][..., known] + (0.0 if metric.lower_is_better else 1.0),
        run[None, known],
        len(base),
        owner[known],
        np.unique(owner[known]),
        len(base[0].clients),
        (METHODS[0], *runs),
        (METHODS[0], *ways_of(runs).values()),
        test_share,
    )


@dataclass(frozen=True)
class OfRows:
    """The evidence on results whose rows are here."""

    runs: Mapping[str, Sequence[Result]]
    test_share: float

    def scores(self) -> tuple[Scores, Scores | None]:
        return trained_scores(self.runs, self.test_share)

    def gains(self, name: str, each: Floats, sizes: Ints, metric: str) -> Gains:
        names, own = self._base
        rows = [b - a for a, b in zip(pooled_rows(self.runs[name], names), own, strict=True)]
        return paired_gains(rows, each, sizes, metric)

    @cached_property
    def _base(self) -> tuple[Any, list[Floats]]:
        base = self.runs["local"]
        names = row_names(base) if len(base) > 1 else None
        return names, pooled_rows(base, names)


@dataclass(frozen=True)
class OfSums:
    """The evidence on results of which clients tell sums, by metric; `ways` are those of the methods."""

    told: Mapping[str, Told]
    ways: Mapping[str, str]
    test_share: float

    def scores(self) -> tuple[Scores, Scores | None]:
        methods, ways = (METHODS[0], *self.ways), (METHODS[0], *self.ways.values())
        found = [told.scores(metric, methods, ways, self.test_share) for metric, told in self.told.items()]
        if not len(found[0].scored):
            raise DataError(f"No client has a score by {found[0].metric} on its test rows. Choose another metric.")
        return found[0], found[1] if len(found) > 1 else None

    def gains(self, name: str, each: Floats, sizes: Ints, metric: str) -> Gains:
        return next(iter(self.told.values())).gains(1 + list(self.ways).index(name), each, sizes, metric)


def judged_by(task: Task, kind: str) -> list[str]:
    """The metrics of the evidence: the first, and the log loss where the first does not show how small an effect is."""
    first = task.metrics[0]
    return [first, _PROPER.name] if kind == "classification" and first != _PROPER.name else [first]


def told_here(runs: Mapping[str, Sequence[Result]]) -> dict[str, Told]:
    """What clients tell, from rows that are here."""
    base = runs["local"]
    parts = [rows_apart(r.federation, np.arange(len(r.clients))) for r in base]
    names = [named([part[i] for part in parts]) for i in range(len(parts[0]))]
    found = {}
    for metric in judged_by(base[0].task, base[0].federation.kind):
        scorer = Scorer(metric)
        splits = [
            [
                row_losses(own, scorer, overall_average(own)),
                *(row_losses(results[s], scorer) for results in runs.values()),
            ]
            for s, own in enumerate(base)
        ]
        each = [[np.stack([method[i] for method in split]) for split in splits] for i in range(len(names))]
        found[metric] = Told.of([sums_of(losses, who) for losses, who in zip(each, names, strict=True)])
    return found


def overall_average(result: Result) -> Tensor:
    """Outputs of the guess that every method must beat: the class shares (or the mean) of all training rows."""
    data = result.evaluation.federation
    if data.kind == "regression":
        return torch.tensor([data.target_moments()[0]], dtype=torch.float64)
    shares = data.class_counts() + 1e-6
    return (shares / shares.sum()).log()
