"""The common base of linear and logistic models of many clients: checked rows in, coefficients with their errors out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from coterie.base.annotations import check_settings, guarded
from coterie.base.arguments import Level, finite, one_of
from coterie.errors import ConfigError, DataError
from coterie.estimation.conventions import Array, Ints, columns, joined_targets, row_weights, target, with_clients
from coterie.estimation.regression.grouped import Grouped, find, group_rows

Prior = Literal["estimate"] | tuple[ArrayLike, ArrayLike]
Kind = Annotated[str, one_of("auto", "diag", "full", "shared", "spherical")]
MOST_COLUMNS = 40  # with more, "auto" lets the slopes share one prior variance
MOST_WORK = 5e8  # clients × coefficients³, from which on "auto" takes one variance for all


def known_prior(prior: Prior, dimension: int) -> tuple[Array, Array] | None:
    """None for "estimate", else (μ (d,), σ_θ² as a number (), variances (d,) or a covariance (d, d)) of a known prior."""
    if isinstance(prior, str):
        return None
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


def kind_of_prior(asked: Kind, rows: Grouped, width: int) -> str:
    """The covariance type that "auto" chooses: a variance per coefficient where that is well posed and takes seconds."""
    if asked != "auto":
        return asked
    if rows.n_rows < 2 * width or len(rows.counts) * width**3 > MOST_WORK:
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


@dataclass(frozen=True)
class Fitted:
    """Clients and their population, in the units of the columns. `covariance` is the prior's: (), (p,) or (p, p)."""

    theta: Array
    mean: Array
    variance: Array  # of the clients' posteriors
    covariance: Array
    mean_covariance: Array | None = None
    weights: Array | None = None
    centre: Array | None = None  # of the intervals, where that is not theta
    noise: float = 1.0
    freedom: float = np.inf
    converged: bool = True

    def rescaled(self, size: Array) -> Fitted:
        """The same fit for columns that are `size` times as large."""
        across = np.outer(size, size)
        covariance = self.covariance / (size**2 if self.covariance.ndim == 1 else across)
        error = None if self.mean_covariance is None else self.mean_covariance / across
        theta, mean, variance = self.theta / size, self.mean / size, self.variance / size**2
        return replace(self, theta=theta, mean=mean, variance=variance, covariance=covariance, mean_covariance=error)


class ClientModels:
    """Rows of many clients; `theta` (m, p) has the slopes first and the intercept, if there is one, last."""

    fit_intercept: bool
    coef_: Array
    clients_: NDArray[Any]
    classes_: NDArray[Any]  # of labels; numbers have none

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

    def _scores(self, X: Any, groups: Any) -> Array:
        """xᵀθ of each row's client, or xᵀμ where the client is new or groups is None."""
        check_is_fitted(self, "coef_")
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

    def predict(self, X: Any, groups: Any = None) -> Any:
        """A number or a label for each row by its client's model; rows of clients never seen, or without groups, by the
        population's."""
        scores = self._scores(X, groups)
        return self.classes_[(scores > 0).astype(int)] if hasattr(self, "classes_") else scores

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """R² of predict, or the accuracy of its labels."""
        given, made = target(self, joined_targets(y, X)), self.predict(X, groups)
        labels = hasattr(self, "classes_")
        wanted = np.asarray(given) if labels else finite("y", given)
        if made.shape != wanted.shape:
            raise DataError(f"y must hold one value per row; got {len(wanted)} for {len(made)} rows. Pass one each.")
        weight = row_weights(sample_weight, len(wanted))
        if labels:
            return float(np.average(made == wanted, weights=weight))
        weight = np.ones(len(wanted)) if weight is None else weight
        error = float(weight @ np.square(wanted - made))
        spread = float(weight @ np.square(wanted - np.average(wanted, weights=weight)))
        return 1 - error / spread if spread else float(error == 0)  # scikit-learn's convention for a constant y


class PriorModels(ClientModels):
    """Models whose coefficients have a Gaussian prior: intervals, and models of new clients."""

    prior: Prior
    method: str
    covariance_type: Kind
    _scale: bool  # a weight w means noise of variance σ²/w, and not a row that counts w times

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Rows `X` (N, d) and `y` (N,), numbers or two labels, with the client of each row in `groups` (N,).

        `groups` may also name a column of a frame X; X and y may be dicts {client: rows}. Without groups there is one
        model for all rows. A row of weight w has noise of variance σ_x²/w (numbers), or counts w times (labels)."""
        check_settings(self)
        rows, named = self._rows(X, y, groups, sample_weight, scale=self._scale)
        return self._fit_rows(rows, named)

    def fit_told(self, rows: Any, columns: int) -> Self:
        """The same from what clients tell of their rows, which have so many columns."""
        check_settings(self)
        self.n_features_in_ = columns
        return self._fit_rows(rows, True)

    def _fit_rows(self, rows: Any, named: bool) -> Self:
        width = rows.width
        known = known_prior(self.prior, width)
        self.clients_, self.n_iter_ = rows.clients, 1
        gradient = self.method == "gradient"  # knows one variance only
        kind = "spherical" if gradient else kind_of_prior(self.covariance_type, rows, width)
        if known is not None and known[1].ndim:
            self.covariance_type_ = "diag" if known[1].ndim == 1 else "full"
            noise = getattr(self, "noise_variance", 1.0)
            if noise is None:
                raise ConfigError(
                    "A known prior with a variance per coefficient needs noise_variance; got None. Pass a number."
                )
            self._take(self._given(rows, *known, np.zeros((width, width)), noise), rows)
        elif known is not None or (named and kind == "spherical"):
            self.covariance_type_ = "spherical"
            self._fit_spherical(rows, None if known is None else (known[0], float(known[1])))
        else:
            self.covariance_type_ = kind if named else "diag"
            self._fit_several(rows, tied(self.covariance_type_, width, self.fit_intercept), pooled=not named)
        return self

    def _fit_spherical(self, rows: Grouped, known: tuple[Array, float] | None) -> None:
        """The paper's own model, with one variance."""
        raise NotImplementedError

    def _fit_several(self, rows: Grouped, ties: Ints | None, *, pooled: bool) -> None:
        """A variance per coefficient, or a covariance. `pooled`: one model for all rows."""
        raise NotImplementedError

    def _given(self, rows: Grouped, mean: Array, covariance: Array, error: Array, noise: float) -> Fitted:
        """Clients under θ_i ~ N(mean, covariance), the mean with an error."""
        raise NotImplementedError

    def _take(self, made: Fitted, rows: Grouped) -> None:
        self._keep(made.theta, made.mean, made.variance, made.centre)
        width, d = len(made.mean), len(made.mean) - self.fit_intercept
        diagonal = np.diag(made.covariance) if made.covariance.ndim == 2 else np.broadcast_to(made.covariance, (width,))
        one = made.covariance.ndim == 0
        self.prior_variance_: float | Array = float(made.covariance) if one else diagonal[:d].copy()
        self.prior_intercept_variance_ = float(diagonal[-1]) if self.fit_intercept else 0.0
        self.prior_covariance_ = made.covariance if made.covariance.ndim == 2 else np.diag(diagonal)
        self._mean_covariance, self._freedom = made.mean_covariance, made.freedom
        self.weights_ = made.weights
        self.client_risk_ = (made.variance + np.square(self._theta - self._centre)).sum(1)
        self.risk_ = float(self.client_risk_.mean())

    def personalise(self, X: Any, y: Any, groups: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Models of clients not seen in fit, from their own rows and the learned population, which stays as it is.

        Returns an estimator with these clients, and their coef_, interval() and predict. Without groups: one client."""
        check_is_fitted(self, "coef_")
        rows, _ = self._rows(X, y, groups, sample_weight, scale=self._scale, reset=False)
        made: Self = clone(self)
        kept = ("n_features_in_", "feature_names_in_", "classes_", "covariance_type_", "n_iter_")
        made.__dict__.update({name: value for name, value in vars(self).items() if name in kept})
        made.clients_, width = rows.clients, len(self._population)
        prior = np.asarray(self.prior_variance_) if np.ndim(self.prior_variance_) == 0 else self.prior_covariance_
        error = np.zeros((width, width)) if self._mean_covariance is None else self._mean_covariance
        fitted = self._given(rows, self._population, prior, error, getattr(self, "noise_variance_", 1.0))
        made._take(replace(fitted, freedom=self._freedom), rows)
        return made

    @guarded
    def interval(self, level: Level = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) of every client's coefficients, (m, d) each."""
        low, high = self._intervals(level)
        d = self.coef_.shape[1]
        return low[:, :d], high[:, :d]

    @guarded
    def intercept_interval(self, level: Level = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) of every client's intercept, (m,) each."""
        low, high = self._intervals(level)
        if not self.fit_intercept:
            raise ConfigError("Intervals of intercepts need fit_intercept=True; got False. Fit with an intercept.")
        return low[:, -1], high[:, -1]

    def _intervals(self, level: float) -> tuple[Array, Array]:
        check_is_fitted(self, "coef_")
        where = 0.5 + level / 2
        quantile = norm.ppf(where) if np.isinf(self._freedom) else student.ppf(where, self._freedom)
        reach = float(quantile) * self._errors
        return self._centre - reach, self._centre + reach
