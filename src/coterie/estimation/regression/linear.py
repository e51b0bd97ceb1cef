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
from dataclasses import dataclass
from typing import Literal

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning

from coterie.base.arguments import Positive
from coterie.errors import DataError
from coterie.estimation.conventions import Array, Ints
from coterie.estimation.regression.client_models import Fitted, Kind, Prior, PriorModels
from coterie.estimation.regression.gradient import descend
from coterie.estimation.regression.grouped import Grouped
from coterie.estimation.regression.reml import fit_given, fit_reml, local_risk
from coterie.estimation.regression.rotated import rotate
from coterie.estimation.regression.spherical import (
    Free,
    check_identifiable,
    expect_maximise,
    posterior_of,
    spherical_local_risk,
    start_population,
)


@dataclass(eq=False, repr=False)
class LinearModels(PriorModels, RegressorMixin, BaseEstimator):  # type: ignore[misc]
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

    prior: Prior = "estimate"
    noise_variance: Positive | None = None
    method: Literal["em", "gradient"] = "em"
    fit_intercept: bool = True
    learning_rate: float | None = None
    max_iter: int | None = None
    tol: float = 1e-6
    covariance_type: Kind = "auto"

    _scale = True

    def _fit_several(self, rows: Grouped, ties: Ints | None, *, pooled: bool) -> None:
        """REML."""
        if not pooled:
            self._check_several(rows)
        made = fit_reml(rows, ties, self.noise_variance, pooled)
        if not made.converged:
            warnings.warn(
                "The prior of LinearModels did not converge. Bring the columns to one scale, or drop some.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._take(made, rows)

    def _check_several(self, rows: Grouped) -> None:
        free, width = self.noise_variance is None, rows.width
        check_identifiable(rotate(rows), Free(True, True, free))
        if free and rows.seen.max() == 1 and self.fit_intercept:
            raise DataError(
                "The noise cannot be separated from the clients' differences: every client has one row. "
                "Pass noise_variance, or collect more rows per client."
            )
        if rows.n_rows <= width:
            raise DataError(
                f"A prior variance per coefficient needs more rows than the {width} coefficients; got {rows.n_rows}. "
                'Add rows, or use covariance_type="spherical".'
            )

    def _given(self, rows: Grouped, mean: Array, covariance: Array, error: Array, noise: float) -> Fitted:
        return fit_given(rows, mean, covariance, noise, error)

    def _take(self, made: Fitted, rows: Grouped) -> None:
        super()._take(made, rows)
        self.noise_variance_ = made.noise
        self.local_risk_ = local_risk(rows, made.mean, self.prior_covariance_, made.noise)

    def _fit_spherical(self, rows: Grouped, known: tuple[Array, float] | None) -> None:
        """The paper's own model, by L-1em or by Algorithm 2."""
        free = Free(mean=known is None, prior=known is None, noise=self.noise_variance is None)
        data = rotate(rows)
        check_identifiable(data, free)
        now, theta = start_population(data, known, self.noise_variance), None
        if self.method == "em":
            rounds = 50 if self.max_iter is None else self.max_iter
            now, self.n_iter_ = expect_maximise(data, now, free, rounds, self.tol)
        else:
            self.n_iter_ = 500 if self.max_iter is None else self.max_iter
            theta, now = descend(rows, now, free, self.n_iter_, self.learning_rate)
        super()._take(posterior_of(data, now, theta), rows)
        self.noise_variance_, self.local_risk_ = now.noise_variance, spherical_local_risk(data, now)
