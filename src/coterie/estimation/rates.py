"""Bernoulli rates: every client shrinks its success rate towards the others'.

Equations 4 to 6 and Theorem 3 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: p_i `rates_`, Z_i `successes`, n_i `trials`, Beta(α, β) `prior_`, a_i `weights_` (the weight of a
client's own rate), μ_i and v_i the mean and variance of the *other* clients' rates, σ² the population variance.

The paper takes v_i for σ², although v_i → σ²(1−1/n) + μ(1−μ)/n (erratum E06); that bias is removed here (E-4c).
Leaving client i out makes a_i and μ_i independent of its data, which is what the risk formula needs; client i must
not be shown the μ_j of others, since μ_i − μ_j reveals X̄_j.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import beta as beta_distribution
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from coterie.base.annotations import check_settings, guarded
from coterie.base.arguments import Count, Level, Positive, Share, finite
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError, DataError
from coterie.estimation.conventions import Array
from coterie.estimation.private_means import NOT_COVERED
from coterie.privacy import OneBit, Privacy, rate_moments
from coterie.privacy.account import Account
from coterie.privacy.settings import Budget


class BetaPrior(NamedTuple):
    """Beta(alpha, beta); both are infinite where the clients do not differ beyond chance."""

    alpha: float
    beta: float

    @classmethod
    def from_moments(cls, mean: float, variance: float) -> BetaPrior:
        """α + β = μ(1−μ)/σ² − 1."""
        size = mean * (1 - mean) / variance - 1 if variance > 0 else np.inf
        return cls(mean * size if mean > 0 else 0.0, (1 - mean) * size if mean < 1 else 0.0)


@renamed
@dataclass(eq=False, repr=False)
class BernoulliRates(BaseEstimator):  # type: ignore[misc]
    """Personalised success rates.

    Parameters
    ----------
    prior : known (α, β); then there is nothing to estimate and one client is enough.
    weight : a fixed own weight a in [0, 1] for all clients, for data that cannot determine it (one trial per client).
    privacy : a `ct.Privacy` makes the fit locally private: each client reports one bit, a random half about Z/n, the other
        half about Z(Z−1)/(n(n−1)). Only its ε is used (δ is 0, and rates need no clip). All clients need the same, public,
        number of trials, two or more.
    random_state : of the public coins that split the clients, and of simulated noise.

    Attributes
    ----------
    rates_ (m,) (also estimates_), weights_ (m,), prior_ (alpha, beta) of the whole population, mean_,
    prior_variance_ (σ²), standard_errors_ (m,), client_risk_ (m,) and risk_ = E(p̂_i − p_i)² of the
    weights used, local_risk_ = mean_i (μ(1−μ) − σ²)/n_i.

    Clients without trials get the population mean. If every trial failed, or every one succeeded, so do all estimates.
    """

    prior: tuple[Positive, Positive] | None = None
    weight: Share | None = None
    privacy: Budget | None = None
    random_state: int = 0

    def fit(self, successes: Any, trials: Any = None) -> BernoulliRates:
        """`successes` (m,) counts and `trials` (m,) or one number for all; dicts {client: count} and Series give clients_.

        Without trials, `successes` has two columns, successes and trials (a frame may name them so)."""
        check_settings(self)
        z, n, self.clients_ = read_rates(successes, trials)
        if self.privacy is not None:
            return self._fit_private(z, n, self.privacy)
        if self.prior is not None:
            return self._fit_known(z, n, *self.prior)
        if np.count_nonzero(n) < 3:
            raise DataError(
                "BernoulliRates needs three or more clients with trials (two remain when one is left out); "
                f"got {np.count_nonzero(n)}. Add clients, or pass a known prior=(alpha, beta)."
            )
        if self.weight is None and np.count_nonzero(n >= 2) < 3:
            raise DataError(
                "The population variance cannot be separated from the noise unless three clients have at least two "
                f"trials; got {np.count_nonzero(n >= 2)}. Collect more trials, or pass weight or prior."
            )
        return self._fit_left_out(z, n)

    def predict(self, successes: Any, trials: Any = None) -> Array:
        """Rates of known or new clients, (α + Z)/(α + β + n) under the learned prior; the prior stays as it is."""
        check_is_fitted(self, "rates_")
        z, n, _ = read_rates(successes, trials)
        if not np.isfinite(self.prior_).all():
            return np.full_like(z, self.mean_)
        own = n / np.maximum(n + self.prior_.alpha + self.prior_.beta, 1e-300)
        rate = np.divide(z, n, out=np.zeros_like(z), where=n > 0)
        if self.weight is not None:
            own = np.where(n > 0, self.weight, 0.0)
        return np.asarray(own * rate + (1 - own) * self.mean_)

    personalise = predict

    def _own_weights(self, n: Array, mean: Array, variance: Array) -> Array:
        """a = nσ²/(μ(1−μ) + (n−1)σ²), the stable form of n/(α+β+n); 0 where σ² = 0 or μ ∈ {0, 1}."""
        if self.weight is not None:
            return np.where(n > 0, self.weight, 0.0)
        odds = mean * (1 - mean)
        below = odds + (n - 1) * variance
        own = np.divide(n * variance, below, out=np.zeros_like(n), where=(odds > 0) & (below > 0))
        return np.clip(own, 0.0, 1.0)

    def _finish(
        self, z: Array, n: Array, own: Array, centre: Array | float, sampling: Array, mean: float, variance: float
    ) -> None:
        local = np.divide(z, n, out=np.zeros_like(z), where=n > 0)
        self.weights_ = own
        self.rates_ = self.estimates_ = own * local + (1 - own) * centre
        self.mean_, self.prior_variance_ = mean, variance
        noise = mean * (1 - mean) - variance
        per_trial = np.divide(noise, n, out=np.zeros_like(n), where=n > 0)
        self.client_risk_ = own**2 * per_trial + (1 - own) ** 2 * (variance + sampling)
        self.risk_ = float(self.client_risk_.mean())
        self.local_risk_ = float(noise * (1 / n).mean()) if n.all() else np.inf
        # The Beta posterior has n/a pseudo-trials; the error of the common mean adds to its variance.
        posterior = own * self.rates_ * (1 - self.rates_) / (n + own + (n + own == 0))
        prior_only = np.where(n == 0, variance, 0.0)
        self.standard_errors_ = np.sqrt(posterior + prior_only + (1 - own) ** 2 * sampling)

    def _fit_known(self, z: Array, n: Array, alpha: float, beta: float) -> BernoulliRates:
        mean = alpha / (alpha + beta)
        self._finish(z, n, n / (n + alpha + beta), mean, np.zeros_like(z), mean, mean * (1 - mean) / (alpha + beta + 1))
        self.prior_ = BetaPrior(float(alpha), float(beta))
        return self

    def _fit_private(self, z: Array, n: Array, privacy: Privacy) -> BernoulliRates:
        """Theorem 4 with the user split (erratum E07); the weight takes σ² one error higher.

        The risk takes it one error higher or lower, whichever is worse in each term."""
        if self.prior is not None or self.weight is not None:
            raise ConfigError("BernoulliRates takes privacy, or a known prior or weight, got both; pass one of them.")
        if n.min() != n.max() or n.min() < 2 or len(n) < 4:
            raise DataError(
                "a private fit needs four or more clients with one public number of trials, two or more; "
                f"got {len(n)} clients with {n.min():g} to {n.max():g} trials. Use the same number for all."
            )
        account = Account.open(privacy, (), self.random_state)
        epsilon = privacy.epsilon * (1 - 1e-6)  # the ledger rounds upwards
        moments = account.keep(rate_moments(z, int(n[0]), epsilon, account.noise, account.book, seed=self.random_state))
        choices = {"number of trials": "public", "split of the clients": "public"}
        self.receipt_ = account.closed(len(z), choices, guarantee="local", not_covered=NOT_COVERED)
        mean, odds = moments.mean, moments.mean * (1 - moments.mean)
        variance = min(moments.variance + moments.variance_error, odds)
        reports, low_high = int(moments.split.sum()), OneBit("reports", epsilon).values
        sampling = (mean - low_high[0]) * (low_high[1] - mean) / reports  # two-valued reports with this mean
        own = self._own_weights(n, np.full_like(z, mean), np.full_like(z, variance))
        self._finish(z, n, own, mean, np.full_like(z, sampling), mean, variance)
        lower = max(moments.variance - moments.variance_error, 0.0)
        self.client_risk_ = own**2 * (odds - lower) / n + (1 - own) ** 2 * (variance + sampling)
        self.risk_, self.local_risk_ = float(self.client_risk_.mean()), (odds - lower) / float(n[0])
        self.standard_errors_ = np.maximum(self.standard_errors_, np.sqrt(self.client_risk_))
        self.prior_ = BetaPrior.from_moments(mean, variance)
        return self

    def _fit_left_out(self, z: Array, n: Array) -> BernoulliRates:
        rate = np.divide(z, n, out=np.zeros_like(z), where=n > 0)
        pilot = _Moments(rate, n, (n > 0).astype(np.float64), left_out=False)
        precision = _precision(n, float(pilot.mean), float(pilot.corrected))
        others = _Moments(rate, n, precision, left_out=True)
        everyone = _Moments(rate, n, precision, left_out=False)
        own = self._own_weights(n, others.mean, others.corrected)
        sampling = everyone.variance_of_mean()
        mean, prior_variance = float(everyone.mean), float(everyone.corrected)
        self._finish(z, n, own, others.mean, np.full_like(z, sampling), mean, prior_variance)
        self.prior_ = BetaPrior.from_moments(mean, prior_variance)
        return self

    @guarded
    def interval(self, level: Level = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high): the Beta distribution with mean rates_ and deviation standard_errors_."""
        check_is_fitted(self, "rates_")
        tail = (1 - level) / 2
        p, variance = self.rates_, self.standard_errors_**2
        odds = p * (1 - p)
        shape = np.divide(odds, variance, out=np.full_like(p, 2.0), where=(variance > 0) & (odds > 0)) - 1
        proper = (variance > 0) & (odds > 0) & (shape > 0)
        size = np.where(proper, shape, 1.0)
        a, b = np.where(proper, p * size, 1.0), np.where(proper, (1 - p) * size, 1.0)
        low, high = beta_distribution.ppf(tail, a, b), beta_distribution.ppf(1 - tail, a, b)
        return np.where(proper, low, p), np.where(proper, high, p)


@guarded
def rates_bound(
    *,
    prior: tuple[Positive, Positive],
    samples: Count,
    clients: Count,
    weight: Share | None = None,
    epsilon: Positive | None = None,
) -> float:
    """What E(p̂_i − p_i)² is at most, with probability 1 − 1/(mn), if p̂_i = a X̄_i + (1 − a) μ_i for p ~ Beta(α, β).

    a²·αβ/(n(α+β)(α+β+1)) + (1 − a)²(σ² + c²), where c bounds how far μ_i, the mean of the m − 1 others, is off.
    Theorem 3 has c² = 3 log(4m²n)/(m−1). With `epsilon` the others send one private bit, and Theorem 4 has
    c² = (e^ε+1)² log(4m²n)/(2(e^ε−1)²(m−1)), with Hoeffding's exponent 2 for the printed 3 (erratum E08).
    Without `weight` a is n/(n+α+β)."""
    if clients < 2:
        raise ConfigError(f"rates_bound needs clients of at least 2, as μ_i is the mean of the others; got {clients}.")
    a, b = prior
    own = samples / (samples + a + b) if weight is None else weight
    spread = a * b / ((a + b) ** 2 * (a + b + 1))
    off = (
        math.log(4 * clients**2 * samples)
        / (clients - 1)
        * (3 if epsilon is None else 0.5 / math.tanh(epsilon / 2) ** 2)
    )
    return float(own**2 * spread * (a + b) / samples + (1 - own) ** 2 * (spread + off))


def _precision(n: Array, mean: float, variance: float) -> Array:
    """1/Var X̄_i, Var X̄_i = σ²(1−1/n) + μ(1−μ)/n, scaled to 1 for equal trials; 0 for clients without any."""
    has = n > 0
    total = np.divide(mean * (1 - mean) - variance, n, out=np.zeros_like(n), where=has) + variance
    if total[has].min() <= 0:
        return has.astype(np.float64)
    precision: Array = np.divide(total[has].max(), total, out=np.zeros_like(n), where=has)
    return precision


class _Moments:
    """Weighted mean and variance of the rates, of all clients or with each client left out, from sums alone (O(m))."""

    def __init__(self, rate: Array, n: Array, w: Array, left_out: bool) -> None:
        def total(values: Array) -> Array:
            whole = np.asarray(values.sum())
            return whole - values if left_out else whole

        inverse = np.divide(1.0, n, out=np.zeros_like(n), where=n > 0)
        self.sum = total(w)
        mean = total(w * rate) / self.sum
        rounding = 8 * np.finfo(np.float64).eps * len(rate)  # the error of a difference of sums
        self.mean = np.where(mean < rounding, 0.0, np.where(mean > 1 - rounding, 1.0, mean))
        centred = rate - rate.mean()  # The spread is the same, and fewer digits cancel.
        spread = np.maximum(total(w * centred**2) - total(w * centred) ** 2 / self.sum, 0.0)
        # E spread = Σ w_i (1 − w_i/W) Var X̄_i, with Var X̄_i = σ²(1 − 1/n_i) + μ(1−μ)/n_i
        freedom = self.sum - total(w**2) / self.sum
        noise = total(w * inverse) - total(w**2 * inverse) / self.sum
        odds = self.mean * (1 - self.mean)
        signal = freedom - noise
        estimate = np.divide(spread - odds * noise, signal, out=np.zeros_like(spread), where=signal > 1e-12 * freedom)
        self.corrected = np.clip(estimate, 0.0, odds)
        self._squares = float((w**2 * (self.corrected * (1 - inverse) + odds * inverse)).sum()) if not left_out else 0.0

    def variance_of_mean(self) -> float:
        """Var μ̂ = Σ w_i² Var X̄_i / W²."""
        return self._squares / float(self.sum) ** 2


def check_counts(successes: ArrayLike, trials: ArrayLike) -> tuple[Array, Array]:
    """Successes and trials as arrays, one number per client; anything but counts is refused with one sentence."""
    z, n = finite("successes", successes), finite("trials", trials)
    if z.ndim != 1 or len(z) == 0 or n.ndim > 1 or (n.ndim == 1 and n.shape != z.shape):
        raise DataError(
            "successes must be a non-empty list of counts, one per client, and trials as many or one number; "
            f"got shapes {z.shape} and {n.shape}. Pass one number per client in each."
        )
    n = np.broadcast_to(n, z.shape).astype(np.float64)
    if (z < 0).any() or (z > n).any():
        raise DataError("Every client needs 0 <= successes <= trials; got a client outside. Check the two columns.")
    if (z % 1).any() or (n % 1).any():
        raise DataError("successes and trials must be whole numbers (counts); got fractions. Pass counts, not rates.")
    return z, n


def read_rates(successes: Any, trials: Any) -> tuple[Array, Array, Any]:
    """Successes, trials and the names of the clients, from lists, dicts, Series or a table of two columns."""
    if trials is None:
        table = successes
        if isinstance(table, pd.DataFrame) and {"successes", "trials"} <= set(table.columns):
            table = table[["successes", "trials"]]
        if np.ndim(table) != 2 or np.shape(table)[1] != 2:
            raise DataError(
                "BernoulliRates needs successes and trials, or a table of these two columns; "
                f"got an array of shape {np.shape(table)} alone. Pass both."
            )
        names = table.index.to_numpy() if isinstance(table, pd.DataFrame) else np.arange(len(table))
        both = finite("successes and trials", table)
        return *check_counts(both[:, 0], both[:, 1]), names
    successes = pd.Series(successes) if isinstance(successes, Mapping) else successes
    trials = pd.Series(trials) if isinstance(trials, Mapping) else trials
    names = np.arange(finite("successes", successes).size)
    if isinstance(successes, pd.Series):
        names = successes.index.to_numpy()
        if isinstance(trials, pd.Series):
            if not successes.index.is_unique or set(trials.index) != set(successes.index):
                raise DataError(
                    "successes and trials must have the same clients; got different ones. Give both for each client."
                )
            trials = trials.loc[successes.index]
    return *check_counts(successes, trials), names
