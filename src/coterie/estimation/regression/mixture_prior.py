"""Personalised regression under a population of several groups: a Gaussian-mixture prior on the clients' coefficients.

Algorithm 4 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771), repaired (L-3): the pull is −∂ log Σ_l p_l N(θ; μ_l,
σ_l² I) with its proper signs (erratum E14), the server broadcasts p, μ and σ², and σ_l² has a floor, without which the
objective falls without bound (E19).

Symbols: p_l `proportions_`, μ_l `centers_`, σ_l² `center_variances_`, θ_i `coef_`, r_il `weights_`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import type_of_target

from coterie.base.annotations import check_settings
from coterie.base.arguments import Count, Positive, finite
from coterie.base.arguments import labels as one_column
from coterie.base.deprecated import renamed
from coterie.base.kmeans import kmeans
from coterie.errors import ConfigError
from coterie.estimation.conventions import Array, Ints
from coterie.estimation.regression.client_models import ClientModels
from coterie.estimation.regression.grouped import Grouped, two_labels


def responsibilities(theta: Array, proportions: Array, centers: Array, variances: Array) -> Array:
    """r_il = softmax_l(log p_l − (d/2) log 2πσ_l² − ‖θ_i − μ_l‖²/(2σ_l²)), (m, k)."""
    square = np.square(theta[:, None] - centers).sum(2)
    with np.errstate(divide="ignore"):
        log = np.log(proportions) - 0.5 * theta.shape[1] * np.log(2 * np.pi * variances) - square / (2 * variances)
    return np.asarray(softmax(log, axis=1))


def prior_gradient(theta: Array, proportions: Array, centers: Array, variances: Array) -> Array:
    """Σ_l r_il (θ_i − μ_l)/σ_l², the gradient of −log Σ_l p_l N(θ_i; μ_l, σ_l² I)."""
    pull = responsibilities(theta, proportions, centers, variances) / variances
    return np.asarray(pull.sum(1, keepdims=True) * theta - pull @ centers)


@renamed
@dataclass(eq=False, repr=False)
class MixtureModels(ClientModels, BaseEstimator):  # type: ignore[misc]
    """One linear or logistic model per client, drawn towards the nearest of `clusters` groups of models.

    Parameters
    ----------
    clusters : k, at most the number of clients.
    task : "regression" (squared loss), "classification" (two labels), or None: two distinct labels or whole numbers are
        classes.
    fit_intercept : give every client a constant of its own.
    rounds, steps : of the server, and of a client's gradient between two of them.
    floor : the least σ_l², as a share of the variance of the clients' first coefficients.
    noise_variance : σ_x² of a regression; None takes the residual variance of the pooled fit.
    random_state : of the clustering.

    Attributes
    ----------
    clients_, coef_ (m, d), intercept_ (m,), labels_ (m,), weights_ (m, k), proportions_ (k,), centers_ (k, p),
    center_variances_ (k,), n_features_in_, feature_names_in_. Clients never seen get Σ_l p_l μ_l. Coefficients inside are
    measured in units of the columns, centers_ as coef_. The fit is a mode and not a posterior, so there are no intervals.
    """

    clusters: int = 2
    task: Literal["regression", "classification"] | None = None
    fit_intercept: bool = True
    rounds: Count = 50
    steps: Count = 20
    floor: Positive = 0.01
    noise_variance: float | None = None
    random_state: int = 0

    def _target(self, y: Any, reset: bool) -> Array:
        y = one_column("y", y)
        classes = self.task == "classification" or (self.task is None and type_of_target(y) == "binary")
        self.__dict__.pop("classes_", None)
        if not classes:
            return finite("y", y)
        self.classes_, second = two_labels(y)
        return second

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Rows, targets and clients as in `LinearModels`."""
        check_settings(self)
        rows, _ = self._rows(X, y, groups, sample_weight, scale=False)
        if self.clusters > len(rows.counts):
            raise ConfigError(
                f"clusters must be at most the number of clients, {len(rows.counts)}; got {self.clusters}. Lower it."
            )
        self.clients_, size = rows.clients, rows.sizes
        theta = self._alternate(replace(rows, X=rows.X / size))
        self.centers_ = self._centers / size
        mean = self.proportions_ @ self.centers_
        self._keep(theta / size, mean, np.full(theta.shape, np.nan))
        return self

    def _alternate(self, rows: Grouped) -> Array:
        """Algorithm 4: the server clusters the θ_i; every client takes `steps` gradient steps on loss plus prior."""
        noise = self._noise(rows)
        theta = self._first(rows, noise)
        floor = max(self.floor * float(theta.var(0).mean()), 1e-8)
        curvature = self._curvature(rows, noise)
        for number in range(self.rounds):
            self._cluster(theta, floor, number)
            prior = (self.proportions_, self._centers, self.center_variances_)
            eta = 1 / (curvature + 1 / self.center_variances_.min())[:, None]
            for _ in range(self.steps):
                theta = theta - eta * (self._loss_gradient(rows, theta, noise) + prior_gradient(theta, *prior))
        self.weights_ = responsibilities(theta, *prior)
        self.labels_: Ints = self.weights_.argmax(1)
        return theta

    def _cluster(self, theta: Array, floor: float, number: int) -> None:
        """p_l = |S_l|/m, μ_l the mean, σ_l² = max(floor, mean squared distance per coordinate)."""
        means = kmeans(theta, self.clusters, restarts=5, seed=self.random_state + number)
        count = np.bincount(means.labels_, minlength=self.clusters)
        square = np.square(theta - means.cluster_centers_[means.labels_]).sum(1)
        spread = np.bincount(means.labels_, square, self.clusters) / np.maximum(count * theta.shape[1], 1)
        self.proportions_, self._centers = count / len(theta), np.asarray(means.cluster_centers_, dtype=np.float64)
        self.center_variances_ = np.maximum(spread, floor)

    def _weight(self, rows: Grouped) -> Array:
        return np.ones(len(rows.y)) if rows.weight is None else rows.weight

    def _noise(self, rows: Grouped) -> float:
        if hasattr(self, "classes_"):
            return 1.0
        if self.noise_variance is not None:
            return float(self.noise_variance)
        weight = np.sqrt(self._weight(rows))[:, None]
        left = rows.y - rows.X @ np.linalg.lstsq(weight * rows.X, weight[:, 0] * rows.y)[0]
        return max(float(np.average(np.square(left), weights=rows.weight)), 1e-12)

    def _curvature(self, rows: Grouped, noise: float) -> Array:
        """A bound on the second derivative of each client's loss: Σ_j w_j‖x_j‖²/σ_x², a quarter of it for labels."""
        return rows.sums(self._weight(rows) * np.square(rows.X).sum(1)) * (
            0.25 if hasattr(self, "classes_") else 1 / noise
        )

    def _loss_gradient(self, rows: Grouped, theta: Array, noise: float) -> Array:
        score = np.einsum("nd,nd->n", rows.X, theta[rows.owner])
        made = expit(score) if hasattr(self, "classes_") else score
        return rows.sums((self._weight(rows) * (made - rows.y) / noise)[:, None] * rows.X)

    def _first(self, rows: Grouped, noise: float) -> Array:
        """Every client's own fit under a weak common prior around the pooled one, by many gradient steps."""
        eta = 1 / (self._curvature(rows, noise) + 1)[:, None]
        theta = np.zeros((len(rows.counts), rows.X.shape[1]))
        for _ in range(20 * self.steps):
            theta = theta - eta * (self._loss_gradient(rows, theta, noise) + 0.1 * theta)
        return theta
