"""Lloyd's algorithm in KL divergence, repaired.

Algorithm 2 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

Objective (eq. 3): J = Σ_u w_u min_k KL(Q̂_u‖P_k), the hard maximum likelihood of a *multinomial* mixture. The paper's
text calls it the likelihood of the Dirichlet mixture, which it is not (H06); `DirichletMultinomialMixture` has that.
Only Σ_{u∈k} w_u Q̂_u, whose total is the cluster's count, leaves the blocks of users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import one_hot, safe_log, smooth
from coterie.estimation.histograms.user_rows import HistogramRows

Reseed = Callable[[Floats, int], Floats]
_DUST = 1e-12  # Rounding may leave so much of a sum after adding and subtracting; a user contributes at least 1/m_u.


@dataclass(frozen=True)
class LloydResult:
    centers: Floats  # P̂^(T), clusters × tokens
    labels: Ints  # Ĉ^(T): the nearest of these centres for every user
    sums: Floats  # Σ_{u∈k} w_u Q̂_u for these labels
    objective: float
    history: Floats  # J after each recentring


def lloyd(
    rows: HistogramRows,
    seeds: Floats,
    entropy: float,
    *,
    max_iter: int,
    tol: float,
    smoothing: float,
    reseed: Reseed | None = None,
) -> LloydResult:
    """Alternate centring (step 5) and assignment (step 6) until labels repeat or J gains less than `tol` (relative).

    Assignments use sm_s(P̂): with the bare means, the only user of some token could never leave its cluster.
    J is computed from the bare means. A step that would raise it, because of the smoothing, is not taken, so `history`
    never rises.
    """
    centers = seeds
    labels, sums, moved = assign(rows, centers, smoothing)  # step 2
    history: list[float] = []
    for _ in range(max_iter):  # step 4
        means = recentre(sums, reseed)  # step 5
        objective = _objective(entropy, sums, means)
        if history and objective > history[-1]:
            break
        centers = means
        history.append(objective)
        labels, sums, moved = assign(
            rows, centers, smoothing, labels, sums
        )  # step 6; the paper skips an index here (H05)
        if moved == 0 or (len(history) > 1 and history[-2] - history[-1] < tol * history[-2]):
            break
    final = _objective(entropy, sums, centers)
    if np.isinf(final):  # Stopped early, just after a user moved to a centre without one of its tokens.
        final = _objective(entropy, sums, smooth(centers, smoothing))
    return LloydResult(centers, labels, sums, final, np.array(history))


def assign(
    rows: HistogramRows, centers: Floats, smoothing: float, labels: Ints | None = None, sums: Floats | None = None
) -> tuple[Ints, Floats, int]:
    """Nearest centre of every user (ties: the smallest index), the clusters' sums, and how many users moved.

    argmin_k KL(Q̂_u‖P_k) = argmax_k Q̂_u·log P_k: one sparse product. The old sums are corrected for the users that moved.
    """
    clusters = len(centers)
    log_centers = np.ascontiguousarray(safe_log(smooth(centers, smoothing)).T)

    def work(start: int, stop: int, block: Counts) -> tuple[Ints, Floats, int]:
        new = np.asarray(block @ log_centers).argmax(axis=1)
        if labels is None:
            return new, np.asarray(block.T @ one_hot(new, clusters)), stop - start
        old = labels[start:stop]
        moved = np.flatnonzero(new != old)
        if 2 * moved.size < stop - start:
            block, to, fro = block[moved], new[moved], old[moved]
        else:
            to, fro = new, old
        return new, np.asarray(block.T @ (one_hot(to, clusters) - one_hot(fro, clusters))), moved.size

    parts = rows.map(work)
    total = np.sum([part[1] for part in parts], axis=0).T
    if sums is not None:
        total = sums + total
        total[total < _DUST] = 0.0
    return np.concatenate([part[0] for part in parts]), total, sum(part[2] for part in parts)


def recentre(sums: Floats, reseed: Reseed | None = None) -> Floats:
    """Cluster means; an empty cluster gets the uniform histogram (step 5) or a centre from `reseed`."""
    counts = sums.sum(axis=1)
    empty = counts <= 0
    centers = np.divide(sums, counts[:, None], out=np.full(sums.shape, 1 / sums.shape[1]), where=~empty[:, None])
    if reseed is not None and empty.any():
        centers[empty] = reseed(centers[~empty], int(empty.sum()))
    return np.asarray(centers, dtype=np.float64)


def _objective(entropy: float, sums: Floats, centers: Floats) -> float:
    """Σ_u w_u h(Q̂_u) − Σ_k (Σ_{u∈k} w_u Q̂_u)·log P_k: sums and counts suffice."""
    seen = sums > 0
    return max(entropy - float((sums[seen] * safe_log(centers[seen])).sum()), 0.0)
