"""Input checks, and the sums and counts that an estimator needs from its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.exceptions import NotFittedError

from coterie.arguments import LEVEL, NUMBER, holds, refuse_masked, shown
from coterie.arguments import finite as finite
from coterie.errors import ConfigError, DataError

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
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
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    means = np.add.reduceat(rows, starts) / counts[:, None]
    scatter = np.add.reduceat(np.square(rows - np.repeat(means, counts, axis=0)).sum(1), starts)
    return ClientSums(counts.astype(np.float64), means, scatter, arrays[0].ndim == 1)


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


def known_variance(name: str, value: float | None) -> float | None:
    """A variance given by the user: finite and not negative, or None if it is to be estimated."""
    if value is not None and not (holds(NUMBER, value) and value >= 0):
        raise ConfigError(
            f"{name} must be a finite number >= 0, or None to estimate it; got {shown(value)}. Pass one of these."
        )
    return None if value is None else float(value)


def confidence(level: float) -> float:
    if not holds(LEVEL, level):
        raise ConfigError(f"level must be between 0 and 1; got {shown(level)}. Pass for example 0.95.")
    return float(level)


def choice(name: str, value: str, options: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in options:
        raise ConfigError(
            f"{name} must be one of {', '.join(map(repr, options))}; got {shown(value)}. Choose one of them."
        )
    return value


def fitted(estimator: Any, attribute: str) -> None:
    if not hasattr(estimator, attribute):
        raise NotFittedError(f"This {type(estimator).__name__} is not fitted yet. Call fit first.")
