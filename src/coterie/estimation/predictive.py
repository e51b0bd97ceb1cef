"""Held-out loss of four ways to fit regressions on clients, by cross-validation inside every client.

The clustered way is Algorithm 7 (L-7) of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Targets are (N, c): one column for the linear and logistic families, an indicator for each class for "classes", which are
fitted by least squares column by column and judged by the squared error over all columns (the Brier score).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import expit, softmax
from sklearn.decomposition import PCA

from coterie.estimation.checks import Array, Ints
from coterie.estimation.regression.grouped import Grouped, group_rows
from coterie.estimation.regression.linear import Free, expect_maximise, posterior_means, start_population
from coterie.estimation.regression.logistic import LogisticModels
from coterie.estimation.regression.newton import find_modes, make_blocks
from coterie.estimation.regression.rotated import rotate
from coterie.kmeans import kmeans

ALONE = 1.0  # The penalty of a client's fit on its own rows, the default of scikit-learn.


def prepared(X: Array, components: int, seed: int) -> Callable[[Array], Array]:
    """A function, learned on X, that brings the columns of X or of new rows to one scale, keeps at most `components` of
    them, and adds a constant.

    Columns are centred; more than `components` give way to their leading principal components (kept at their own scale,
    as the same penalty on the raw columns would); else each is divided by its deviation."""
    mean = X.mean(0)
    if X.shape[1] > components:
        found = PCA(min(components, len(X)), svd_solver="randomized", random_state=seed).fit(X)
        scale = np.sqrt(max(float(found.explained_variance_.mean()), 1e-300))
        project: Callable[[Array], Array] = lambda rows: (rows - mean) @ found.components_.T / scale  # noqa: E731
    else:
        deviation = X.std(0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        project = lambda rows: (rows - mean) / deviation  # noqa: E731
    return lambda rows: np.hstack([project(rows), np.ones((len(rows), 1))]).astype(np.float64)


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
        for name, theta in fit_methods(X[~test], y[~test], groups[~test], family, clusters, seed).items():
            losses[name][test] = new_losses(theta, X[test], y[test], groups[test], family)
    kept = min(clusters, key=lambda k: float(losses[f"clustered {k}"].mean()), default=0)
    out = {name: losses[name] for name in names[:3]}
    return ({**out, "clustered": losses[f"clustered {kept}"]} if kept else out), kept


def new_losses(theta: Array, X: Array, y: Array, groups: Ints, family: str) -> Array:
    """The loss of each row under its client's coefficients, `theta` (m, d, c)."""
    order = np.argsort(groups, kind="stable")
    cuts = np.searchsorted(groups[order], np.arange(1, len(theta)))
    score = np.empty(y.shape)
    for client, rows in enumerate(np.split(order, cuts)):
        score[rows] = X[rows] @ theta[client]
    return _loss(score, y, family)


def _folds(groups: Ints, folds: int, rng: np.random.Generator) -> Ints:
    """Deal every client's rows over the folds in random order, beginning with a random fold."""
    order = np.lexsort((rng.random(len(groups)), groups))
    _, counts = np.unique(groups, return_counts=True)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    offset = np.repeat(rng.integers(folds, size=len(counts)), counts)
    fold = np.empty(len(groups), dtype=np.int64)
    fold[order] = (np.arange(len(groups)) - starts + offset) % folds
    return fold


def _loss(score: Array, y: Array, family: str) -> Array:
    loss: Array = np.logaddexp(0.0, score) - y * score if family == "logistic" else np.square(y - score)
    out: Array = loss.sum(-1)
    return out


def fit_methods(
    X: Array, y: Array, groups: Ints, family: str, clusters: tuple[int, ...], seed: int
) -> dict[str, Array]:
    """Coefficients (m, d, c) of every client (numbered 0..m−1 in `groups`) under each method."""
    order = np.argsort(groups, kind="stable")
    train = replace(group_rows(X[order], y[order, 0], groups[order]), y=y[order])
    kind = _Logistic(train) if family == "logistic" else _Squares(train, family)
    m = len(train.counts)
    shrunk, noise = kind.shrunk()
    out = {"local": kind.local(), "global": np.tile(kind.pooled(np.ones(m)), (m, 1, 1)), "shrunk": shrunk}
    for k in clusters:
        out[f"clustered {k}"] = _mixture(kind, shrunk, noise, k, seed)
    return out


def _mixture(kind: _Logistic | _Squares, start: Array, noise: float, k: int, seed: int) -> Array:
    """L-7 by EM: w_il = softmax(log p_l − loss of model l on client i), models by weighted fits; θ_i = Σ_l w_il μ_l."""
    m = len(start)
    w = np.eye(k)[kmeans(start.reshape(m, -1), k, restarts=5, seed=seed).labels_]
    models = np.zeros((k, *start.shape[1:]))
    for _ in range(15):
        before = w
        models = np.stack([kind.pooled(share) for share in w.T])
        loss = np.stack([kind.losses(model) for model in models], axis=1)
        proportions = (w.sum(0) + 1e-9) / (m + k * 1e-9)
        w = softmax(np.log(proportions) - loss / (2 * noise), axis=1)
        if np.abs(w - before).max() < 1e-3:
            break
    out: Array = np.tensordot(w, models, axes=1)
    return out


class _Squares:
    """Least squares for every column of y, from each client's XᵀX, XᵀY and ‖Y‖²: rows are read once."""

    def __init__(self, train: Grouped, family: str) -> None:
        self.train, self.ridge = train, 1 / ALONE if family == "classes" else 0.0
        m, d = len(train.counts), train.X.shape[1]
        self.gram, self.cross = np.zeros((m, d, d)), np.zeros((m, d, train.y.shape[1]))
        for clients, X, y, _ in train.blocks():
            self.gram[clients], self.cross[clients] = X.swapaxes(1, 2) @ X, X.swapaxes(1, 2) @ y
        self.square = train.sums(np.square(train.y).sum(1))

    def local(self) -> Array:
        """Each client on its own rows. Classes have a ridge penalty, since clients often have fewer rows than columns."""
        if self.ridge:
            return np.asarray(np.linalg.solve(self.gram + self.ridge * np.eye(self.gram.shape[1]), self.cross))
        cuts = self.train.starts[1:]
        parts = zip(np.split(self.train.X, cuts), np.split(self.train.y, cuts), strict=True)
        return np.stack([np.linalg.lstsq(x, y)[0] for x, y in parts])

    def shrunk(self) -> tuple[Array, float]:
        """Empirical Bayes with one population for each column of y. Also returns the mean noise variance."""
        data, coefficients, noise = rotate(self.train), [], []
        for j in range(self.train.y.shape[1]):
            column = data.column(j)
            now, _ = expect_maximise(column, start_population(column), Free(True, True, True), 20, 1e-4)
            coefficients.append(posterior_means(column, now))
            noise.append(now.noise_variance)
        return np.stack(coefficients, axis=-1), float(np.mean(noise))

    def pooled(self, weight: Array) -> Array:
        """One model for all, in which client i has the weight weight_i."""
        gram, cross = np.tensordot(weight, self.gram, axes=1), np.tensordot(weight, self.cross, axes=1)
        return np.asarray(np.linalg.lstsq(gram, cross)[0])

    def losses(self, model: Array) -> Array:
        """‖Y_i − X_i θ‖² of every client."""
        out: Array = self.square + ((self.gram @ model - 2 * self.cross) * model).sum((1, 2))
        return out


class _Logistic:
    """Two classes, judged by the log loss."""

    def __init__(self, train: Grouped) -> None:
        self.train, self.y, self.owner = train, train.y[:, 0], train.owner

    def local(self) -> Array:
        """Penalised maximum likelihood, which exists even for a client with one class only."""
        m, d = len(self.train.counts), self.train.X.shape[1]
        theta = np.empty((m, d, 1))
        for block in make_blocks(replace(self.train, y=self.y)):
            theta[block.clients, :, 0] = block.spread(find_modes(block, np.zeros(d), ALONE))
        return theta

    def shrunk(self) -> tuple[Array, float]:
        if np.ptp(self.y) == 0:  # All rows of a rare label are held out, so nothing tells the clients apart.
            m = len(self.train.counts)
            return np.tile(self.pooled(np.ones(m)), (m, 1, 1)), 0.5
        return np.asarray(LogisticModels().fit(self.train.X, self.y, self.owner).coef_[..., None]), 0.5

    def pooled(self, weight: Array) -> Array:
        X, weight = self.train.X, weight[self.owner]
        theta: Array = np.zeros(X.shape[1])
        for _ in range(30):
            chance = expit(X @ theta)
            gradient = X.T @ (weight * (chance - self.y)) + theta / ALONE
            curvature = X.T @ ((weight * chance * (1 - chance))[:, None] * X) + np.eye(len(theta)) / ALONE
            step: Array = np.asarray(np.linalg.solve(curvature, gradient), dtype=np.float64)
            theta = theta - step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-300))
            if np.abs(step).max() < 1e-8:
                break
        return theta[:, None]

    def losses(self, model: Array) -> Array:
        return self.train.sums(_loss(self.train.X @ model, self.train.y, "logistic"))
