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
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning

from coterie.annotations import check_settings
from coterie.errors import DataError
from coterie.estimation.checks import Array, fitted
from coterie.estimation.conventions import joined_targets, row_weights, target
from coterie.estimation.regression import gradient
from coterie.estimation.regression.base import ClientModels, Prior, kind_of_prior, known_prior, tied
from coterie.estimation.regression.expectation_propagation import Population, Search, client_posteriors, weak_precision
from coterie.estimation.regression.grouped import Grouped, known_labels
from coterie.estimation.regression.newton import Block, make_blocks
from coterie.estimation.regression.reml import sizes
from coterie.estimation.regression.sites import Learned, learn, square_root
from coterie.estimation.regression.spherical import Free


class LogisticModels(ClassifierMixin, ClientModels):  # type: ignore[misc]
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

    classes_: NDArray[Any]

    def __init__(
        self,
        prior: Prior = "estimate",
        method: Literal["em", "gradient"] = "em",
        fit_intercept: bool = True,
        learning_rate: float | None = None,
        max_iter: int | None = None,
        tol: float = 0.01,
        covariance_type: str = "auto",
    ) -> None:
        self.prior = prior
        self.method = method
        self.fit_intercept = fit_intercept
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.covariance_type = covariance_type

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _target(self, y: Any, reset: bool) -> Array:
        known = known_labels(y)
        if not reset:
            unknown = ~np.isin(known, self.classes_)
            if unknown.any():
                raise DataError(
                    f"y must hold the labels of fit, {self.classes_.tolist()}; got {known[unknown][0]!r}. Drop such rows."
                )
            return np.asarray(known == self.classes_[1], dtype=np.float64)
        if known.dtype.kind == "f" and (known % 1).any():
            raise DataError("Unknown label type: continuous. y must hold two labels, not numbers with fractions.")
        self.classes_, binary = np.unique(known, return_inverse=True)
        if len(self.classes_) != 2:
            what = "Only binary classification is supported. " if len(self.classes_) > 2 else ""
            raise DataError(
                f"{what}y must hold exactly two labels; got {len(self.classes_)} class(es): {self.classes_[:5].tolist()}. "
                "Keep two of them, or join labels."
            )
        return binary.ravel().astype(np.float64)

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Rows `X` (N, d), labels `y` (N,) of two values, and the client of each row in `groups` (N,).

        `groups` may also name a column of a frame X; X and y may be dicts {client: rows}. Without groups there is one
        model for all rows. A row of weight w counts w times."""
        check_settings(self)
        rows, named = self._rows(X, y, groups, sample_weight, scale=False)
        if not 0 < rows.y.mean() < 1:
            raise DataError(
                "y must hold exactly two labels; got one class in the rows of positive weight. Give both weight."
            )
        width, clients = rows.X.shape[1], len(rows.counts)
        known = known_prior(self.prior, width)
        if known is None and named and clients < 2:
            raise DataError("The population needs two or more clients; got 1. Pass a known prior, or add clients.")
        kind = kind_of_prior(self.covariance_type, len(rows.y), clients, width)
        if self.method == "gradient" or known is not None:
            kind = "spherical"
        self.clients_, self.covariance_type_ = rows.clients, kind
        if known is not None and known[1].ndim and self.method == "em":
            self.n_iter_, self.covariance_type_ = 1, "diag" if known[1].ndim == 1 else "full"
            self._finish_known(rows, known[0], known[1], np.zeros((width, width)))
        elif (kind == "spherical" and named) or known is not None:
            scalar = None if known is None else (known[0], float(known[1].mean() if known[1].ndim < 2 else 1.0))
            self._fit_spherical(rows, scalar)
        else:
            self._fit_several(rows, kind if named else "diag", not named)
        return self

    def _fit_several(self, rows: Grouped, kind: str, pooled: bool) -> None:
        """A variance per coefficient, or a covariance."""
        rounds = 60 if self.max_iter is None else self.max_iter
        width = rows.X.shape[1]
        ties = tied(kind, width, self.fit_intercept)
        learned = learn(rows, ties, sizes(rows), pooled, rounds, 1e-9 if pooled else self.tol)
        self.n_iter_, self.covariance_type_ = learned.rounds, kind
        if not learned.converged:
            warnings.warn(
                f"The prior of LogisticModels did not converge in {rounds} rounds. Raise max_iter, or drop columns.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._finish_known(rows, learned.mean, learned.covariance, learned.mean_covariance, learned)

    def _finish_known(
        self, rows: Grouped, mean: Array, covariance: Array, error: Array, learned: Learned | None = None
    ) -> None:
        """Clients under θ_i ~ N(mean, covariance), the mean with an error; intervals as learned, if they were."""
        prior = np.broadcast_to(covariance, mean.shape) if covariance.ndim == 0 else covariance
        blocks = make_blocks(rows, square_root(prior))
        modes, means, variance, left = self._posteriors(blocks, [(1.0, Population(mean, 1.0, error))], len(rows.counts))
        if learned is not None:
            means, variance = learned.posterior_mean, learned.variance
        self._take(modes, mean, means, variance, left, covariance, error)

    def _posteriors(
        self, blocks: list[Block], populations: list[tuple[float, Population]], clients: int
    ) -> tuple[Array, Array, Array, Array]:
        (_, now), d = populations[0], len(populations[0][1].mean)
        modes, away = np.empty((clients, d)), np.empty((clients, d))
        means, squares = np.zeros((clients, d)), np.zeros((clients, d))
        for block in blocks:
            for weight, population in reversed(populations):  # the most probable one last, so that its fit stays
                mode, mean, variance, left = client_posteriors(block, population)
                means[block.clients] += weight * mean
                squares[block.clients] += weight * (np.square(mean - now.mean) + variance)
            modes[block.clients], away[block.clients] = mode, left
        return modes, means, np.maximum(squares - np.square(means - now.mean), 0.0), away

    def _fit_spherical(self, rows: Grouped, known: tuple[Array, float] | None) -> None:
        """The paper's own model, by expectation propagation or by Algorithm 3."""
        d, clients = rows.X.shape[1], len(rows.counts)
        free = Free(mean=known is None, prior=known is None, noise=False)
        square = float(np.square(rows.X).sum(1).mean())
        mean, variance = known if known is not None else (np.zeros(d), 1 / square if square > 0 else 1.0)
        blocks = make_blocks(rows)
        now, theta = Population(mean, variance, np.zeros((d, d))), None
        populations = [(1.0, now)]
        if self.method == "gradient":
            self.n_iter_ = 500 if self.max_iter is None else self.max_iter
            state = gradient.State(np.tile(mean, (clients, 1)), mean, variance)
            state = gradient.logistic(rows, state, free, self.n_iter_, self.learning_rate)
            theta = state.theta
            populations = [(1.0, replace(now, mean=state.mean, prior_variance=state.prior_variance))]
        elif known is None:
            rounds = 150 if self.max_iter is None else self.max_iter
            search = Search(blocks, now, rounds, weak_precision(rows.X))
            search.run(self.tol)
            self.n_iter_, populations = search.rounds, search.spread()
        else:
            self.n_iter_ = 1
        now = populations[0][1]
        modes, means, variances, left = self._posteriors(blocks, populations, clients)
        theta = modes if theta is None else theta
        self._take(theta, now.mean, means, variances, left, np.asarray(now.prior_variance), now.covariance)

    def _take(
        self, theta: Array, mean: Array, means: Array, variance: Array, left: Array, covariance: Array, error: Array
    ) -> None:
        self._keep(theta, mean, variance, means)
        self._keep_prior(covariance)
        self._mean_covariance, self.posterior_mean_ = error, means[:, : self.coef_.shape[1]]
        self.weights_ = 1 - left.mean(1)
        self.client_risk_ = (variance + np.square(theta - means)).sum(1)
        self.risk_ = float(self.client_risk_.mean())

    def personalise(self, X: Any, y: Any, groups: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Models of clients not seen in fit, from their own rows and the learned population, which stays as it is.

        Returns an estimator with these clients, and their coef_, interval() and predict. Without groups: one client."""
        fitted(self, "coef_")
        rows, _ = self._rows(X, y, groups, sample_weight, scale=False, reset=False)
        made: Self = clone(self)
        for name, value in vars(self).items():
            if name.startswith(("n_features", "feature_names", "classes_", "covariance_type_", "n_iter_")):
                setattr(made, name, value)
        made.clients_ = rows.clients
        prior = np.asarray(self.prior_variance_) if np.ndim(self.prior_variance_) == 0 else self.prior_covariance_
        assert self._mean_covariance is not None
        made._finish_known(rows, self._population, prior, self._mean_covariance)
        return made

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """Log-odds of the second class; clients never seen, and rows without groups, get the population mean's."""
        return self._scores(X, groups)

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """(N, 2) probabilities of `classes_`."""
        chance = expit(self.decision_function(X, groups))
        return np.stack([1 - chance, chance], axis=1)

    def predict(self, X: Any, groups: Any = None) -> Array:
        above = self.decision_function(X, groups) > 0
        labels: Array = self.classes_[above.astype(int)]
        return labels

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy of predict."""
        wanted, made = np.asarray(target(self, joined_targets(y, X))), self.predict(X, groups)
        if made.shape != wanted.shape:
            raise DataError(f"y must hold one label per row; got {len(wanted)} for {len(made)} rows. Pass one each.")
        return float(np.average(made == wanted, weights=row_weights(sample_weight, len(wanted))))
