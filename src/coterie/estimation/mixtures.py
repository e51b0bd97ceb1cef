"""Means from a discrete mixture: every client's θ_i is one of k centres, or close to one.

Theorem 5 and Algorithm 1 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Symbols: μ_l `centers_`, p_l `proportions_`, w_il `weights_`, σ_x² `noise_variance_`, σ_θ²
`component_variance_` (0: point masses, Theorem 5; > 0: Gaussian components, E-6g), v_i = σ_x²/n_i, T_i = σ_θ² + v_i.

The centres are found by EM. In Algorithm 1 each round's estimates lie between the centres, and the next centres are means
of these estimates: where clusters overlap, they end in one point (E11). The centres of EM are means of the X̄_i.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp, ndtr, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from coterie.base.annotations import check_settings, guarded
from coterie.base.arguments import Count, Level, NotNegative, finite
from coterie.base.deprecated import renamed
from coterie.base.kmeans import kmeans
from coterie.errors import ConfigError
from coterie.estimation.client_sums import ClientMeans, ClientSums
from coterie.estimation.conventions import Array, Ints
from coterie.estimation.private_means import (
    CENTRAL_QUANTISED,
    NOT_COVERED,
    ROUNDS,
    MixtureRounds,
    NoisyGroups,
    PrivateMixture,
    local_receipt,
    local_reports,
    next_mixture,
    start_mixture,
)
from coterie.estimation.quantiser import Mechanism, sent
from coterie.privacy import Line, Privacy, Released, public
from coterie.privacy.account import Account
from coterie.privacy.settings import Budget

FLOOR = 1e-300


def log_joint(means: Array, proportions: Array, centers: Array, total: Array) -> Array:
    """log p_l + log N(X̄_i; μ_l, T_i I), (m, k). In logarithms, since the printed exponentials underflow (erratum E09)."""
    middle = centers.mean(0)  # Far from the origin the expanded squares would lose digits.
    means, centers = means - middle, centers - middle
    square = np.square(means).sum(1)[:, None] - 2 * means @ centers.T + np.square(centers).sum(1)
    with np.errstate(divide="ignore"):  # log 0 = −∞: nobody belongs to this component
        prior = np.log(proportions)
    d = means.shape[1]
    density: Array = prior - 0.5 * d * np.log(2 * np.pi * total)[:, None] - np.maximum(square, 0) / (2 * total[:, None])
    return density


def _centre_variance(means: Array, w: Array, centers: Array, total: Array) -> Array:
    """Sampling variance of every centre coordinate (k, d): the inverse of the information Σ_i s_i s_iᵀ of the scores.

    With fewer clients than the scores need, the complete-data variance 1/Σ_i w_il/T_i stands in. Where centres coincide,
    or nobody belongs to one, the information is singular; but a centre lies among the X̄_i, so its variance is at most
    theirs.
    """
    k, d = centers.shape
    complete: Array = np.minimum(1 / np.maximum((w / total[:, None]).sum(0), FLOOR)[:, None], means.var(0))
    if len(means) < 4 * k * (d + 1) or k * d > 1000 or w.sum(0).min() < 2:
        return complete
    scores = (w / total[:, None])[:, :, None] * (means[:, None] - centers)
    proportions = w[:, 1:] / w[:, 1:].mean(0) - w[:, :1] / w[:, 0].mean()
    score = np.hstack([scores.reshape(len(means), k * d), proportions])
    variance = np.diag(np.linalg.pinv(score.T @ score, hermitian=True))[: k * d].reshape(k, d)
    out: Array = np.clip(variance, complete, means.var(0))
    return out


@renamed
@dataclass(eq=False, repr=False)
class MixtureMeans(ClientMeans):
    """Personalised means of clients that fall into `clusters` groups.

    Parameters
    ----------
    clusters : k, at most the number of clients.
    noise_variance : σ_x² per coordinate; None pools the within-client variance.
    component_variance : σ_θ² within a cluster; 0 for point masses, None to estimate it.
    prior : known (proportions, centers); then only the posterior means are computed (Theorem 5).
    max_iter, tol : rounds, and the change at which they stop. EM looks at the log-likelihood (nats per client) and σ_θ² (in
        variances of a client's mean), and warns if max_iter comes first.
    n_init, random_state : of the k-means++ initialisation.
    privacy : a `ct.Privacy`; its `clip` is the radius R of the ball to which the clients' means are clipped. EM then starts
        from public centres and releases noisy sums; noise_variance is public and must be given.
    rounds : of a private fit, fixed in advance.
    trust : of a private fit: "central", or "local", where each client reports its mean once with its own noise, EM runs
        on the reports, and component_variance must be a number. Local noise is large: see risk_ before use.
    mechanism : `Quantiser` or `VectorQuantiser` of `ct.estimation`: the server finds the centres from quantised means. The
        client's own mean stays exact. In a private fit with trust="local" the quantiser follows the noise.

    Attributes
    ----------
    estimates_ (m, d), weights_ (m, k) posterior probabilities, labels_ (m,), centers_ (k, d), proportions_ (k,),
    own_weights_ (m,) the weight a_i of the client's own mean (0 for point masses), noise_variance_,
    component_variance_, standard_errors_ (m, d), client_risk_ (m,), risk_ = Bayes risk of the fitted prior,
    local_risk_, n_iter_, converged_ (False: EM ran into max_iter). A private fit has receipt_: centers_, proportions_ and
    component_variance_ may be shown to all, row i of the others is for client i alone (joint privacy). Its risks and
    intervals include the noise of the centres.
    """

    clusters: int = 2
    noise_variance: NotNegative | None = None
    component_variance: NotNegative | None = 0.0
    prior: tuple[Array, Array] | None = None
    max_iter: int = 500
    tol: float = 1e-6
    n_init: int = 10
    random_state: int = 0
    privacy: Budget | None = None
    rounds: Count = ROUNDS
    trust: Literal["central", "local"] = "central"
    mechanism: Mechanism | None = None

    def _fit(self, sums: ClientSums) -> None:
        self.fit_sums(sums)
        if not self.converged_:
            warnings.warn(
                f"MixtureMeans stopped after max_iter={self.max_iter} rounds of EM before it converged. "
                "Raise max_iter, or lower clusters.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def fit_sums(self, sums: ClientSums) -> MixtureMeans:
        """Fit from the numbers that the clients send: counts, means and scatters."""
        check_settings(self)
        if self.prior is None and self.clusters > sums.clients:
            raise ConfigError(
                f"clusters must be at most the number of clients, {sums.clients}; got {self.clusters}. Lower it."
            )
        if self.privacy is not None and self.prior is not None:
            raise ConfigError("a private fit needs prior=None; got a prior, leave it out.")
        if self.privacy is not None and not self.noise_variance:
            raise ConfigError("a private fit needs a public noise_variance above 0, got None or 0; pass a number.")
        if self.privacy is not None and self.trust == "central" and self.mechanism is not None:
            raise ConfigError(CENTRAL_QUANTISED)
        if self.privacy is not None and self.trust == "local" and self.component_variance is None:
            raise ConfigError('a private fit with trust="local" needs a public component_variance, got None; pass one.')
        self.noise_variance_ = float(sums.pooled_variance() if self.noise_variance is None else self.noise_variance)
        spread = 1.0 if self.privacy is not None else float(sums.means.var(0).mean())
        least = max(1e-24 * spread, FLOOR)  # so that without noise the nearest centre is taken
        noise = np.maximum(self.noise_variance_ / sums.counts, least)
        within = self.component_variance
        self.component_variance_ = float(np.mean(noise) if within is None else within)
        self._private_error: Array | None = None
        self._component_error, self.converged_ = 0.0, True
        if self.privacy is not None and self.trust == "local":
            self._fit_local(sums, self.privacy)
        elif self.privacy is not None:
            self._fit_private(sums, noise, self.privacy)
        elif self.prior is not None:
            self._take_prior(sums)
        elif self.mechanism is not None:
            messages = sent(self.mechanism, sums.means, self.random_state)[0]
            around = noise + self.mechanism.variance
            self._learn_from(self._seen(messages, around, within), messages, around)
        else:
            self._expect_maximise(sums, noise)
        self._finish(sums, noise)
        return self

    def _take_prior(self, sums: ClientSums) -> None:
        p, mu = (finite("prior", part) for part in self.prior or ())
        mu = mu[:, None] if mu.ndim == 1 else mu
        if p.ndim != 1 or mu.shape != (len(p), sums.dimension) or (p < 0).any() or abs(p.sum() - 1) > 1e-9:
            raise ConfigError(
                f"prior must be (proportions (k,) summing to 1, centers (k, {sums.dimension})); "
                f"got shapes {p.shape} and {mu.shape}, sum {p.sum():g}. "
                "Pass one proportion and one centre per cluster."
            )
        self.proportions_, self.centers_, self.n_iter_ = p, mu, 0

    def _fit_private(self, sums: ClientSums, noise: Array, privacy: Privacy) -> None:
        """E-7em, every M-step from one joint release. The centres of the first round depend on no data."""
        account = Account.open(privacy, [Line("rounds", 1.0, self.rounds)], self.random_state)
        run = MixtureRounds(sums, self.noise_variance_, self.clusters, self.component_variance, account, self.rounds)
        rng, here = np.random.default_rng([self.random_state, 2]), start_mixture(run, self.random_state)
        averaged: Released[NoisyGroups | None] = public(None)
        for number in range(self.rounds):
            self._take_mixture(here.value)
            w, _ = self._posterior(run.rows, noise)
            here, averaged = next_mixture(run, (here, averaged), w, number, rng)
        self._take_mixture(account.keep(here))
        self.n_iter_, self._private_error = self.rounds, here.value.centre_variance
        self._component_error = here.value.component_error
        choices = {"noise variance": "public", "clip": "public", "start": "public"}
        self.receipt_ = account.closed(sums.clients, choices, not_covered=NOT_COVERED)

    def _seen(self, messages: Array, noise: Array, within: float | None) -> MixtureMeans:
        """The mixture of what the clients sent, where `noise` is the variance of each message around its client's mean."""
        own = {name: getattr(self, name) for name in ("clusters", "max_iter", "tol", "n_init", "random_state")}
        found = MixtureMeans(**own, noise_variance=1.0, component_variance=within)
        return found.fit_sums(ClientSums(1 / noise, messages, np.zeros_like(noise), scalar=False))

    def _learn_from(self, seen: MixtureMeans, messages: Array, noise: Array) -> None:
        self.proportions_, self.centers_, self.n_iter_ = seen.proportions_, seen.centers_, seen.n_iter_
        self.component_variance_, self.converged_ = seen.component_variance_, seen.converged_
        total = seen.component_variance_ + noise
        self._private_error = _centre_variance(messages, seen.weights_, seen.centers_, total)

    def _fit_local(self, sums: ClientSums, privacy: Privacy) -> None:
        """EM on one noisy report per client. The reports' variance beyond that of the noise is fitted, as numbers of samples
        are secret."""
        account, reports, added = local_reports(sums, privacy, self.mechanism, self.random_state)
        variance = np.full(sums.clients, added)
        seen = account.keep(reports.map(lambda x: self._seen(x, variance, None)))
        self._learn_from(seen, reports.value, variance)
        self.component_variance_ = float(self.component_variance or 0.0)
        self.receipt_ = local_receipt(account, sums.clients, "component variance")

    def _take_mixture(self, found: PrivateMixture) -> None:
        self.proportions_, self.centers_ = found.proportions, found.centers
        self.component_variance_ = found.component_variance

    def _centre_error(self, means: Array, w: Array, total: Array) -> Array | float:
        """Variance of the learned centres (k, d); a private fit released it."""
        if self._private_error is not None:
            return self._private_error
        return _centre_variance(means, w, self.centers_, total) if self.prior is None else 0.0

    def _posterior(self, means: Array, noise: Array) -> tuple[Array, Array]:
        """w_il, and θ̂_i = Σ_l w_il (a_i X̄_i + (1−a_i) μ_l)."""
        total = self.component_variance_ + noise
        w: Array = softmax(log_joint(means, self.proportions_, self.centers_, total), axis=1)
        own = (self.component_variance_ / total)[:, None]
        return w, own * means + (1 - own) * (w @ self.centers_)

    def _cluster(self, points: Array, rng: np.random.Generator) -> float:
        """Cluster({θ_i}, k): k-means++ with restarts; p_l = |S_l|/m. Returns the variance within the clusters."""
        means = kmeans(points, self.clusters, restarts=self.n_init, seed=int(rng.integers(2**31)))
        self.centers_ = np.asarray(means.cluster_centers_, dtype=np.float64)
        self.proportions_ = np.bincount(means.labels_, minlength=self.clusters) / len(points)
        freedom = points.shape[1] * max(len(points) - self.clusters, 1)
        return float(np.square(points - self.centers_[means.labels_]).sum() / freedom)

    def _expect_maximise(self, sums: ClientSums, noise: Array) -> None:
        """E-7em: p_l = mean_i w_il, μ_l = Σ_i w_il X̄_i/T_i / Σ_i w_il/T_i; with Gaussian components also σ_θ².

        EM has converged when log-likelihood and σ_θ² no longer change. Where groups are far apart, the centres are right
        from the start, and σ_θ² is not. Where they overlap, centres still move long after the likelihood has settled."""
        within = self._cluster(sums.means, np.random.default_rng(self.random_state))
        if self.component_variance is None:
            self.component_variance_ = max(within - float(noise.mean()), 0.0)
        likelihood = -np.inf
        for t in range(1, self.max_iter + 1):
            self.n_iter_ = t
            total = self.component_variance_ + noise
            joint = log_joint(sums.means, self.proportions_, self.centers_, total)
            evidence = logsumexp(joint, axis=1, keepdims=True)
            w = np.exp(joint - evidence)
            before, variance, last = self.centers_, self.component_variance_, likelihood
            likelihood, weighted = float(evidence.sum()), w / total[:, None]
            mass = weighted.sum(0)
            self.proportions_ = w.mean(0)
            self.centers_ = np.where(
                mass[:, None] > FLOOR, weighted.T @ sums.means / np.maximum(mass, FLOOR)[:, None], before
            )
            if self.component_variance is None:
                self._update_component_variance(sums, noise, w)
            still = abs(self.component_variance_ - variance) <= self.tol * float(total.mean())
            gained = likelihood - last > max(self.tol * sums.clients, 1e-12 * abs(likelihood))
            if still and not gained:
                return
        self.converged_ = False

    def _update_component_variance(self, sums: ClientSums, noise: Array, w: Array) -> None:
        """The σ_θ² with Σ_i p_i² (Σ_l w_il (‖X̄_i − μ_l‖² + d/Σ_j w_jl p_j) − d T_i) = 0, p_i = 1/T_i, or 0.

        A centre lies closer to its own clients than the true one does, by its variance 1/Σ_j w_jl p_j (as in REML)."""
        square = np.stack([np.square(sums.means - centre).sum(1) for centre in self.centers_], axis=1)
        away = (w * square).sum(1) / sums.dimension
        for _ in range(20):
            before, precision = self.component_variance_, 1 / (self.component_variance_ + noise)
            centre = w @ (1 / np.maximum(precision @ w, 1 / (before + float(noise.max()))))
            weight = precision**2 / (precision**2).sum()
            self.component_variance_ = max(float(weight @ (away + centre - noise)), 0.0)
            if abs(self.component_variance_ - before) <= 1e-9 * (before + float(noise.mean())):
                break

    def _finish(self, sums: ClientSums, noise: Array) -> None:
        total = self.component_variance_ + noise
        w, estimates = self._posterior(sums.means, noise)
        self.own_weights_ = self.component_variance_ / total
        self.weights_ = w
        self.labels_ = w.argmax(1)
        self.__dict__.pop("log_likelihood_", None)
        if self.privacy is None:  # it would reveal something about all clients
            joint = log_joint(sums.means, self.proportions_, self.centers_, total)
            self.log_likelihood_ = float(logsumexp(joint, axis=1).sum())
        away = 1 - self.own_weights_
        # One normal distribution per client and component: its mean, and its variance with the error of the learned centre.
        self._locations = self.own_weights_[:, None, None] * sums.means[:, None] + away[:, None, None] * self.centers_
        centre_error = self._centre_error(sums.means, w, total)
        within = self.own_weights_ * noise + away**2 * self._component_error  # a·v = a²v + (1−a)²σ_θ²
        self._spreads = within[:, None, None] + away[:, None, None] ** 2 * centre_error
        variance = (w[:, :, None] * (np.square(self._locations - estimates[:, None]) + self._spreads)).sum(1)
        self.standard_errors_ = sums.shaped(np.sqrt(variance))
        self._keep_risk(variance.sum(1), sums, noise)
        self.estimates_ = sums.shaped(estimates)
        self._scalar = sums.scalar

    def _of_new(self, samples: Any, groups: Any) -> tuple[Array, Array]:
        """Posterior probabilities and means of clients under the mixture learned."""
        sums = self._new(samples, groups)
        w, estimates = self._posterior(sums.means, np.maximum(self.noise_variance_ / sums.counts, FLOOR))
        return w, sums.shaped(estimates)

    def transform(self, samples: Any, groups: Any = None) -> Array:
        """Posterior means of clients known or new from their samples; nothing is learned."""
        return self._of_new(samples, groups)[1]

    def predict_proba(self, samples: Any, groups: Any = None) -> Array:
        """Posterior probability of every cluster, (m, k), for clients known or new."""
        return self._of_new(samples, groups)[0]

    def predict(self, samples: Any, groups: Any = None) -> Ints:
        """The most probable cluster of clients known or new."""
        return np.asarray(self.predict_proba(samples, groups).argmax(1), dtype=np.int64)

    @guarded
    def interval(self, level: Level = 0.95) -> tuple[Array, Array]:
        """Posterior intervals (low, high) per client and coordinate: quantiles of each client's mixture of normals."""
        check_is_fitted(self, "estimates_")
        tail = (1 - level) / 2
        low, high = self._quantile(tail), self._quantile(1 - tail)
        return (low[:, 0], high[:, 0]) if self._scalar else (low, high)

    def _quantile(self, probability: float) -> Array:
        """Bisection on the mixture's distribution function, all clients and coordinates at once."""
        deviation = np.broadcast_to(np.sqrt(np.maximum(self._spreads, FLOOR)), self._locations.shape)
        low = (self._locations - 40 * deviation).min(1)
        high = (self._locations + 40 * deviation).max(1)
        for _ in range(60):
            middle = (low + high) / 2
            below = (self.weights_[:, :, None] * ndtr((middle[:, None] - self._locations) / deviation)).sum(
                1
            ) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        middle = (low + high) / 2
        return np.asarray(middle, dtype=np.float64)
