"""KL divergences between histograms, in nats, infinite only where they truly are.

KL(a‖b) = h(a) − a·log b with h(a) = Σ a log a and 0·log 0 = 0, so the nearest centre of a histogram
is the argmax of one matrix product (H-7 in docs/errata.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from coterie.errors import DataError
from coterie.estimation.histograms.counts import Counts, Floats, check_counts


def smooth(model: ArrayLike, smoothing: float) -> Floats:
    """sm_s(P) = (P + s/d)/(1 + s): no zero survives, the sum stays 1."""
    model = np.asarray(model, dtype=np.float64)
    return np.asarray((model + smoothing / model.shape[-1]) / (1 + smoothing), dtype=np.float64)


def safe_log(model: Floats) -> Floats:
    """log P with −∞ where P = 0 and no warning; sparse products never multiply that by zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(model), dtype=np.float64)


def with_data(pattern: Counts, data: NDArray[Any]) -> Counts:
    """Other values at the same places; the index arrays are shared, not copied."""
    return sp.csr_array((data, pattern.indices, pattern.indptr), shape=pattern.shape)


def row_sums(values: Counts) -> Floats:
    return np.asarray(values.sum(axis=1), dtype=np.float64).ravel()


def normalise(counts: Counts) -> tuple[Counts, Floats]:
    """Q̂_u = counts/m_u and m_u; a user without tokens keeps an empty row."""
    tokens = row_sums(counts)
    scale = np.divide(1.0, tokens, out=np.zeros_like(tokens), where=tokens > 0)
    return with_data(counts, counts.data * np.repeat(scale, np.diff(counts.indptr))), tokens


def entropies(histograms: Counts) -> Floats:
    """h(Q̂_u) = Σ_x Q̂_u(x) log Q̂_u(x), one number per user (zero for a user without tokens)."""
    logs = np.log(np.maximum(histograms.data, np.finfo(np.float64).tiny))  # several times faster than scipy's xlogy
    return row_sums(with_data(histograms, histograms.data * logs))


def kl_to_centers(histograms: Counts, centers: Floats) -> Floats:
    """users × centres matrix of KL(Q̂_u‖P_k)."""
    divergence = entropies(histograms)[:, None] - np.asarray(histograms @ np.ascontiguousarray(safe_log(centers).T))
    return np.asarray(np.maximum(divergence, 0.0), dtype=np.float64)  # rounding may leave −1e-17 at a perfect match


def kl_rows(truth: Any, models: ArrayLike, smoothing: float = 0.0) -> Floats:
    """KL(truth_u‖sm_s(model_u)) for every user; `truth` counts or histograms, `models` one row for all, or one per user.

    Only the second argument is ever smoothed. +∞ where a model gives zero to a token its user has.
    """
    histograms, tokens = normalise(check_counts(truth))
    if not (tokens > 0).all():
        raise DataError(
            f"KL needs at least one token per user; {int((tokens == 0).sum())} users have none. Leave them out."
        )
    second = np.atleast_2d(np.asarray(models, dtype=np.float64))
    if second.shape[1] != histograms.shape[1] or second.shape[0] not in (1, histograms.shape[0]):
        raise DataError(
            f"Models must have one row for all users, or one per user, over the same tokens; got {second.shape} for users "
            f"of shape {histograms.shape}. Reshape the models."
        )
    rows = np.repeat(np.arange(histograms.shape[0]), np.diff(histograms.indptr))
    picked = second[rows if second.shape[0] > 1 else 0, histograms.indices]
    logs = safe_log((picked + smoothing / second.shape[1]) / (1 + smoothing))
    cross = np.bincount(rows, weights=histograms.data * logs, minlength=histograms.shape[0])
    return np.asarray(np.maximum(entropies(histograms) - cross, 0.0), dtype=np.float64)


def mean_kl(truth: Any, models: ArrayLike, smoothing: float = 0.0) -> float:
    """Mean over users of KL(truth‖model) in nats: the utility every table reports."""
    return float(kl_rows(truth, models, smoothing).mean())


def one_hot(labels: NDArray[Any], clusters: int) -> Floats:
    return np.asarray(np.eye(clusters)[labels], dtype=np.float64)
