"""Personalised linear regression under a Gaussian population.

Theorem 6 and Algorithm 2 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Model: Y_i = X_i θ_i + w_i, w ~ N(0, σ_x² I), θ_i ~ N(μ, Σ); the paper's Σ is σ_θ² I (covariance_type="spherical").
Symbols: θ_i `coef_`, μ `mean_`, Σ `prior_covariance_`, σ_x² `noise_variance_`.

`method="em"` maximises the marginal likelihood: L-1em for one variance, REML for a variance per coefficient or a full
covariance. `method="gradient"` is Algorithm 2 with the sign of the prior's term repaired (erratum E12). Its objective is
unbounded below (E19), so its result depends on when it stops.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning

from coterie.annotations import check_settings
from coterie.errors import ConfigError, DataError
from coterie.estimation.checks import Array, finite, fitted, known_variance
from coterie.estimation.conventions import joined_targets, row_weights, target
from coterie.estimation.regression import gradient
from coterie.estimation.regression.base import ClientModels, Prior, kind_of_prior, known_prior, tied
from coterie.estimation.regression.grouped import Grouped
from coterie.estimation.regression.reml import Fitted, fit_given, fit_reml, local_risk
from coterie.estimation.regression.rotated import Rotated, rotate
from coterie.estimation.regression.spherical import (
    Free,
    Population,
    check_identifiable,
    expect_maximise,
    mean_error,
    posterior_means,
    spherical_local_risk,
    start_population,
)


class LinearModels(RegressorMixin, ClientModels):  # type: ignore[misc]
    """One linear model per client, all shrunk towards the population's.

    Parameters
    ----------
    prior : "estimate", or a known (mean, variance), the variance a number, one per coefficient or a covariance: then the
        exact posterior of Theorem 6.
    noise_variance : σ_x²; None estimates it.
    method : "em" or "gradient" (Algorithm 2, `max_iter` rounds).
    fit_intercept : give every client a constant of its own.
    covariance_type : of the prior that is estimated: "diag", a variance per coefficient; "full", a covariance; "shared",
        one for all slopes and one for the intercept; "spherical", one for all, the paper's. "auto" takes "diag" up to 40
        columns, then "shared", and "spherical" where clients × columns³ > 5·10⁸ or rows < 2 × columns.
    learning_rate : of method="gradient": one η for every update as printed, or None for safe steps of each kind.
    max_iter, tol : rounds (default 50 for EM, 500 for the gradient), and the relative change that ends EM.

    Attributes
    ----------
    clients_ (m,) sorted names, coef_ (m, d), intercept_ (m,), mean_ (d,), mean_intercept_, prior_variance_ ((d,), or a
    number if spherical), prior_intercept_variance_, prior_covariance_ (the intercept last), covariance_type_,
    noise_variance_, weights_ (m,): the share of a client's prior variance that its own data removes (0: only the others
    count), standard_errors_ (m, d) and intercept_standard_errors_ (m,): posterior deviations, client_risk_ (m,)
    = their squared sum, risk_ its mean, local_risk_ = the same for pinv(X_i)Y_i, n_iter_, n_features_in_,
    feature_names_in_. With variances per coefficient the deviations also count that those are estimated.
    """

    def __init__(
        self,
        prior: Prior = "estimate",
        noise_variance: float | None = None,
        method: Literal["em", "gradient"] = "em",
        fit_intercept: bool = True,
        learning_rate: float | None = None,
        max_iter: int | None = None,
        tol: float = 1e-6,
        covariance_type: str = "auto",
    ) -> None:
        self.prior = prior
        self.noise_variance = noise_variance
        self.method = method
        self.fit_intercept = fit_intercept
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.covariance_type = covariance_type

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Rows `X` (N, d) and `y` (N,) with the client of each row in `groups` (N,).

        `groups` may also name a column of a frame X; X and y may be dicts {client: rows}. Without groups there is one
        model for all rows. A row of weight w has noise of variance σ_x²/w."""
        check_settings(self)
        rows, named = self._rows(X, y, groups, sample_weight, scale=True)
        width, clients = rows.X.shape[1], len(rows.counts)
        known = known_prior(self.prior, width)
        noise = known_variance("noise_variance", self.noise_variance)
        if noise == 0:
            raise ConfigError(
                "noise_variance must be > 0 for regression; got 0. Use a small number, or None to estimate it."
            )
        kind = kind_of_prior(self.covariance_type, len(rows.y), clients, width)
        if self.method == "gradient" or known is not None:
            kind = "spherical"
        self.clients_, self.covariance_type_, self.n_iter_ = rows.clients, kind, 1
        if known is None and not named:
            self.covariance_type_ = "diag"
            self._take(rows, fit_reml(rows, None, noise, pooled=True))
        elif known is not None and known[1].ndim:
            self._fit_known(rows, *known, noise)
        elif kind == "spherical":
            self._fit_spherical(rows, None if known is None else (known[0], float(known[1])), noise)
        else:
            self._fit_reml(rows, kind, noise)
        return self

    def _fit_known(self, rows: Grouped, mean: Array, covariance: Array, noise: float | None) -> None:
        if noise is None:
            raise ConfigError(
                "A known prior with a variance per coefficient needs noise_variance; got None. Pass a number."
            )
        self.covariance_type_ = "diag" if covariance.ndim == 1 else "full"
        self._take(rows, fit_given(rows, mean, covariance, noise, None))

    def _fit_reml(self, rows: Grouped, kind: str, noise: float | None) -> None:
        check_identifiable(rotate(rows), Free(True, True, noise is None))
        width = rows.X.shape[1]
        if noise is None and rows.counts.max() == 1 and self.fit_intercept:
            raise DataError(
                "The noise cannot be separated from the clients' differences: every client has one row. "
                "Pass noise_variance, or collect more rows per client."
            )
        if len(rows.y) <= width:
            raise DataError(
                f"A prior variance per coefficient needs more rows than the {width} coefficients; got {len(rows.y)}. "
                'Add rows, or use covariance_type="spherical".'
            )
        made = fit_reml(rows, tied(kind, width, self.fit_intercept), noise, pooled=False)
        if not made.converged:
            warnings.warn(
                "The prior of LinearModels did not converge. Bring the columns to one scale, or drop some.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._take(rows, made)

    def _take(self, rows: Grouped, made: Fitted) -> None:
        self._keep(made.theta, made.mean, made.variance)
        self._keep_prior(made.covariance)
        self._mean_covariance, self._freedom = made.mean_covariance, made.freedom
        self.noise_variance_, self.weights_ = made.noise, made.weights
        self.client_risk_ = made.variance.sum(1)
        self.risk_ = float(self.client_risk_.mean())
        self.local_risk_ = local_risk(rows, made.mean, self.prior_covariance_, made.noise)

    def _fit_spherical(self, rows: Grouped, known: tuple[Array, float] | None, noise: float | None) -> None:
        """The paper's own model, by L-1em or by Algorithm 2."""
        free = Free(mean=known is None, prior=known is None, noise=noise is None)
        data = rotate(rows)
        check_identifiable(data, free)
        start, theta = start_population(data, known, noise), None
        if self.method == "em":
            rounds = 50 if self.max_iter is None else self.max_iter
            now, self.n_iter_ = expect_maximise(data, start, free, rounds, self.tol)
        else:
            self.n_iter_ = 500 if self.max_iter is None else self.max_iter
            state = gradient.State(
                np.tile(start.mean, (data.clients, 1)), start.mean, start.prior_variance, start.noise_variance
            )
            state = gradient.linear(rows, state, free, self.n_iter_, self.learning_rate)
            now = Population(state.mean, state.prior_variance, state.noise_variance or start.noise_variance)
            theta = state.theta
        self._finish_spherical(data, now, theta)

    def _finish_spherical(self, data: Rotated, now: Population, theta: Array | None) -> None:
        prior, noise = now.prior_variance, now.noise_variance
        gain = prior / (prior * data.square + noise)
        theta = posterior_means(data, now) if theta is None else theta
        away = np.clip(1 - data.per_client(gain, power=2), 0.0, 1.0)  # diag of M_i⁻¹/σ_θ², the weight of μ
        variance = prior * away
        if now.covariance is not None:
            variance = variance + mean_error(data, gain, now.covariance)
        self._keep(theta, now.mean, variance)
        self._keep_prior(np.asarray(prior))
        self._mean_covariance, self._freedom = now.covariance, np.inf
        self.weights_ = data.totals(gain * data.square) / theta.shape[1]
        self.client_risk_ = variance.sum(1)
        self.risk_ = float(self.client_risk_.mean())
        self.noise_variance_, self.local_risk_ = noise, spherical_local_risk(data, now)

    def personalise(self, X: Any, y: Any, groups: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Models of clients not seen in fit, from their own rows and the learned population, which stays as it is.

        Returns an estimator with these clients, and their coef_, interval() and predict. Without groups: one client."""
        fitted(self, "coef_")
        rows, _ = self._rows(X, y, groups, sample_weight, scale=True, reset=False)
        made: Self = clone(self)
        for name, value in vars(self).items():
            if name.startswith(("n_features", "feature_names", "covariance_type_", "n_iter_")):
                setattr(made, name, value)
        made.clients_ = rows.clients
        prior = np.asarray(self.prior_variance_) if np.ndim(self.prior_variance_) == 0 else self.prior_covariance_
        made._take(rows, fit_given(rows, self._population, prior, self.noise_variance_, self._mean_covariance))
        made._freedom = self._freedom
        return made

    def predict(self, X: Any, groups: Any = None) -> Array:
        """Each row by its client's model; rows of clients never seen, or without groups, by the population mean."""
        return self._scores(X, groups)

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """R² of predict."""
        wanted = finite("y", target(self, joined_targets(y, X)))
        made = self.predict(X, groups)
        if made.shape != wanted.shape:
            raise DataError(f"y must hold one number per row; got {len(wanted)} for {len(made)} rows. Pass one each.")
        given = row_weights(sample_weight, len(wanted))
        weight = np.ones(len(wanted)) if given is None else given
        error = float(weight @ np.square(wanted - made))
        spread = float(weight @ np.square(wanted - np.average(wanted, weights=weight)))
        if spread == 0:  # scikit-learn's convention for a constant y
            return float(error == 0)
        return 1 - error / spread
