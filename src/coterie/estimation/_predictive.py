"""Held-out loss of four ways to fit regressions on clients, by cross-validation inside every client."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit, softmax
from sklearn.cluster import KMeans

from coterie.estimation._check import Array, Ints
from coterie.estimation._grouped import Grouped, group_rows
from coterie.estimation.linear import LinearModels
from coterie.estimation.logistic import LogisticModels

ALONE = 1.0  # prior variance of a client's own logistic fit: scikit-learn's default penalty


def row_losses(
    X: Array, y: Array, groups: Ints, family: str, clusters: tuple[int, ...], folds: int, seed: int
) -> tuple[dict[str, Array], int]:
    """The held-out loss of every row under each method, squared error or log loss, and the number of clusters kept."""
    rng = np.random.default_rng(seed)
    fold = _folds(groups, folds, rng)
    names = ["local", "global", "shrunk", *(f"clustered {k}" for k in clusters)]
    losses = {name: np.full(len(y), np.nan) for name in names}
    for f in range(folds):
        test = fold == f
        train = group_rows(X[~test], y[~test], groups[~test])
        for name, theta in _fits(train, family, clusters, seed).items():
            score = np.einsum("nd,nd->n", X[test], theta[np.searchsorted(train.clients, groups[test])])
            losses[name][test] = _loss(score, y[test], family)
    kept = min(clusters, key=lambda k: float(losses[f"clustered {k}"].mean()), default=0)
    out = {name: losses[name] for name in names[:3]}
    return ({**out, "clustered": losses[f"clustered {kept}"]} if kept else out), kept


def _folds(groups: Ints, folds: int, rng: np.random.Generator) -> Ints:
    """Deal every client's rows over the folds in random order; a client's first fold is random too."""
    order = np.lexsort((rng.random(len(groups)), groups))
    _, counts = np.unique(groups, return_counts=True)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    offset = np.repeat(rng.integers(folds, size=len(counts)), counts)
    fold = np.empty(len(groups), dtype=np.int64)
    fold[order] = (np.arange(len(groups)) - starts + offset) % folds
    return fold


def _loss(score: Array, y: Array, family: str) -> Array:
    loss: Array = np.square(y - score) if family == "linear" else np.logaddexp(0.0, score) - y * score
    return loss


def _fits(train: Grouped, family: str, clusters: tuple[int, ...], seed: int) -> dict[str, Array]:
    """Coefficients (m, d) of every client under each method."""
    m, owner = len(train.counts), train.owner
    if family == "linear":
        shrunk = LinearModels().fit(train.X, train.y, owner)
        local = np.stack([np.linalg.lstsq(x, t)[0] for x, t in _clients(train)])
        fit: Callable[[Array], Array] = lambda w: _weighted_least_squares(train, w)  # noqa: E731
        noise = shrunk.noise_variance_
    else:
        shrunk = LogisticModels().fit(train.X, train.y, owner)
        local = LogisticModels(prior=(0.0, ALONE)).fit(train.X, train.y, owner).coef_
        fit, noise = lambda w: _weighted_logistic(train, w), 0.5
    out = {"local": local, "global": np.tile(fit(np.ones(len(train.y))), (m, 1)), "shrunk": shrunk.coef_}
    for k in clusters:
        out[f"clustered {k}"] = _regression_mixture(train, shrunk.coef_, fit, family, noise, k, seed)
    return out


def _clients(train: Grouped) -> list[tuple[Array, Array]]:
    cuts = train.starts[1:]
    return list(zip(np.split(train.X, cuts), np.split(train.y, cuts), strict=True))


def _regression_mixture(
    train: Grouped, start: Array, fit: Callable[[Array], Array], family: str, noise: float, k: int, seed: int
) -> Array:
    """L-7 by EM: w_il = softmax(log p_l − loss of model l on client i), models by weighted fits; θ_i = Σ_l w_il μ_l."""
    m, owner = len(train.counts), train.owner
    w = np.eye(k)[KMeans(k, n_init=5, random_state=seed).fit(start).labels_]
    models = np.zeros((k, train.X.shape[1]))
    for _ in range(15):
        before = w
        models = np.stack([fit(w[owner, cluster]) for cluster in range(k)])
        loss = np.stack([train.sums(_loss(train.X @ mu, train.y, family)) for mu in models], axis=1)
        proportions = (w.sum(0) + 1e-9) / (m + k * 1e-9)
        w = softmax(np.log(proportions) - loss / (2 * noise), axis=1)
        if np.abs(w - before).max() < 1e-3:
            break
    out: Array = w @ models
    return out


def _weighted_least_squares(train: Grouped, weight: Array) -> Array:
    scaled = weight[:, None] * train.X
    return np.asarray(np.linalg.lstsq(scaled.T @ train.X, scaled.T @ train.y)[0], dtype=np.float64)


def _weighted_logistic(train: Grouped, weight: Array) -> Array:
    theta: Array = np.zeros(train.X.shape[1])
    for _ in range(30):
        chance = expit(train.X @ theta)
        gradient = train.X.T @ (weight * (chance - train.y)) + theta / ALONE
        curvature = train.X.T @ ((weight * chance * (1 - chance))[:, None] * train.X) + np.eye(len(theta)) / ALONE
        step: Array = np.asarray(np.linalg.solve(curvature, gradient), dtype=np.float64)
        theta = theta - step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-300))
        if np.abs(step).max() < 1e-8:
            break
    return theta
