"""Unbiased estimates of every client's risk, E‖θ̂_i − θ_i‖², without knowing θ_i: one column per way to estimate.

Means: Stein's identity, risk_i = ‖θ̂_i − X̄_i‖² − d v_i + 2 v_i div_i θ̂_i for X̄_i ~ N(θ_i, v_i I).
Counts: with q_i = Z_i/n_i and noise_i = (1 − ‖q_i‖²)/(n_i − 1), the unbiased estimate of E‖q_i − p_i‖², any weights
a and
centre c that do not use client i have risk a² noise_i + (1−a)² (‖q_i − c‖² − noise_i). A cluster's centre depends on
client
i's counts, so there each token is left out in turn: E⟨p_i, g(Z_i without a token)⟩ = E[g_t], t the token left out.
Unbiased estimates can be negative; averaged over clients they are cut off at "floor", the risk of pooling equal
clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from scipy.special import softmax
from sklearn.cluster import KMeans

from coterie.estimation._check import Array, ClientSums, finite
from coterie.estimation.gaussian import between_variance, combine
from coterie.estimation.mixture import MixtureMeans

_FOLDS = 3


def means_risks(sums: ClientSums, clusters: tuple[int, ...], seed: int) -> tuple[dict[str, Array], dict[str, float]]:
    d = sums.dimension
    noise_variance = sums.pooled_variance()
    noise = noise_variance / sums.counts
    prior_variance = between_variance(sums, noise_variance)

    def stein(estimates: Array, divergence: Array) -> Array:
        out: Array = np.square(estimates - sums.means).sum(1) - d * noise + 2 * noise * divergence
        return out

    share = sums.counts / sums.counts.sum()
    best = combine(noise, prior_variance)
    shrunk = best.own[:, None] * sums.means + (1 - best.own)[:, None] * (best.shares @ sums.means)
    pooled = np.broadcast_to(share @ sums.means, sums.means.shape)
    risks = {
        "local": d * noise,
        "global": stein(pooled, d * share),
        "shrunk": stein(shrunk, d * (best.own + (1 - best.own) * best.shares)),
    }
    grouped = {k: _clustered_means(sums, noise, k, seed, stein) for k in clusters if k < sums.clients}
    kept = min(grouped, key=lambda k: float(grouped[k].mean()), default=0)
    if kept:
        risks["clustered"] = grouped[kept]
    floor = d * noise_variance / float(sums.counts.sum())
    return risks, {"between": prior_variance, "within": noise_variance, "floor": floor, "clusters": kept}


def _clustered_means(
    sums: ClientSums, noise: Array, k: int, seed: int, stein: Callable[[Array, Array], Array]
) -> Array:
    """The posterior mean over k centres; its derivative is the posterior covariance over v (Tweedie), plus the own
    share."""
    model = MixtureMeans(k, max_iter=100, restarts=3, seed=seed).fit_sums(sums)
    w, mu = model.weights_, model.centers_
    estimates = w @ mu
    covariance = w @ np.square(mu).sum(1) - np.square(estimates).sum(1)
    safe = np.maximum(noise, 1e-300)[:, None]
    share = (w**2 / safe / np.maximum((w / safe).sum(0), 1e-300)).sum(1)
    return stein(estimates, covariance / safe[:, 0] + sums.dimension * share)


def read_counts(counts: Any) -> Any:
    """Counts as CSR without stored zeros, users with fewer than two tokens dropped: they cannot show their noise."""
    table: Any = counts if issparse(counts) else finite("counts", counts)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"counts must be a (users, tokens) table; got shape {table.shape}.")
    table = csr_array(table, dtype=np.float64)
    table.sum_duplicates()
    table.eliminate_zeros()
    if not np.isfinite(table.data).all() or (table.data < 0).any() or (table.data % 1).any():
        raise ValueError("counts must be whole numbers >= 0; got others. Pass counts, not frequencies.")
    kept = table[np.flatnonzero(np.asarray(table.sum(1)).ravel() >= 2)]
    if kept.shape[0] < 3:
        raise ValueError(f"advise needs three or more users with at least two tokens (or trials); got {kept.shape[0]}.")
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
    between = max(0.0, float(((to_mean - noise) * (m - 1) / m).mean()))
    within = float((noise * n).mean())  # one token's variance; noise.mean() · n.mean() is far from it for ragged n
    weight = between / (between + within / n) if between > 0 else np.zeros(m)
    risks = {
        "local": noise,
        "global": gap(pooled_counts, n, float(n.sum())) - noise,
        "shrunk": weight**2 * noise + (1 - weight) ** 2 * (to_mean - noise),
    }
    most = (float(np.median(n)) + 1) / 2  # k multinomials are identifiable from n >= 2k − 1 tokens a user
    grouped = {k: _clustered_counts(table, n, own, noise, k, seed) for k in clusters if k <= most and k < 2 * m // 3}
    kept = min(grouped, key=lambda k: float(grouped[k].mean()), default=0)
    if kept:
        risks["clustered"] = grouped[kept]
    return risks, {"between": between, "within": within, "floor": within / float(n.sum()), "clusters": kept}


def _clustered_counts(table: Any, n: Array, own: Array, noise: Array, k: int, seed: int) -> Array:
    """Mixture of k multinomials by EM from k-means; the estimate is the posterior mean of the cluster profiles.

    A client is judged with profiles fitted to other clients (three folds): profiles that have seen it fit its noise."""
    fold = np.random.default_rng(seed).permutation(len(n)) % _FOLDS
    risk = np.empty(len(n))
    for f in range(_FOLDS):
        train, test = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        profiles, proportions, _ = _multinomial_mixture(table[train], n[train], k, seed)
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


def _multinomial_mixture(table: Any, n: Array, k: int, seed: int, rounds: int = 50) -> tuple[Array, Array, Array]:
    start = KMeans(k, n_init=3, random_state=seed).fit(csr_array(table / n[:, None]))
    w = np.eye(k)[start.labels_]
    floor = np.asarray(table.sum(0)).ravel() / table.sum() * 1e-3 + 1e-12
    profiles, proportions = np.empty((k, table.shape[1])), np.full(k, 1 / k)
    for _ in range(rounds):
        before = w
        profiles = (table.T @ w).T + floor  # an empty or one-token cluster keeps a trace of the whole
        profiles /= profiles.sum(1, keepdims=True)
        proportions = (w.sum(0) + 1e-9) / (w.sum() + k * 1e-9)
        w = softmax(np.log(proportions) + table @ np.log(profiles).T, axis=1)
        if np.abs(w - before).max() < 1e-4:
            break
    return profiles, proportions, w
