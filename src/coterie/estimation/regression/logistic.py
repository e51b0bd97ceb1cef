"""Personalised logistic regression under a Gaussian population.

Equation 20 and Algorithm 3 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Model: y_ij ~ Bernoulli(σ(x_ijᵀθ_i)), θ_i ~ N(μ, Σ); the paper's Σ is σ_θ² I (covariance_type="spherical"). Symbols: θ_i
`coef_`, μ `mean_`, Σ `prior_covariance_`.

`method="em"` is empirical Bayes: (μ, Σ) maximise the marginal likelihood by expectation propagation,
which also gives every client's posterior mean and deviation, averaged over the possible values of the prior's variances.
Laplace's approximation, which uses the mode only, and a variational average are badly wrong for binary data with few
rows per client: σ_θ² is too small, or grows without bound. `coef_` are the modes (penalised maximum likelihood); their
squared error was at most 7% above the posterior means', about 2% or less with four features or more.
`method="gradient"` is Algorithm 3 with its sign repaired (erratum E12), whose objective is unbounded below (E19).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning

from coterie.base.arguments import labels as one_column
from coterie.errors import ConfigError, DataError
from coterie.estimation.conventions import Array, Ints
from coterie.estimation.regression.client_models import Fitted, Kind, Prior, PriorModels
from coterie.estimation.regression.expectation_propagation import Search, client_posteriors, weak_precision
from coterie.estimation.regression.gradient import descend
from coterie.estimation.regression.grouped import Grouped, group_rows, two_labels
from coterie.estimation.regression.newton import Block, make_blocks
from coterie.estimation.regression.sites import Told, learn, square_root
from coterie.estimation.regression.spherical import Free, Population


@dataclass(eq=False, repr=False)
class LogisticModels(PriorModels, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One logistic model per client, all shrunk towards the population's.

    Parameters
    ----------
    prior : "estimate", or a known (mean, variance), the variance a number, one per coefficient or a covariance.
    method : "em" or "gradient" (Algorithm 3, `max_iter` rounds).
    fit_intercept : give every client a constant of its own.
    covariance_type : of the prior that is estimated, as in `LinearModels`.
    learning_rate : of method="gradient"; None for safe steps.
    max_iter, tol : rounds (default 150 for one variance, 60 for several, 500 for the gradient), and the relative error of
        the prior's deviations at which EM stops.

    Attributes
    ----------
    clients_ (m,) sorted names, classes_ (2,), coef_ (m, d), intercept_ (m,), mean_ (d,), mean_intercept_,
    prior_variance_ ((d,), or a number if spherical), prior_intercept_variance_, prior_covariance_ (the intercept last),
    covariance_type_, weights_ (m,): the share of a client's prior variance that its own data removes, posterior_mean_
    (m, d), standard_errors_ (m, d) and intercept_standard_errors_ (m,): posterior deviations, client_risk_ (m,):
    E‖coef_i − θ_i‖², risk_ its mean, n_iter_, n_features_in_, feature_names_in_.
    """

    prior: Prior = "estimate"
    method: Literal["em", "gradient"] = "em"
    fit_intercept: bool = True
    learning_rate: float | None = None
    max_iter: int | None = None
    tol: float = 0.01
    covariance_type: Kind = "auto"

    _scale = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _target(self, y: Any, reset: bool) -> Array:
        known = one_column("y", y)
        if not reset:
            unknown = ~np.isin(known, self.classes_)
            if unknown.any():
                raise DataError(
                    f"y must hold the labels of fit, {self.classes_.tolist()}; got {known[unknown][0]!r}. Drop such rows."
                )
            return np.asarray(known == self.classes_[1], dtype=np.float64)
        self.classes_, second = two_labels(known)
        return second

    def _rows(self, *args: Any, **options: Any) -> tuple[Grouped, bool]:
        rows, named = super()._rows(*args, **options)
        if options.get("reset", True) and not 0 < rows.y.mean() < 1:
            raise DataError(
                "y must hold exactly two labels; got one class in the rows of positive weight. Give both weight."
            )
        if self.prior == "estimate" and named and len(rows.counts) < 2 and options.get("reset", True):
            raise DataError("The population needs two or more clients; got 1. Pass a known prior, or add clients.")
        return rows, named

    def _fit_several(self, rows: Any, ties: Ints | None, *, pooled: bool) -> None:
        rounds = 60 if self.max_iter is None else self.max_iter
        made, self.n_iter_ = learn(rows, ties, pooled, rounds, 1e-9 if pooled else self.tol)
        if not made.converged:
            warnings.warn(
                f"The prior of LogisticModels did not converge in {rounds} rounds. Raise max_iter, or drop columns.",
                ConvergenceWarning,
                stacklevel=3,
            )
        assert made.mean_covariance is not None
        plugged = self._given(rows, made.mean, made.covariance, made.mean_covariance)
        self._take(replace(plugged, centre=made.theta, variance=made.variance), rows)

    def _given(self, rows: Any, mean: Array, covariance: Array, error: Array, noise: float = 1.0) -> Fitted:
        if isinstance(rows, Told):
            modes, means, variance, away = rows.posteriors(mean, covariance, error)
            return Fitted(modes, mean, variance, covariance, error, 1 - away.mean(1), centre=means)
        prior = np.broadcast_to(covariance, mean.shape) if covariance.ndim == 0 else covariance
        populations = [(1.0, Population(mean, 1.0, covariance=error))]
        made = self._posteriors(make_blocks(rows, square_root(prior)), populations, len(rows.counts))
        return replace(made, covariance=covariance)

    def _posteriors(self, blocks: list[Block], populations: list[tuple[float, Population]], clients: int) -> Fitted:
        """The modes, and the posteriors averaged over populations with these weights, the most probable first."""
        (_, now), d = populations[0], len(populations[0][1].mean)
        modes, away = np.empty((clients, d)), np.empty((clients, d))
        means, squares = np.zeros((clients, d)), np.zeros((clients, d))
        for block in blocks:
            for weight, population in reversed(populations):  # the most probable one last, so that its fit stays
                mode, mean, variance, left = client_posteriors(block, population)
                means[block.clients] += weight * mean
                squares[block.clients] += weight * (np.square(mean - now.mean) + variance)
            modes[block.clients], away[block.clients] = mode, left
        variance = np.maximum(squares - np.square(means - now.mean), 0.0)
        prior, error = np.asarray(now.prior_variance), now.covariance
        return Fitted(modes, now.mean, variance, prior, error, 1 - away.mean(1), centre=means)

    def told_posteriors(self, X: Array, y: Array, mean: Array, covariance: Array, error: Array) -> tuple[Array, ...]:
        """What one client tells: mode, posterior mean and variance, and the share of the prior variance left, (p,) each."""
        rows = group_rows(X, y, np.zeros(len(y)), self.fit_intercept, None, False)
        made = self._given(rows, mean, covariance, error)
        assert made.centre is not None
        assert made.weights is not None
        return made.theta[0], made.centre[0], made.variance[0], np.full(len(mean), 1 - made.weights[0])

    def _fit_spherical(self, rows: Any, known: tuple[Array, float] | None) -> None:
        """The paper's own model, by expectation propagation or by Algorithm 3."""
        if isinstance(rows, Told):
            raise ConfigError(
                "Across clients, LogisticModels learns a variance per coefficient or a covariance; one variance for all "
                'would need rows. Use covariance_type="diag", "shared" or "full", and method="em".'
            )
        d, free = rows.X.shape[1], Free(mean=known is None, prior=known is None, noise=False)
        square = float(np.square(rows.X).sum(1).mean())
        mean, variance = known if known is not None else (np.zeros(d), 1 / square if square > 0 else 1.0)
        blocks, now, theta = make_blocks(rows), Population(mean, variance), None
        populations = [(1.0, now)]
        if self.method == "gradient":
            self.n_iter_ = 500 if self.max_iter is None else self.max_iter
            theta, now = descend(rows, now, free, self.n_iter_, self.learning_rate, labels=True)
            populations = [(1.0, now)]
        elif known is None:
            search = Search(blocks, now, 150 if self.max_iter is None else self.max_iter, weak_precision(rows.X))
            search.run(self.tol)
            self.n_iter_, populations = search.rounds, search.spread()
        made = self._posteriors(blocks, populations, len(rows.counts))
        self._take(made if theta is None else replace(made, theta=theta), rows)

    def _take(self, made: Fitted, rows: Any) -> None:
        super()._take(made, rows)
        self.posterior_mean_ = self._centre[:, : self.coef_.shape[1]]

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """Log-odds of the second class; clients never seen, and rows without groups, get the population mean's."""
        return self._scores(X, groups)

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """(N, 2) probabilities of `classes_`."""
        chance = expit(self.decision_function(X, groups))
        return np.stack([1 - chance, chance], axis=1)
