"""Gaussian means: every client shrinks its own mean towards the mean of all.

Theorems 1 and 2 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: θ_i `estimates_`, μ `mean_`, σ_θ² `prior_variance_`, σ_x² `noise_variance_`, a_i `weights_`
(the weight of a client's own mean), q `mechanism`, σ_q² its `variance`, v_i = σ_x²/n_i.

Clients send n_i, X̄_i and their scatter; the server needs only weighted sums of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Level, NotNegative, Positive
from coterie.base.deprecated import renamed
from coterie.errors import ConfigError, DataError
from coterie.estimation.client_sums import ClientMeans, ClientSums
from coterie.estimation.conventions import Array
from coterie.estimation.private_means import CENTRAL_QUANTISED, central_mean, local_mean, own_weights
from coterie.estimation.quantiser import Mechanism, sent
from coterie.privacy import Privacy
from coterie.privacy.settings import Budget


@dataclass(frozen=True)
class Combination:
    """Optimal weights of one round: own weight a_i, shares c_i in the common mean, and the risk per coordinate."""

    own: Array
    shares: Array
    risk: Array


def combine(noise: Array, prior_variance: float, mechanism_variance: float = 0.0) -> Combination:
    """The a_i that minimise the risk of a_i X̄_i + (1−a_i) Σ_j c_j q(X̄_j), for v_i = `noise` (possibly unequal).

    The risk of client i per coordinate is a²v + (1−a)²D + 2a(1−a)cv with D = E(μ̂_q − θ_i)²; with equal n_i this is
    Theorem 2's a = s/(s+v), s = σ_θ² + σ_q²/(m−1), and with σ_q = 0 Theorem 1's a = σ_θ²/(σ_θ²+v).
    """
    total = prior_variance + noise + mechanism_variance
    exact = total == 0  # A client without any variance knows μ exactly.
    precision = exact.astype(np.float64) if exact.any() else 1 / total
    shares = precision / precision.sum()
    gap = float(np.square(shares) @ total) + prior_variance * (1 - 2 * shares)
    numerator, denominator = gap - shares * noise, noise + gap - 2 * shares * noise
    matters = denominator > 1e-14 * (noise + gap)  # A client that is alone, or has no noise, keeps its own mean.
    own = np.clip(np.where(matters, numerator / np.where(matters, denominator, 1.0), 1.0), 0.0, 1.0)
    risk = own**2 * noise + (1 - own) ** 2 * gap + 2 * own * (1 - own) * shares * noise
    return Combination(own, shares, np.maximum(risk, 0.0))


@guarded
def least_risk(
    *,
    samples: Positive,
    dimension: Count = 1,
    prior_variance: NotNegative,
    noise_variance: NotNegative,
    clients: Count | None = None,
) -> float:
    """The smallest average risk E‖θ̂_i − θ_i‖² any estimator can have under θ_i ~ N(μ, σ_θ² I) (E-9, Remark 2).

    d·v·a with v = σ_x²/n and a = σ_θ²/(σ_θ² + v) where μ is known (clients=None); d·v·(a + (1−a)/m) where m clients must
    find it, minimax over μ. `GaussianMeans` with known variances reaches both. It bounds the average over clients, not one
    θ_i (erratum E04)."""
    v = noise_variance / samples
    if v == 0:
        return 0.0
    own = prior_variance / (prior_variance + v)
    return dimension * v * (own + (0.0 if clients is None else (1 - own) / clients))


def between_variance(sums: ClientSums, noise_variance: float) -> float:
    """σ̂_θ²: the root of Σ_i ‖X̄_i − μ̂‖²/(σ_θ² + v_i) = (m−1)d, or 0 where the means scatter less than their noise.

    For equal n_i this is the moment estimate max(0, Σ‖X̄_i−μ̂‖²/((m−1)d) − σ_x²/n). It is not the joint MAP, whose
    objective has no minimum (erratum E19).
    """
    if sums.clients < 2:
        raise DataError("The prior variance needs two or more clients; got 1. Pass prior_variance, or add clients.")
    noise = noise_variance / sums.counts
    freedom = (sums.clients - 1) * sums.dimension

    def surplus(prior_variance: float) -> float:
        precision = 1 / (prior_variance + noise)
        mean = precision @ sums.means / precision.sum()
        return float(precision @ np.square(sums.means - mean).sum(1)) - freedom

    spread = float(np.square(sums.means - sums.means.mean(0)).sum()) / freedom
    if spread == 0:
        return 0.0
    lowest = 0.0 if noise.min() > 0 else spread * 1e-12
    if surplus(lowest) <= 0:
        return 0.0
    return float(brentq(surplus, lowest, 2 * spread + noise.max(), xtol=1e-14 * spread, rtol=1e-13))


@renamed
@dataclass(eq=False, repr=False)
class GaussianMeans(ClientMeans):
    """Personalised means of clients whose samples are Gaussian around their own θ_i ~ N(μ, σ_θ² I).

    Parameters
    ----------
    prior_variance, noise_variance : known σ_θ² and σ_x² per coordinate; None estimates them.
    mechanism : unbiased map applied to the means sent to the server, such as `Quantiser(bits=4, radius=b)` or
        `VectorQuantiser(points=8, radius=r)`. Means are clipped to the radius first; `clipping_radius` and `norm_bound` give
        safe ones. Needs both variances (they fix the radius, and count as public). The client's own mean stays exact.
        With trust="local" it is applied after the noise, and its radius must hold the noisy means.
    random_state : of the mechanism's randomness, and of simulated privacy noise; unused without them.
    privacy : a `ct.Privacy`; its `clip` is the radius R to which the clients' means are clipped. noise_variance is then
        public and must be given.
    trust : of a private fit: "central", where a server adds noise to the joint sum of all means (and of their squares, if
        prior_variance is None), or "local", where each client adds noise itself and prior_variance must be given too.

    Attributes
    ----------
    estimates_ (m, d), weights_ (m,) own weight a_i, mean_ (d,), prior_variance_, noise_variance_, standard_errors_ (m,)
    per coordinate, client_risk_ (m,) and risk_ = the closed-form E‖θ̂_i − θ_i‖², local_risk_ = d·σ_x²·mean(1/n_i),
    clipped_ (clients whose mean was clipped), n_features_in_ (d), clients_ (their names or numbers), feature_names_in_ of a
    frame. Samples that are plain numbers give estimates_ (m,) and a number mean_.

    A private fit has receipt_, and no clipped_. Its mean_ and prior_variance_ may be shown to all; row i of the others is
    for client i alone (joint privacy). Risks and standard errors include the noise.

    With estimated variances, standard errors and risk plug the estimates in and do not count their uncertainty.
    """

    prior_variance: NotNegative | None = None
    noise_variance: NotNegative | None = None
    mechanism: Mechanism | None = None
    random_state: int = 0
    privacy: Budget | None = None
    trust: Literal["central", "local"] = "central"

    def _fit(self, sums: ClientSums) -> None:
        if self.mechanism is not None and None in (self.noise_variance, self.prior_variance):
            raise ConfigError(
                "A mechanism needs both variances known, since they set its radius; got None. "
                "Pass prior_variance and noise_variance."
            )
        if self.privacy is not None:
            self._fit_private(sums, self.privacy)
            return
        noise, prior = self.noise_variance, self.prior_variance
        self.noise_variance_ = float(sums.pooled_variance() if noise is None else noise)
        self.prior_variance_ = float(between_variance(sums, self.noise_variance_) if prior is None else prior)
        v = self.noise_variance_ / sums.counts
        best = combine(v, self.prior_variance_, 0.0 if self.mechanism is None else self.mechanism.variance)
        self._finish(sums, v, best.own, best.risk, best.shares @ self._sent(sums.means))

    def _finish(self, sums: ClientSums, noise: Array, own: Array, risk: Array, mean: Array) -> None:
        self.weights_ = own
        self.mean_ = sums.shaped(mean)
        self.estimates_ = sums.shaped(own[:, None] * sums.means + (1 - own)[:, None] * mean)
        self.standard_errors_ = np.sqrt(risk)
        self._keep_risk(sums.dimension * risk, sums, noise)

    def _fit_private(self, sums: ClientSums, privacy: Privacy) -> None:
        """Theorem 2 with the repairs of `private_means`; the client's own mean stays exact and on its device."""
        if self.mechanism is not None and self.trust == "central":
            raise ConfigError(CENTRAL_QUANTISED)
        noise_variance, prior_variance = self.noise_variance, self.prior_variance
        if noise_variance is None or (self.trust == "local" and prior_variance is None):
            needed = "noise_variance" if self.trust == "central" else "noise_variance and prior_variance"
            raise ConfigError(f"a private fit with trust={self.trust!r} needs public {needed}, got None; pass numbers.")
        if self.trust == "local":
            assert prior_variance is not None
            common, self.receipt_ = local_mean(sums, prior_variance, privacy, self.mechanism, self.random_state)
        else:
            common, self.receipt_ = central_mean(sums, noise_variance, prior_variance, privacy, self.random_state)
        self.noise_variance_, self.prior_variance_ = float(noise_variance), float(common.prior_variance)
        noise = noise_variance / sums.counts
        own, risk = own_weights(noise, common, sums.clients)
        self.__dict__.pop("clipped_", None)
        self._finish(sums, noise, own, risk, common.mean)

    def _sent(self, means: Array) -> Array:
        if self.mechanism is None:
            self.clipped_ = 0
            return means
        messages, self.clipped_ = sent(self.mechanism, means, self.random_state)
        return messages

    def transform(self, samples: Any, groups: Any = None) -> Array:
        """Estimates of known or new clients from their samples: a X̄ + (1−a) μ̂ with a = σ_θ²/(σ_θ² + v). Nothing is learned.

        A client seen in fit is treated as a new one: its samples are taken to be independent of μ̂."""
        sums = self._new(samples, groups)
        total = self.prior_variance_ + self.noise_variance_ / sums.counts
        own = np.divide(self.prior_variance_, total, out=np.ones_like(total), where=total > 0)[:, None]
        return sums.shaped(own * sums.means + (1 - own) * self.mean_)

    @guarded
    def interval(self, level: Level = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) per client and coordinate, for a flat prior on μ."""
        check_is_fitted(self, "estimates_")
        reach = float(norm.ppf(0.5 + level / 2)) * self.standard_errors_
        reach = reach if self.estimates_.ndim == 1 else reach[:, None]
        return self.estimates_ - reach, self.estimates_ + reach
