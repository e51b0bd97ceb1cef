"""The sums that the estimators of means need from their clients, read from lists, arrays, dicts or rows with groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from coterie.base.annotations import check_settings
from coterie.base.arguments import finite, refuse_masked
from coterie.errors import DataError
from coterie.estimation.conventions import Array, Ints, by_client, columns, labels, with_clients

Samples = ArrayLike | Sequence[ArrayLike]


@dataclass(frozen=True)
class ClientSums:
    """The message of every client: its number of samples n_i, their mean X̄_i, and their scatter Σ_j ‖X_ij − X̄_i‖²."""

    counts: Array
    means: Array
    scatter: Array
    scalar: bool  # The samples were numbers, not vectors, so results have no coordinate axis.

    @property
    def clients(self) -> int:
        return len(self.counts)

    @property
    def dimension(self) -> int:
        return int(self.means.shape[1])

    def pooled_variance(self) -> float:
        """σ̂_x²: the within-client variance pooled over clients and coordinates, denominator (N − m)d."""
        freedom = float(self.counts.sum() - self.clients) * self.dimension
        if freedom == 0:
            raise DataError(
                "The noise variance needs a client with two or more samples; every client has one. "
                "Pass noise_variance, or collect more samples."
            )
        return float(self.scatter.sum() / freedom)

    def take(self, clients: Ints) -> ClientSums:
        """Some of the clients."""
        return replace(self, counts=self.counts[clients], means=self.means[clients], scatter=self.scatter[clients])

    def shaped(self, values: Array) -> Array:
        """Drop the coordinate axis again where the samples were plain numbers."""
        return values[..., 0] if self.scalar else values


def client_sums(samples: Samples) -> ClientSums:
    """Read a list of (n_i, d) or (n_i,) arrays, or one (m, n, d) or (m, n) array."""
    if issparse(samples):
        return _from_block(finite("samples", samples))
    refuse_masked(samples=samples)
    if hasattr(samples, "__array__") and not isinstance(samples, np.ndarray):
        samples = np.asarray(samples)
    if isinstance(samples, np.ndarray) and samples.dtype != object:
        return _from_block(finite("samples", samples))
    if isinstance(samples, str | bytes) or not isinstance(samples, Sequence | np.ndarray):
        raise DataError(
            f"samples must be a list of arrays, one per client, or an array; got {type(samples).__name__}. "
            "Pass [client_0, client_1, …]."
        )
    arrays = [finite(f"samples[{i}]", x) for i, x in enumerate(samples)]
    if not arrays:
        raise DataError("samples must hold at least one client; got an empty list. Pass one array per client.")
    shapes = {a.shape[1:] for a in arrays if a.ndim}
    if any(a.ndim not in (1, 2) for a in arrays) or len(shapes) != 1:
        got = sorted({a.shape for a in arrays})[:4]
        raise DataError(
            f"Every client's samples must have shape (n_i, d), or (n_i,), with one d for all; got {got}. Reshape them."
        )
    counts = np.array([len(a) for a in arrays])
    if not counts.all():
        raise DataError(f"Every client needs a sample; client {int(np.argmin(counts))} has none. Leave it out.")
    rows = np.concatenate(arrays).reshape(int(counts.sum()), -1)
    if rows.shape[1] == 0:
        raise DataError("samples must have at least one coordinate; got d=0. Pass at least one column.")
    return _from_rows(rows, counts, arrays[0].ndim == 1)


def _from_rows(rows: Array, counts: Ints, scalar: bool) -> ClientSums:
    """Sums of rows that are sorted by client."""
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    means = np.add.reduceat(rows, starts) / counts[:, None]
    scatter = np.add.reduceat(np.square(rows - np.repeat(means, counts, axis=0)).sum(1), starts)
    return ClientSums(counts.astype(np.float64), means, scatter, scalar)


def _from_block(block: Array) -> ClientSums:
    if block.ndim not in (2, 3) or 0 in block.shape:
        raise DataError(
            f"A samples array must have shape (m, n, d) or (m, n), none of them zero; got {block.shape}. Reshape it."
        )
    scalar = block.ndim == 2
    block = block[:, :, None] if scalar else block
    means = block.mean(1)
    scatter = np.square(block - means[:, None]).sum((1, 2))
    return ClientSums(np.full(len(block), float(block.shape[1])), means, scatter, scalar)


def read_clients(estimator: Any, samples: Any, groups: Any, *, reset: bool) -> ClientSums:
    """The clients' sums, from lists, arrays, dicts {client: samples}, or rows with groups; sets or compares columns.

    n_features_in_ is the number of coordinates: in a plain (m, n) array a row is a client with n samples of one number."""
    refuse_masked(samples=samples, groups=groups)
    if by_client(samples) or isinstance(groups, str):
        samples, groups = with_clients(samples, groups)
        samples = pd.DataFrame(samples) if isinstance(samples, pd.Series) else samples
    names = None
    if groups is not None:
        scalar = np.ndim(samples) == 1
        rows = columns(estimator, np.asarray(samples)[:, None] if scalar else samples, reset=reset)
        owner = labels(groups)
        if owner.shape != (len(rows),):
            raise DataError(
                f"groups must name one client per row; got {owner.shape} for {len(rows)} rows. Name each row's client."
            )
        names, inverse, counts = np.unique(owner, return_inverse=True, return_counts=True)
        sums = _from_rows(rows[np.argsort(inverse, kind="stable")], counts, scalar)
    else:
        sums = client_sums(samples.to_numpy() if isinstance(samples, pd.DataFrame) else samples)
        if not reset and sums.dimension != estimator.n_features_in_:
            raise DataError(
                f"X has {sums.dimension} features, but {type(estimator).__name__} is expecting "
                f"{estimator.n_features_in_} features as input. Pass samples with the coordinates used in fit."
            )
    if reset:
        estimator.n_features_in_ = sums.dimension
        if groups is None:
            estimator.__dict__.pop("feature_names_in_", None)
        estimator.clients_ = np.arange(sums.clients) if names is None else names
    return sums


class ClientMeans(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The common base of the estimators of means: samples in, the estimates of known and new clients out."""

    estimates_: Array
    client_risk_: Array

    def fit(self, samples: Any, y: object = None, groups: Any = None) -> Self:
        """`samples`: a list of (n_i, d) or (n_i,) arrays, one per client, or an (m, n, d) or (m, n) array.

        Or a dict {client: samples}; or rows (N, d), an array or frame, with the client of each in `groups` (in a frame
        also the name of a column). Then clients_ has their names."""
        check_settings(self)
        self._fit(read_clients(self, samples, groups, reset=True))
        return self

    def fit_told(self, sums: ClientSums, clients: Array | Ints) -> Self:
        """The same from sums that clients told; `clients` are their names."""
        check_settings(self)
        self.n_features_in_, self.clients_ = sums.dimension, clients
        self._fit(sums)
        return self

    def _fit(self, sums: ClientSums) -> None:
        raise NotImplementedError

    def _new(self, samples: Any, groups: Any) -> ClientSums:
        check_is_fitted(self, "estimates_")
        return read_clients(self, samples, groups, reset=False)

    def _keep_risk(self, client_risk: Array, sums: ClientSums, noise: Array) -> None:
        self.client_risk_, self.risk_ = client_risk, float(client_risk.mean())
        self.local_risk_ = float(sums.dimension * noise.mean())

    def personalise(self, samples: Any, groups: Any = None) -> Array:
        """The same as `transform`: the estimates of clients known or new."""
        return np.asarray(self.transform(samples, groups))

    def fit_transform(self, samples: Any, y: object = None, groups: Any = None) -> Array:
        """Fit, and the clients' estimates_."""
        return self.fit(samples, y, groups).estimates_
