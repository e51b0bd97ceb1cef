"""Unbiased estimates of every client's risk, E‖θ̂_i − θ_i‖², without knowing θ_i: one column per way to estimate.

Means: Stein's identity, risk_i = ‖θ̂_i − X̄_i‖² − d v_i + 2 v_i div_i θ̂_i for X̄_i ~ N(θ_i, v_i I).
Counts: with q_i = Z_i/n_i and noise_i = (1 − ‖q_i‖²)/(n_i − 1), the unbiased estimate of E‖q_i − p_i‖², any weights a
and centre c that do not use client i have risk a² noise_i + (1−a)² (‖q_i − c‖² − noise_i). A cluster's weight depends
on client i's counts, so there each token is left out in turn: E⟨p_i, g(Z_i without a token)⟩ = E[g_t], t that token.
Clusters are fitted to other clients than those they are judged on. Unbiased estimates can be negative; averaged over
clients they are cut off at "floor", the risk of pooling equal clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame
from scipy.sparse import csr_array, issparse
from scipy.special import softmax

from coterie.base.arguments import finite
from coterie.base.kmeans import kmeans
from coterie.errors import DataError
from coterie.estimation.client_sums import ClientSums
from coterie.estimation.conventions import Array, Ints
from coterie.estimation.histograms import counts as histogram_counts
from coterie.estimation.histograms.counts import COLUMNS
from coterie.estimation.means import between_variance, combine
from coterie.estimation.mixtures import MixtureMeans

_FOLDS = 3


def means_risks(sums: ClientSums, clusters: tuple[int, ...], seed: int) -> tuple[dict[str, Array], dict[str, float]]:
    d, n = sums.dimension, sums.counts
    if sums.clients < 3:
        raise DataError(f"advise needs three or more clients; got {sums.clients}. Add clients.")
    if n.max() < 2:
        raise DataError(
            "advise needs clients with two or more samples to see the noise; every client has one. "
            "Collect a second sample from some clients."
        )
    sums = replace(sums, means=sums.means - sums.means.mean(0))  # No risk changes, and squares keep their digits.
    noise_variance = sums.pooled_variance()
    noise = noise_variance / n
    prior_variance = between_variance(sums, noise_variance)
    # The influence of client i on σ̂_x², which sums to zero. With it, resampling clients also shows the error of σ̂_x².
    drift = (sums.scatter - (n - 1) * d * noise_variance) / ((n - 1).sum() * d)

    def stein(estimates: Array, divergence: Array) -> Array:
        slope = (2 * divergence - d) / n  # the derivative of the risk in σ_x²
        out: Array = np.square(estimates - sums.means).sum(1) + noise_variance * slope + drift * slope.sum()
        return out

    share = n / n.sum()
    pooled = np.broadcast_to(share @ sums.means, sums.means.shape)
    risks = {
        "local": stein(sums.means, np.full(len(n), float(d))),
        "global": stein(pooled, d * share),
        "shrunk": stein(*_shrunk_means(sums, noise, prior_variance)),
    }
    few = 2 * sums.clients // 3
    grouped = {k: stein(*_clustered_means(sums, noise_variance, k, seed)) for k in clusters if k < few}
    kept = min(grouped, key=lambda k: float(grouped[k].mean()), default=0)
    if kept:
        risks["clustered"] = grouped[kept]
    floor = d * noise_variance / float(n.sum())
    return risks, {"between": prior_variance, "within": noise_variance, "floor": floor, "clusters": kept}


def _shrunk_means(sums: ClientSums, noise: Array, prior_variance: float) -> tuple[Array, Array]:
    """The estimates of GaussianMeans and their divergence, in which σ̂_θ² depends on the client's own mean too.

    σ̂_θ² solves Σ_i p_i ‖X̄_i − μ̂‖² = (m−1)d with p_i = 1/(σ_θ² + v_i), so its gradient is 2 p_i (X̄_i − μ̂) over
    Σ_j p_j² ‖X̄_j − μ̂‖²; where σ̂_θ² is 0, its gradient is 0."""

    def estimate(variance: float) -> Array:
        best = combine(noise, variance)
        out: Array = best.own[:, None] * sums.means + (1 - best.own)[:, None] * (best.shares @ sums.means)
        return out

    best = combine(noise, prior_variance)
    divergence = sums.dimension * (best.own + (1 - best.own) * best.shares)
    if prior_variance > 0:
        step = 1e-4 * prior_variance
        precision = 1 / (prior_variance + noise)
        away = sums.means - best.shares @ sums.means
        gradient = 2 * precision[:, None] * away / (precision**2 @ np.square(away).sum(1))
        moved = (estimate(prior_variance + step) - estimate(prior_variance - step)) / (2 * step)
        divergence = divergence + (moved * gradient).sum(1)
    return estimate(prior_variance), divergence


def _clustered_means(sums: ClientSums, noise_variance: float, k: int, seed: int) -> tuple[Array, Array]:
    """The posterior mean over k centres, and its divergence: the posterior covariance over v (Tweedie).

    Each client is judged by centres fitted to other clients (three folds), since its own would fit its noise."""
    estimates, divergence = np.empty_like(sums.means), np.empty(sums.clients)
    for train, test in _folds(sums.clients, seed):
        seen = MixtureMeans(k, noise_variance=noise_variance, max_iter=100, tol=0.01, n_init=3, random_state=seed)
        seen.fit_sums(sums.take(train))
        prior = (seen.proportions_, seen.centers_)
        w = MixtureMeans(k, noise_variance=noise_variance, prior=prior).fit_sums(sums.take(test)).weights_
        mean = w @ seen.centers_
        spread = (w * np.square(seen.centers_ - mean[:, None]).sum(2)).sum(1)
        estimates[test] = mean
        divergence[test] = spread * sums.counts[test] / max(noise_variance, 1e-300)
    return estimates, divergence


def _folds(clients: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """(train, test) clients of three random folds."""
    fold = np.random.default_rng(seed).permutation(clients) % _FOLDS
    for f in range(_FOLDS):
        yield np.flatnonzero(fold != f), np.flatnonzero(fold == f)


def read_counts(counts: Any) -> Any:
    """Counts as CSR without stored zeros. Users with fewer than two tokens show no noise and are dropped."""
    if isinstance(counts, str | Path) or (isinstance(counts, DataFrame) and set(COLUMNS) & set(counts.columns)):
        counts = histogram_counts.read_counts(counts).counts  # files and frames have one row per user and token
    table: Any = counts if issparse(counts) else finite("counts", counts)
    if table.ndim != 2 or 0 in table.shape:
        raise DataError(
            f"counts must be a (users, tokens) table with rows and columns; got shape {table.shape}. Reshape it."
        )
    table = csr_array(table.astype(np.float64))  # first, since small types overflow when repeated entries are added up
    table.sum_duplicates()
    table.eliminate_zeros()
    if not np.isfinite(table.data).all() or (table.data < 0).any() or (table.data % 1).any():
        raise DataError("counts must be whole numbers >= 0; got other values. Pass counts, not frequencies.")
    kept = table[np.flatnonzero(np.asarray(table.sum(1)).ravel() >= 2)]
    if kept.shape[0] < 3:
        raise DataError(
            f"advise needs three or more users with at least two tokens (or trials); got {kept.shape[0]}. "
            "Add users, or collect more tokens from them."
        )
    kept = csr_array(kept)
    if kept.nnz < 2**31:  # scikit-learn's k-means takes 32-bit indices only
        kept.indices, kept.indptr = kept.indices.astype(np.int32), kept.indptr.astype(np.int32)
    return kept


def counts_risks(table: Any, clusters: tuple[int, ...], seed: int) -> tuple[dict[str, Array], dict[str, float]]:
    m = table.shape[0]
    n = np.asarray(table.sum(1)).ravel()
    q: Any = csr_array(table / n[:, None])
    own = np.asarray((q * q).sum(1)).ravel()
    noise = (1 - own) / (n - 1)
    pooled_counts, mean = np.asarray(table.sum(0)).ravel(), np.asarray(q.mean(0)).ravel()

    def gap(total: Array, weight: Array, size: float) -> Array:
        """‖q_i − c_i‖² for the centre c_i = (total − weight_i q_i)/(size − weight_i), client i left out."""
        cross, square = q @ total, float(total @ total)
        left = size - weight
        inner = (cross - weight * own) / left
        out: Array = own - 2 * inner + (square - 2 * weight * cross + weight**2 * own) / left**2
        return out

    to_mean = gap(mean * m, np.ones(m), float(m))
    between = max(0.0, (float(own.sum()) - m * float(mean @ mean)) / (m - 1) - float(noise.mean()))
    # The variance of one token; noise.mean() · n.mean() is far from it where n differs.
    within = float((noise * n).mean())
    weight = _left_out_weights(own, m * (q @ mean), float(mean @ mean) * m**2, noise, n)
    risks = {
        "local": noise,
        "global": gap(pooled_counts, n, float(n.sum())) - noise,
        "shrunk": weight**2 * noise + (1 - weight) ** 2 * (to_mean - noise),
    }
    most = (float(np.median(n)) + 1) / 2  # k multinomials are identifiable from n >= 2k − 1 tokens per user
    grouped = {k: _clustered_counts(table, n, own, noise, k, seed) for k in clusters if k <= most and k < 2 * m // 3}
    kept = min(grouped, key=lambda k: float(grouped[k].mean()), default=0)
    if kept:
        risks["clustered"] = grouped[kept]
    return risks, {"between": between, "within": within, "floor": within / float(n.sum()), "clusters": kept}


def _left_out_weights(own: Array, cross: Array, square: float, noise: Array, n: Array) -> Array:
    """Each client's own weight, between/(between + within/n_i), with both variances from the other clients."""
    m = len(n)
    spread = (own.sum() - own - (square - 2 * cross + own) / (m - 1)) / (m - 2)
    between = np.maximum(spread - (noise.sum() - noise) / (m - 1), 0.0)
    within = ((noise * n).sum() - noise * n) / (m - 1)
    total = between + within / n
    out: Array = np.divide(between, total, out=np.zeros(m), where=total > 0)
    return out


def _clustered_counts(table: Any, n: Array, own: Array, noise: Array, k: int, seed: int) -> Array:
    """Mixture of k multinomials by EM from k-means; the estimate is the posterior mean of the cluster profiles.

    Each client is judged by profiles fitted to other clients (three folds), since its own would fit its noise."""
    risk = np.empty(len(n))
    for train, test in _folds(len(n), seed):
        profiles, proportions, _ = multinomial_mixture(table[train], n[train], k, seed)
        risk[test] = _profile_risk(table[test], n[test], profiles, proportions)
    out: Array = risk + own - noise  # own − noise estimates ‖p_i‖² without bias
    return out


def _profile_risk(table: Any, n: Array, profiles: Array, proportions: Array) -> Array:
    """Unbiased E‖c‖² − 2⟨c, p⟩ for c the posterior mean of the profiles, every token predicted from the others."""
    k = len(profiles)
    log_profiles = np.log(profiles)
    joint = np.log(proportions) + table @ log_profiles.T
    square = profiles @ profiles.T
    user = np.repeat(np.arange(len(n)), np.diff(table.indptr))
    risk = np.zeros(len(n))
    for part in np.array_split(np.arange(table.nnz), max(1, table.nnz * k // 4_000_000)):
        token, who = table.indices[part], user[part]
        left: Array = softmax(joint[who] - log_profiles[:, token].T, axis=1)
        predicted = (left * profiles[:, token].T).sum(1)
        length = ((left @ square) * left).sum(1)
        risk += np.bincount(who, table.data[part] * (length - 2 * predicted), len(n))
    out: Array = risk / n
    return out


def multinomial_mixture(table: Any, n: Array, k: int, seed: int, rounds: int = 50) -> tuple[Array, Array, Array]:
    """A mixture of k multinomials by EM: the profiles, their proportions, and every row's responsibilities."""
    start = kmeans(csr_array(table / n[:, None]), k, restarts=3, seed=seed)
    w = np.eye(k)[start.labels_]
    floor = np.asarray(table.sum(0)).ravel() / table.sum() * 1e-3 + 1e-12
    profiles, proportions = np.empty((k, table.shape[1])), np.full(k, 1 / k)
    for _ in range(rounds):
        before = w
        profiles = (table.T @ w).T + floor  # an empty cluster, or one with a single token, keeps a trace of all users
        profiles /= profiles.sum(1, keepdims=True)
        proportions = (w.sum(0) + 1e-9) / (w.sum() + k * 1e-9)
        w = softmax(np.log(proportions) + table @ np.log(profiles).T, axis=1)
        if np.abs(w - before).max() < 1e-4:
            break
    return profiles, proportions, w
