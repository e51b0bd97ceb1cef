"""Losses per row for every metric; smaller is better, and a client's score is the mean over its rows.

The area under the curve has no loss per row; DeLong's placement values (DeLong et al. 1988) give each row its influence
instead, so that the mean over a client's rows is 1 − AUC and their spread gives its standard error."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.base.text import suggest
from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.families import KINDS
from coterie.data.coded_table import Table
from coterie.errors import ConfigError


@dataclass(frozen=True)
class Predictions:
    """Out-of-fold predictions of one method in one repeat: outputs (rows, outputs), and the fold of every row."""

    outputs: Floats
    fold: Ints | None = None


def _client_mean(values: Floats, table: Table) -> Floats:
    return np.asarray(np.bincount(table.owner, weights=values, minlength=table.n_clients) / np.maximum(table.sizes, 1))


def mse(table: Table, made: Predictions) -> Floats:
    """Squared error over the variance of the whole target: the overall average scores about 1."""
    return np.asarray((table.y - made.outputs[:, 0]) ** 2 / max(float(table.y.var()), 1e-300))


def r2(table: Table, made: Predictions) -> Floats:
    """Squared error over the client's own variance: the client's own average scores about 1, so r² is 1 − loss."""
    centred = table.y - _client_mean(table.y, table)[table.owner]
    variance = _client_mean(centred**2, table)[table.owner]
    usable = variance > 1e-12 * max(float(table.y.var()), 1e-300)
    return np.where(usable, (table.y - made.outputs[:, 0]) ** 2 / np.where(usable, variance, 1.0), np.nan)


def accuracy(table: Table, made: Predictions) -> Floats:
    """1 where the likeliest class is wrong; a tie counts by its probability of being wrong."""
    top = made.outputs >= made.outputs.max(1, keepdims=True) - 1e-12
    hit = top[np.arange(len(table.y)), table.y.astype(np.int64)]
    return np.asarray(1 - hit / top.sum(1))


def log_loss(table: Table, made: Predictions) -> Floats:
    """Minus the log of the probability given to the true class (nats)."""
    chance = made.outputs[np.arange(len(table.y)), table.y.astype(np.int64)]
    return np.asarray(-np.log(np.maximum(chance, 1e-9)))


def _ranks(group: Ints, score: Floats) -> Floats:
    """Mid-ranks of the scores within every group."""
    order = np.lexsort((score, group))
    g, s = group[order], score[order]
    new_tie = np.concatenate([[True], (g[1:] != g[:-1]) | (s[1:] != s[:-1])])
    tie = np.cumsum(new_tie) - 1
    first = np.flatnonzero(new_tie)
    last = np.append(first[1:], len(g)) - 1
    start = np.flatnonzero(np.concatenate([[True], g[1:] != g[:-1]]))
    begin = start[np.cumsum(np.concatenate([[True], g[1:] != g[:-1]])) - 1]
    ranks = np.empty(len(g))
    ranks[order] = (first[tie] + last[tie]) / 2 - begin + 1
    return ranks


def _one_auc(table: Table, positive: Floats, score: Floats, fold: Ints | None) -> Floats:
    """1 − influence values of the area for one class against the rest; NaN in clients without a pair to compare.

    Only rows of the same fold are compared: models of different folds are each pulled away from the rows they must
    predict. Ranking across folds would therefore put even a constant below one half, and lone models lowest."""
    owner, m, is_positive = table.owner, table.n_clients, positive > 0
    cell = owner if fold is None else owner * (int(fold.max()) + 1) + fold
    score = np.round(score, 9)
    n1 = np.bincount(cell, weights=positive)[cell]
    n0 = np.bincount(cell)[cell] - n1
    others = _ranks(cell, score) - _ranks(cell * 2 + is_positive, score)  # rows of the other class that score lower
    placement = np.where(is_positive, others / np.maximum(n0, 1), 1 - others / np.maximum(n1, 1))
    paired = (n1 > 0) & (n0 > 0)

    def mean(of: npt.NDArray[np.bool_]) -> Floats:
        total = np.bincount(owner, weights=placement * of, minlength=m)
        return np.asarray(total / np.maximum(np.bincount(owner, weights=of, minlength=m), 1))

    area = (mean(paired & is_positive) + mean(paired & ~is_positive)) / 2
    count = np.stack([np.bincount(owner, weights=paired & c, minlength=m) for c in (~is_positive, is_positive)])
    share = count[is_positive.astype(np.int64), owner] / table.sizes[owner]
    value = area[owner] + np.where(paired, placement - area[owner], 0) / np.maximum(share, 1e-12)
    return np.where((count[0] > 0)[owner], 1 - value, np.nan)


def auc(table: Table, made: Predictions) -> Floats:
    """1 − area under the curve inside every client; with more than two classes the mean over classes present."""
    if table.n_classes == 2:
        return _one_auc(table, (table.y == 1) * 1.0, made.outputs[:, 1], made.fold)
    each = np.stack(
        [_one_auc(table, (table.y == c) * 1.0, made.outputs[:, c], made.fold) for c in range(table.n_classes)]
    )
    known = ~np.isnan(each)
    total = np.where(known, each, 0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)


def _of(name: str) -> Callable[[Table, Predictions], Floats]:
    """The loss of a kind of target: the deviance, or the absolute error in the target's units."""
    return lambda table, made: KINDS[name].deviance(table.y, made.outputs[:, 0])


METRICS: dict[str, dict[str, Callable[[Table, Predictions], Floats]]] = {
    "regression": {"mse": mse, "r2": r2},
    "classification": {"log_loss": log_loss, "accuracy": accuracy, "auc": auc},
    "count": {"poisson": _of("count"), "mse": mse},
    "amount": {"gamma": _of("amount"), "mse": mse},
    "share": {"mse": mse, "r2": r2},
    "robust": {"mae": _of("robust"), "mse": mse},
}


def check_metric(kind: str, metric: str | None) -> str:
    """The metric, by default the first of its kind; a metric of another kind is refused."""
    known = METRICS[kind]
    if metric is None:
        return next(iter(known))
    if metric not in known and any(metric in others for others in METRICS.values()):
        raise ConfigError(f"The metric {metric!r} does not fit {kind}. Choose one of {', '.join(known)}.")
    if metric not in known:
        raise ConfigError(f"There is no metric {metric!r}. {suggest(metric, known)}")
    return metric
