"""Personalised logistic regression under a Gaussian population.

Equation 20 and Algorithm 3 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Model: y_ij ~ Bernoulli(σ(x_ijᵀθ_i)), θ_i ~ N(μ, σ_θ² I). Symbols: θ_i `coef_`, μ `mean_`, σ_θ² `prior_variance_`.

`method="em"` is empirical Bayes: (μ, σ_θ²) maximise the marginal likelihood by expectation propagation,
which also gives every client's posterior mean and deviation, averaged over what σ_θ² may be. Laplace's approximation,
which looks at the mode only, and a variational average are badly wrong for binary data with few rows per client: σ_θ² is
too small, or grows without end. `coef_` are the modes (penalised maximum likelihood); their squared error was at most
7% above the posterior means', about 2% or less with four features or more.
`method="gradient"` is Algorithm 3 with its sign repaired (erratum E12), whose objective is unbounded below (E19).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin

from coterie.errors import DataError
from coterie.estimation.checks import Array, choice, confidence, fitted
from coterie.estimation.regression import gradient
from coterie.estimation.regression.expectation_propagation import Population, Search, client_posteriors, weak_precision
from coterie.estimation.regression.grouped import group_rows, known_labels
from coterie.estimation.regression.linear import Free, Prior, known_prior, scores
from coterie.estimation.regression.newton import Block, make_blocks
from coterie.settings import whole_number


class LogisticModels(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One logistic model per client, all shrunk towards the population's.

    Parameters
    ----------
    prior : "estimate", or a known (mean, variance).
    method : "em" or "gradient" (Algorithm 3, `max_iter` rounds).
    fit_intercept : add a constant feature, under the same prior as the others.
    learning_rate : of method="gradient"; None for safe steps.
    max_iter, tol : rounds (default 150 for EM, 500 for the gradient), and the relative error of σ_θ² at which EM stops.

    Attributes
    ----------
    clients_ (m,) sorted names, classes_ (2,), coef_ (m, d), intercept_ (m,), mean_ (d,), mean_intercept_,
    prior_variance_, weights_ (m,): the share of a client's prior variance that its own data removes, posterior_mean_ (m, d),
    standard_errors_ (m, d): posterior deviations, client_risk_ (m,): E‖coef_i − θ_i‖², risk_ its mean, n_iter_.
    """

    def __init__(
        self,
        prior: Prior = "estimate",
        method: str = "em",
        fit_intercept: bool = False,
        learning_rate: float | None = None,
        max_iter: int | None = None,
        tol: float = 0.01,
    ) -> None:
        self.prior = prior
        self.method = method
        self.fit_intercept = fit_intercept
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike) -> LogisticModels:
        """Rows `X` (N, d), labels `y` (N,) of two values, and the client of each row in `groups` (N,)."""
        choice("method", self.method, ("em", "gradient"))
        self.classes_, binary = np.unique(known_labels(y), return_inverse=True)
        if len(self.classes_) != 2:
            raise DataError(
                f"y must hold exactly two labels; got {len(self.classes_)}: {self.classes_[:5].tolist()}. "
                "Keep two of them, or join labels."
            )
        rows = group_rows(X, binary.ravel(), groups, self.fit_intercept)
        d, clients = rows.X.shape[1], len(rows.counts)
        known = known_prior(self.prior, d)
        if known is None and clients < 2:
            raise DataError("The population needs two or more clients; got 1. Pass a known prior, or add clients.")
        free = Free(mean=known is None, prior=known is None, noise=False)
        square = float(np.square(rows.X).sum(1).mean())
        mean, variance = known if known is not None else (np.zeros(d), 1 / square if square > 0 else 1.0)
        blocks = make_blocks(rows)
        now, theta = Population(mean, variance, np.zeros((d, d))), None
        populations = [(1.0, now)]
        if self.method == "gradient":
            self.n_iter_ = 500 if self.max_iter is None else whole_number("max_iter", self.max_iter)
            state = gradient.State(np.tile(mean, (clients, 1)), mean, variance)
            state = gradient.logistic(rows, state, free, self.n_iter_, self.learning_rate)
            theta = state.theta
            populations = [(1.0, replace(now, mean=state.mean, prior_variance=state.prior_variance))]
        elif known is None:
            rounds = 150 if self.max_iter is None else whole_number("max_iter", self.max_iter)
            search = Search(blocks, now, rounds, weak_precision(rows.X))
            search.run(self.tol)
            self.n_iter_, populations = search.rounds, search.spread()
        else:
            self.n_iter_ = 1
        self.clients_ = rows.clients
        self._finish(blocks, populations, clients, theta)
        return self

    def _finish(
        self, blocks: list[Block], populations: list[tuple[float, Population]], clients: int, theta: Array | None
    ) -> None:
        (_, now), d = populations[0], len(populations[0][1].mean)
        modes, away = np.empty((clients, d)), np.empty((clients, d))
        means, squares = np.zeros((clients, d)), np.zeros((clients, d))
        for block in blocks:
            for weight, population in reversed(populations):  # the most probable one last, so that its fit stays
                mode, mean, variance, left = client_posteriors(block, population)
                means[block.clients] += weight * mean
                squares[block.clients] += weight * (np.square(mean - now.mean) + variance)
            modes[block.clients], away[block.clients] = mode, left
        theta = modes if theta is None else theta
        variance = squares - np.square(means - now.mean)
        self.weights_ = 1 - away.mean(1)
        self.client_risk_ = (variance + np.square(theta - means)).sum(1)
        self.risk_ = float(self.client_risk_.mean())
        self.prior_variance_ = now.prior_variance
        self._theta, self._population = theta, now.mean
        split = d - 1 if self.fit_intercept else d
        self.coef_, self.mean_, self.posterior_mean_ = theta[:, :split], now.mean[:split], means[:, :split]
        self.intercept_ = theta[:, split] if self.fit_intercept else np.zeros(clients)
        self.mean_intercept_ = float(now.mean[split]) if self.fit_intercept else 0.0
        self.standard_errors_ = np.sqrt(variance[:, :split])

    def decision_function(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """Log-odds of the second class; clients never seen get the population mean's."""
        fitted(self, "coef_")
        return scores(X, groups, self.clients_, self._theta, self._population, self.fit_intercept)

    def predict_proba(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """(N, 2) probabilities of `classes_`."""
        chance = expit(self.decision_function(X, groups))
        return np.stack([1 - chance, chance], axis=1)

    def predict(self, X: ArrayLike, groups: ArrayLike) -> Array:
        above = self.decision_function(X, groups) > 0
        labels: Array = self.classes_[above.astype(int)]
        return labels

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) around posterior_mean_, not the mode: posteriors of binary data are skew."""
        fitted(self, "coef_")
        reach = float(norm.ppf(0.5 + confidence(level) / 2)) * self.standard_errors_
        return self.posterior_mean_ - reach, self.posterior_mean_ + reach

    def score(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike) -> float:
        """Accuracy of predict."""
        return float((self.predict(X, groups) == np.asarray(y)).mean())
