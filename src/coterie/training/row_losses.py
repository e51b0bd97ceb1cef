"""The first metric, row by row: what a paired comparison of two runs on the same test rows needs.

Accuracy, log loss and squared error are means over rows. For other metrics (AUC, R²) a row's value is its jackknife
pseudo-value, centred so that a client's rows average to its score. Smaller is better throughout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from coterie.base.tree import Tree
from coterie.data.federation import Federation
from coterie.errors import DataError
from coterie.evidence.gains import Floats, Ints
from coterie.learning.metrics import Metric
from coterie.learning.scoring import Scorer
from coterie.training.evaluation import Evaluation
from coterie.training.result import Result

ROW_MEANS = frozenset({"accuracy", "log_loss", "mse", "mae", "top_3", "top_5"})  # means over rows


def row_losses(result: Result, scorer: Scorer | None = None, guess: Tensor | None = None) -> list[Floats]:
    """For every client, one number per test row, smaller is better; NaN where a metric hangs on a single row.

    scorer: another than the task's first. guess: outputs that are scored for every row instead of the predictions."""
    return losses_of(result.evaluation, scorer, guess)


def losses_of(live: Evaluation, scorer: Scorer | None = None, guess: Tensor | None = None) -> list[Floats]:
    """The same of a run in memory, for the clients that it evaluates."""
    scorer = live.task.scorers[0] if scorer is None else scorer
    sign = -1 if scorer.lower_is_better else 1
    refuse_weights(live.federation)
    longest = int(live.federation.n_test.max(initial=0))

    def score(out: Tree) -> Tree:
        outputs = out["outputs"] if guess is None else guess.to(out["outputs"].dtype).expand_as(out["outputs"])
        values = _values(scorer.name in ROW_MEANS, scorer, outputs, out["y"], out["mask"])
        wide = torch.full((len(values), longest), torch.nan, dtype=torch.float64)
        wide[:, : values.shape[1]] = values[:, :longest]
        return {"values": -sign * wide}

    table = live.on_test_rows(score)["values"].numpy()
    return [table[i, :n].copy() for i, n in enumerate(live.federation.n_test[live.everyone()])]


def refuse_weights(federation: Federation) -> None:
    if federation.weights is not None:
        raise DataError("Gains are judged row by row, which does not support row weights. Leave the weights out.")


def _values(row_mean: bool, metric: Metric, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """(clients, rows): the metric of every row, or its pseudo-value."""
    clients, rows = mask.shape
    if not rows:
        return torch.zeros(clients, 0, dtype=torch.float64)
    if row_mean:
        one = metric(outputs.flatten(0, 1).unsqueeze(1), y.flatten(0, 1).unsqueeze(1), mask.new_ones(mask.numel(), 1))
        return one.reshape(clients, rows).double()
    score = metric(outputs, y, mask).double()
    n = mask.sum(-1).double()
    without = torch.stack([metric(outputs, y, mask * (torch.arange(rows) != r)).double() for r in range(rows)], 1)
    real = mask.bool()
    centre = torch.where(real, without, 0.0).sum(-1) / n
    return score.unsqueeze(-1) + (n - 1).unsqueeze(-1) * (centre.unsqueeze(-1) - without)


def row_names(results: Sequence[Result]) -> list[list[np.ndarray]]:
    """For every run and client, a number for each test row, equal in all runs that test the same row.

    Runs may split the rows differently; a row is identified by its features and target. Rows of a client that are equal in
    all of them count as one."""
    parts, where = [], []
    for s, result in enumerate(results):
        for i, rows in enumerate(rows_apart(result.federation, np.arange(len(result.clients)))):
            place = float(int(results[0].clients.get_indexer(pd.Index([result.clients[i]]))[0]))
            parts.append(np.concatenate([np.full((len(rows), 1), place), rows], axis=1))
            where.append((s, i))
    names: list[list[np.ndarray]] = [[] for _ in results]
    for (s, _), own in zip(where, named(parts), strict=True):
        names[s].append(own)
    return names


def rows_apart(federation: Federation, clients: Ints) -> list[Floats]:
    """Features and target of the test rows of each of these clients."""
    start, found = federation.starts("test"), []
    for i in clients:
        rows = slice(int(start[i]), int(start[i] + federation.n_test[i]))
        x = federation.features(rows).flatten(1).double().numpy()
        found.append(np.concatenate([x, federation.y[rows].unsqueeze(1).flatten(1).double().numpy()], axis=1))
    return found


def named(parts: Sequence[Floats]) -> list[np.ndarray]:
    """A number for each row of every part; equal rows have equal numbers."""
    _, codes = np.unique(np.concatenate(parts), axis=0, return_inverse=True)
    return list(np.split(codes.reshape(-1), np.cumsum([len(p) for p in parts])[:-1]))


def pooled_rows(results: Sequence[Result], names: list[list[np.ndarray]] | None = None) -> list[Floats]:
    """Row losses of every client over several runs: each distinct row once, see `pool`."""
    names = row_names(results) if names is None and len(results) > 1 else names
    return pool([row_losses(result) for result in results], names)


def pool(losses: Sequence[list[Floats]], names: list[list[np.ndarray]] | None) -> list[Floats]:
    """Row losses (runs, clients) → per client each distinct row once, with its mean over the runs that test it.

    Rows are in the order of their names, so that two sets of runs on the same splits can be compared row by row."""
    if len(losses) == 1 or names is None:
        return losses[0]
    found = []
    for i in range(len(losses[0])):
        name, value = np.concatenate([n[i] for n in names]), np.concatenate([v[i] for v in losses])
        _, place = np.unique(name, return_inverse=True)
        found.append(np.bincount(place, weights=value) / np.bincount(place) if len(value) else value)
    return found
