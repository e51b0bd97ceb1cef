"""Dimensionality reduction before clustering, repaired.

Section 3 and Appendix C of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from coterie.base.annotations import guarded
from coterie.errors import ConfigError
from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.user_rows import HistogramRows


@guarded
@dataclass(frozen=True)
class TokenReduction:
    """The tokens to cluster on: those with large entries in a leading eigenvector of the whitened second moment.

    `keep`: number of tokens kept, or `threshold`: keep x when max_j |v_j(x)| ≥ θ. Exactly one of them.
    `rank`: number of eigenvectors; None means clusters − 1, the informative rank (the paper takes clusters).
    The moment is a dense tokens × tokens matrix: meant for vocabularies up to some ten thousand.
    """

    keep: int | None = None
    threshold: float | None = None
    rank: int | None = None

    def fit(self, rows: HistogramRows, mean: Floats, clusters: int) -> FittedReduction:
        """`rows` user-weighted histograms, `mean` their average Q_fa."""
        tokens = len(mean)
        self.check(tokens)
        rank = self.rank_of(clusters, tokens)
        values, vectors = np.linalg.eigh(second_moment(rows, mean))
        return self.choose(vectors[:, ::-1][:, :rank], np.maximum(values[::-1], 0.0), mean)

    def check(self, tokens: int) -> None:
        """Refuse settings that choose no tokens, or more than there are."""
        if (self.keep is None) == (self.threshold is None):
            raise ConfigError(
                f"TokenReduction needs keep or threshold, not both; got keep={self.keep}, threshold={self.threshold}. "
                "Pass one of them."
            )
        if self.keep is not None and not 1 <= self.keep <= tokens:
            raise ConfigError(
                f"TokenReduction keeps between 1 and all {tokens} tokens; got keep={self.keep}. Choose a number between."
            )

    def rank_of(self, clusters: int, tokens: int) -> int:
        """The number of eigenvectors."""
        return min(self.rank or max(clusters - 1, 1), tokens)

    def choose(self, vectors: Floats, values: Floats, mean: Floats) -> FittedReduction:
        """The reduction from leading eigenvectors, tokens × rank, whether exact or private."""
        size = np.abs(vectors).max(axis=1)
        if self.keep is not None:
            kept = np.sort(np.argsort(-size, kind="stable")[: self.keep])
        else:
            kept = np.flatnonzero(size >= self.threshold)  # drop only what is small in ALL v_j (the text says any, H11)
        if kept.size == 0:
            raise ConfigError(
                f"TokenReduction threshold={self.threshold} drops every token; the largest entry is {size.max():.3g}. "
                "Lower the threshold."
            )
        return FittedReduction(kept, mean, values)


@dataclass(frozen=True)
class FittedReduction:
    kept: Ints  # the columns kept, in order
    mean: Floats  # Q_fa
    spectrum: Floats  # eigenvalues of M, largest first

    def reduce(self, counts: Counts) -> Counts:
        """Kept columns, then one "rest" column with the remaining mass: lumping never increases a KL divergence."""
        tokens = counts.shape[1]
        place = np.full(tokens, len(self.kept))
        place[self.kept] = np.arange(len(self.kept))
        lump = sp.csr_array((np.ones(tokens), place, np.arange(tokens + 1)), shape=(tokens, len(self.kept) + 1))
        return sp.csr_array(counts @ lump)

    def lump(self, histogram: Floats) -> Floats:
        """One histogram on the kept tokens and the rest."""
        return np.append(histogram[self.kept], max(1 - float(histogram[self.kept].sum()), 1e-12))

    def lift(self, centers: Floats) -> Floats:
        """Back to all tokens: the rest mass is shared out in proportion to Q_fa."""
        share = self.mean.copy()
        share[self.kept] = 0.0
        rest = share.sum()
        if rest > 0:
            share = share / rest
        lifted = centers[:, -1:] * share
        lifted[:, self.kept] = centers[:, :-1]
        return np.asarray(lifted / lifted.sum(axis=1, keepdims=True), dtype=np.float64)


def second_moment(rows: HistogramRows, mean: Floats) -> Floats:
    """M = (1/n) Σ_u V̂_u V̂_uᵀ with V̂_u = Diag(Q_fa)^{-1/2} (Q̂_u − Q_fa); tokens nobody used have V̂ = 0."""

    def work(start: int, stop: int, block: Counts) -> tuple[Floats, int]:
        dense = block.toarray()
        return dense.T @ dense, int((np.diff(block.indptr) > 0).sum())

    total, users = np.zeros((len(mean), len(mean))), 0
    for part, count in rows.each(work):
        total += part
        users += count
    scale = np.divide(1.0, np.sqrt(mean), out=np.zeros_like(mean), where=mean > 0)
    centred = total / users - np.outer(mean, mean)
    return np.asarray(scale[:, None] * centred * scale, dtype=np.float64)
