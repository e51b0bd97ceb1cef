"""Losses of trained methods, row by row, in the form that the rule of `evidence` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.comparison.methods import way
from coterie.errors import DataError
from coterie.evidence.scores import METHODS, Scores
from coterie.learning.scoring import Scorer
from coterie.training.result import Result
from coterie.training.row_losses import row_losses

_PROPER = Scorer("log_loss")


def trained_scores(runs: Mapping[str, Sequence[Result]], test_share: float) -> tuple[Scores, Scores | None]:
    """The first metric on the test rows of every split, and the log loss of the same predictions where the metric does not
    show how small an effect is. The methods' first is the overall average, their second `local`."""
    first = runs["local"][0]
    metric = first.task.scorers[0]
    vouched = first.federation.kind == "classification" and metric.name != _PROPER.name
    return _scores(runs, metric, test_share), _scores(runs, _PROPER, test_share) if vouched else None


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
    ways = [way(r[0].evaluation.algorithm, len(np.unique(r[0].clusters))) for r in runs.values()]
    return Scores(
        metric.name,
        rows[None][..., known] + (0.0 if metric.lower_is_better else 1.0),
        run[None, known],
        len(base),
        owner[known],
        np.unique(owner[known]),
        len(base[0].clients),
        (METHODS[0], *runs),
        (METHODS[0], *ways),
        test_share,
    )


def overall_average(result: Result) -> Tensor:
    """Outputs of the guess that every method must beat: the class shares (or the mean) of all training rows."""
    data = result.evaluation.federation
    y = torch.from_numpy(data.rows("train")[1])
    if data.kind == "regression":
        return y.double().mean().reshape(1)
    shares = torch.bincount(y.long(), minlength=data.n_outputs).double() + 1e-6
    return (shares / shares.sum()).log()
