"""The common base of linear and logistic models of many clients: checked rows in, coefficients with their errors out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.base import BaseEstimator

from coterie.errors import ConfigError, DataError
from coterie.estimation.checks import Array, Ints, choice, confidence, finite, fitted
from coterie.estimation.conventions import columns, joined_targets, row_weights, target, with_clients
from coterie.estimation.regression.grouped import Grouped, find, group_rows

Prior = str | tuple[ArrayLike, ArrayLike]
KINDS = ("auto", "diag", "full", "shared", "spherical")
MOST_COLUMNS = 40  # with more, "auto" lets the slopes share one prior variance
MOST_WORK = 5e8  # clients × coefficients³, from which on "auto" takes one variance for all


def known_prior(prior: Prior, dimension: int) -> tuple[Array, Array] | None:
    """None for "estimate", else (μ (d,), σ_θ² as a number (), variances (d,) or a covariance (d, d)) of a known prior."""
    if isinstance(prior, str):
        choice("prior", prior, ("estimate",))
        return None
    if not isinstance(prior, tuple) or len(prior) != 2:
        raise ConfigError(f'prior must be "estimate" or (mean, variance); got {prior!r}. Pass one of these.')
    mean, variance = finite("prior mean", prior[0]), finite("prior variance", prior[1])
    shapes = ((), (dimension,), (dimension, dimension))
    least = np.linalg.eigvalsh(variance).min() if variance.shape == shapes[2] else variance.min(initial=np.inf)
    if mean.shape not in shapes[:2] or variance.shape not in shapes or not least >= 0 or not variance.any():
        raise ConfigError(
            f"A known prior is (mean, a number or ({dimension},), variance > 0, a number, ({dimension},) or a covariance), "
            f"an intercept counted last; got mean of shape {mean.shape} and variance {variance.tolist()}. "
            "Correct the one that differs."
        )
    return np.broadcast_to(mean, (dimension,)).astype(np.float64), variance


def kind_of_prior(asked: str, rows: int, clients: int, width: int) -> str:
    """The covariance type that "auto" chooses: a variance per coefficient where that is well posed and takes seconds."""
    if choice("covariance_type", asked, KINDS) != "auto":
        return asked
    if rows < 2 * width or clients * width**3 > MOST_WORK:
        return "spherical"
    return "diag" if width <= MOST_COLUMNS + 1 else "shared"


def tied(kind: str, width: int, intercept: bool) -> Ints | None:
    """The number of each coefficient's prior variance; None for a full covariance. The intercept is last."""
    if kind == "full":
        return None
    ties = np.arange(width) if kind == "diag" else np.zeros(width, dtype=np.int64)
    if kind == "shared" and intercept and width > 1:
        ties[-1] = 1
    return ties.astype(np.int64)


class ClientModels(BaseEstimator):  # type: ignore[misc]
    """Rows of many clients; `theta` (m, p) has the slopes first and the intercept, if there is one, last."""

    fit_intercept: bool
    coef_: Array
    _mean_covariance: Array | None
    _freedom: float

    def _rows(
        self, X: Any, y: Any, groups: Any, sample_weight: Any, *, scale: bool, reset: bool = True
    ) -> tuple[Grouped, bool]:
        """Checked rows sorted by client, and whether there are clients at all (groups given)."""
        together, groups = with_clients(X, groups)
        found, wanted = columns(self, together, reset=reset), self._target(target(self, joined_targets(y, X)), reset)
        named = groups is not None
        owner = np.zeros(len(found), dtype=np.int64) if groups is None else groups
        weight = row_weights(sample_weight, len(found))
        return group_rows(found, wanted, owner, self.fit_intercept, weight, scale), named

    def _target(self, y: Any, reset: bool) -> Array:
        return finite("y", y)

    def _keep(self, theta: Array, mean: Array, variance: Array, centre: Array | None = None) -> None:
        """Coefficients, their posterior variances, and where their intervals lie (at theta, if not said)."""
        d = theta.shape[1] - self.fit_intercept
        self._theta, self._population, self._centre = theta, mean, theta if centre is None else centre
        self._errors = np.sqrt(variance)
        self.coef_, self.mean_, self.standard_errors_ = theta[:, :d], mean[:d], self._errors[:, :d]
        none = np.zeros(len(theta))
        self.intercept_ = theta[:, d] if self.fit_intercept else none
        self.mean_intercept_ = float(mean[d]) if self.fit_intercept else 0.0
        self.intercept_standard_errors_ = self._errors[:, d] if self.fit_intercept else none

    def _keep_prior(self, covariance: Array) -> None:
        """The prior of a fit: a number (spherical), variances (p,) or a covariance (p, p)."""
        width = len(self._population)
        diagonal = np.diag(covariance) if covariance.ndim == 2 else np.broadcast_to(covariance, (width,))
        d = width - self.fit_intercept
        self.prior_variance_: float | Array = float(covariance) if covariance.ndim == 0 else diagonal[:d].copy()
        self.prior_intercept_variance_ = float(diagonal[-1]) if self.fit_intercept else 0.0
        self.prior_covariance_ = covariance if covariance.ndim == 2 else np.diag(diagonal)

    def _scores(self, X: Any, groups: Any) -> Array:
        """xᵀθ of each row's client, or xᵀμ where the client is new or groups is None."""
        fitted(self, "coef_")
        X, groups = with_clients(X, groups)
        rows = columns(self, X, reset=False)
        place = np.full(len(rows), -1) if groups is None else find(self.clients_, groups)
        if place.shape != (len(rows),):
            raise DataError(
                f"groups must name one client per row of X; got {place.shape} for {len(rows)} rows. "
                "Name each row's client."
            )
        coef = np.vstack([self._theta, self._population])[place]
        d = rows.shape[1]
        scores: Array = np.einsum("nd,nd->n", rows, coef[:, :d]) + (coef[:, d] if self.fit_intercept else 0.0)
        return scores

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) of every client's coefficients, (m, d) each."""
        low, high = self._intervals(level)
        d = self.coef_.shape[1]
        return low[:, :d], high[:, :d]

    def intercept_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) of every client's intercept, (m,) each."""
        low, high = self._intervals(level)
        if not self.fit_intercept:
            raise ConfigError("Intervals of intercepts need fit_intercept=True; got False. Fit with an intercept.")
        return low[:, -1], high[:, -1]

    def _intervals(self, level: float) -> tuple[Array, Array]:
        fitted(self, "coef_")
        where = 0.5 + confidence(level) / 2
        freedom = getattr(self, "_freedom", np.inf)
        quantile = norm.ppf(where) if np.isinf(freedom) else student.ppf(where, freedom)
        reach = float(quantile) * self._errors
        return self._centre - reach, self._centre + reach
