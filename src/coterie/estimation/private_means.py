"""Private forms of the Gaussian and the mixture estimators: the clients' messages, and the server's computations.

Section 3 of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy"
(Ozkara, Girgis, Data, Diggavi, 2023, https://arxiv.org/abs/2207.01771), repaired: means are clipped to an L2 ball (errata
E02, E03), one (μ, σ²) is released for all (leave-one-out means reveal X̄_i by differencing), and variances that set the
scale of the noise are public (E22). Clients count equally, since a client's number of samples is also secret.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.base.kmeans import kmeans
from coterie.errors import ConfigError
from coterie.estimation.client_sums import ClientSums
from coterie.estimation.conventions import Array
from coterie.estimation.quantiser import Mechanism, Quantiser, VectorQuantiser, sent
from coterie.privacy import JointSum, Line, LocalGaussian, Privacy, Receipt, Released, clip_rows, combine, public
from coterie.privacy.account import Account

ROUNDS, LATE = 15, 5
CENTRAL_QUANTISED = (
    'a private fit takes a mechanism with trust="local" only, where it follows the noise; leave one out.'
)
NOT_COVERED = (
    "risk_ and local_risk_, which average over the clients' numbers of samples",
    "rows of estimates_, weights_, own_weights_, labels_, standard_errors_ and client_risk_ in others' hands",
)


@dataclass(frozen=True)
class CommonMean:
    """μ̂, the variance of its noise per coordinate, σ_θ², and how far noise may have moved σ_θ²."""

    mean: Array
    variance: float
    prior_variance: float
    prior_error: float


def central_mean(
    sums: ClientSums, noise_variance: float, prior_variance: float | None, privacy: Privacy, seed: int
) -> tuple[CommonMean, Receipt]:
    """One joint release of [Σ X̄_i ; Σ (‖X̄_i‖² − d·v_i)/R], the second only if σ_θ² is not public. Δ = R, or √2·R.

    ‖X̄_i‖² − d·v_i has mean ‖θ_i‖², whatever n_i is."""
    radius, m, d = privacy.clip, sums.clients, sums.dimension
    account = Account.open(privacy, [Line("mean", 1.0)], seed)
    rows = clip_rows(sums.means, radius).rows
    if prior_variance is None:
        square = np.square(rows).sum(axis=1) - d * noise_variance / sums.counts
        rows = np.hstack([rows, np.clip(square, -(radius**2), radius**2)[:, None] / radius])
        radius = math.sqrt(2) * radius
    mechanism = JointSum("mean", rows.shape[1], radius, account.noise_multiplier("mean"), privacy.adjacency)
    released = mechanism(rows, account.noise, account.book)
    deviation = mechanism.sigma / m

    def read(total: Array) -> CommonMean:
        mean = total[:d] / m
        if prior_variance is not None:
            return CommonMean(mean, deviation**2, prior_variance, 0.0)
        square = float(mean @ mean) - d * deviation**2
        estimate = (float(total[d]) / m * privacy.clip - square) / d
        error = deviation * math.hypot(privacy.clip, 2 * math.sqrt(max(square, 0.0))) / d
        return CommonMean(mean, deviation**2, max(estimate, 0.0), error)

    found = account.keep(released.map(read))
    paid = "public" if prior_variance is not None else "released: mean"
    choices = {"noise variance": "public", "prior variance": paid, "clip": "public"}
    return found, account.closed(m, choices, not_covered=NOT_COVERED)


def local_reports(
    sums: ClientSums, privacy: Privacy, mechanism: Mechanism | None, seed: int
) -> tuple[Account, Released[Array], float]:
    """Each client reports clip_R(X̄_i) + N(0, σ_q²) once, the analytic Gaussian with Δ = 2R (erratum E03): the account, the
    reports, and the variance that they add to a coordinate. A quantiser comes after the noise and costs no privacy."""
    account = Account.open(privacy, [Line("reports", 1.0)], seed)
    noise = LocalGaussian("reports", sums.dimension, privacy.clip, account.noise_multiplier("reports"))
    if mechanism is None:
        return account, noise(sums.means, account.noise, account.book), noise.sigma**2
    if type(mechanism) not in (Quantiser, VectorQuantiser):
        raise ConfigError(f"a private fit takes Quantiser or VectorQuantiser as mechanism, got {mechanism!r}.")
    whole = isinstance(mechanism, VectorQuantiser)
    needed = privacy.clip + noise.sigma * (4 + (math.sqrt(sums.dimension) if whole else 0))
    if mechanism.radius < needed:
        raise ConfigError(
            f"the mechanism's radius must hold the noisy means, at least {needed:.4g} here; got {mechanism.radius:g}. "
            "Raise it, or the budget."
        )
    released = noise(sums.means, account.noise, account.book).map(lambda x: sent(mechanism, x, seed)[0])
    return account, released, noise.sigma**2 + mechanism.variance


def local_receipt(account: Account, clients: int, public_variance: str) -> Receipt:
    """The receipt of one local report per client."""
    choices = {"noise variance": "public", public_variance: "public", "clip": "public"}
    return account.closed(clients, choices, guarantee="local", not_covered=NOT_COVERED)


def local_mean(
    sums: ClientSums, prior_variance: float, privacy: Privacy, mechanism: Mechanism | None, seed: int
) -> tuple[CommonMean, Receipt]:
    """The mean of the clients' local reports."""
    account, reports, variance = local_reports(sums, privacy, mechanism, seed)
    variance /= sums.clients
    found = account.keep(reports.map(lambda x: CommonMean(x.mean(axis=0), variance, prior_variance, 0.0)))
    return found, local_receipt(account, sums.clients, "prior variance")


def own_weights(noise: Array, common: CommonMean, clients: int) -> tuple[Array, Array]:
    """a_i and the risk per coordinate of a X̄_i + (1−a) μ̂, where μ̂ is an equally weighted mean with noise.

    As `means.combine`: a²v + (1−a)²D + 2a(1−a)v/m with D = E(μ̂ − θ_i)². The risk takes σ_θ² one error higher."""

    def gap(prior_variance: float) -> Array:
        mean_error = (prior_variance + noise) / clients + common.variance
        return np.asarray(mean_error + prior_variance * (1 - 2 / clients))

    share, here = noise / clients, gap(common.prior_variance)
    below = noise + here - 2 * share
    own = np.clip(np.divide(here - share, below, out=np.ones_like(noise), where=below > 0), 0.0, 1.0)
    careful = gap(common.prior_variance + common.prior_error)
    return own, np.asarray(own**2 * noise + (1 - own) ** 2 * careful + 2 * own * (1 - own) * share)


@dataclass(frozen=True)
class NoisyGroups:
    """Noisy sums over clients and over ``rounds`` releases, by group: w, w/n_i, w·x and w·min(‖x−μ‖², R²).

    ``deviation`` is that of the noise in the sums of x, ``count_deviation`` that in the counts."""

    counts: Array
    inverse_counts: Array
    sums: Array
    squares: Array
    deviation: float
    count_deviation: float
    rounds: int

    def __add__(self, other: NoisyGroups) -> NoisyGroups:
        return NoisyGroups(
            self.counts + other.counts,
            self.inverse_counts + other.inverse_counts,
            self.sums + other.sums,
            self.squares + other.squares,
            math.hypot(self.deviation, other.deviation),
            math.hypot(self.count_deviation, other.count_deviation),
            self.rounds + other.rounds,
        )


@dataclass(frozen=True)
class PrivateMixture:
    """Proportions, centres, σ_θ², the variance of the centres' coordinates (k, d) by sampling and by noise, and how far
    noise may have moved σ_θ²."""

    proportions: Array
    centers: Array
    component_variance: float
    centre_variance: Array
    component_error: float = 0.0


def public_centers(clusters: int, dimension: int, radius: float, rng: np.random.Generator) -> Array:
    """Centres that depend on no data: k-means of points drawn evenly from the ball."""
    points = rng.normal(size=(2000, dimension))
    points *= radius * (rng.random(2000) ** (1 / dimension) / np.linalg.norm(points, axis=1))[:, None]
    return np.asarray(kmeans(points, clusters, restarts=3, seed=0).cluster_centers_, dtype=np.float64)


class MixtureRounds:
    """EM with one joint release per round: [count ; Σ 1/n_i ; sum ; clipped squared distance] of all groups.

    A client sends w_il·[R/2, R/(4n_i), x, t_il] for all groups l. As Σ_l w_il² ≤ 1, its norm is at most that of one such
    vector. The squared distance t_il = min(‖x − μ_l‖², R²)/R is sent only if σ_θ² is to be learned."""

    def __init__(
        self,
        sums: ClientSums,
        noise_variance: float,
        clusters: int,
        within: float | None,
        account: Account,
        rounds: int,
    ) -> None:
        self.rows = clip_rows(sums.means, account.privacy.clip).rows
        self.inverse = 1 / sums.counts
        self.noise_variance, self.within, self.account, self.rounds = noise_variance, within, account, rounds
        self.radius, self.m, self.d, self.clusters = account.privacy.clip, sums.clients, sums.dimension, clusters
        norm = self.radius * math.sqrt(1 + 1 / 4 + 1 / 16 + (within is None))
        z, self.width = account.noise_multiplier("rounds"), 2 + self.d + (within is None)
        self.mechanism = JointSum("rounds", clusters * self.width, norm, z, account.privacy.adjacency)

    def message(self, weights: Array, centers: Array) -> Array:
        """The vector that each client sends, given its posterior weights."""
        shape = (self.m, self.clusters)
        parts = [np.full((*shape, 1), self.radius / 2)]
        parts.append(np.broadcast_to(self.radius / 4 * self.inverse[:, None, None], (*shape, 1)))
        parts.append(np.broadcast_to(self.rows[:, None], (*shape, self.d)))
        if self.within is None:
            square = np.square(self.rows[:, None] - centers).sum(axis=2, keepdims=True)
            parts.append(np.minimum(square, self.radius**2) / self.radius)
        return np.asarray((weights[:, :, None] * np.concatenate(parts, axis=2)).reshape(self.m, -1))

    def release(self, weights: Array, centers: Array) -> Released[NoisyGroups]:
        """One round's release."""
        released = self.mechanism(self.message(weights, centers), self.account.noise, self.account.book)
        return released.map(self._read)

    def _read(self, total: Array) -> NoisyGroups:
        table, sigma = total.reshape(self.clusters, self.width), self.mechanism.sigma
        squares = table[:, -1] * self.radius if self.within is None else np.zeros(self.clusters)
        counts, inverse = table[:, 0] / (self.radius / 2), table[:, 1] / (self.radius / 4)
        return NoisyGroups(counts, inverse, table[:, 2 : 2 + self.d], squares, sigma, 2 * sigma / self.radius, 1)

    def mixture(self, found: NoisyGroups, rng: np.random.Generator | None) -> PrivateMixture:
        """The M-step on noisy sums. With ``rng`` a group below four deviations is moved next to the largest one."""
        least = 4 * found.count_deviation
        small, counts = found.counts < least, np.maximum(found.counts, least)
        centers = clip_rows(found.sums / counts[:, None], self.radius).rows
        inverse = np.clip(found.inverse_counts / counts, 0.0, 1.0)  # the mean of 1/n_i
        within, error = self.within, 0.0
        if within is None:
            error = found.deviation * self.radius * math.sqrt(self.clusters) / (self.d * float(counts.sum()))
            spread = float(found.squares.sum()) / (self.d * float(counts.sum()))
            within = max(spread - self.noise_variance * float(inverse @ counts / counts.sum()), 0.0)
        noise = found.deviation**2 + np.square(centers) * found.count_deviation**2
        sampling = (within + self.noise_variance * inverse) / (counts / found.rounds)
        variance = sampling[:, None] + noise / counts[:, None] ** 2
        if rng is not None:
            reach = math.sqrt(within + self.noise_variance)
            for group in np.flatnonzero(small):
                step = rng.normal(size=self.d)
                centers[group] = centers[int(found.counts.argmax())] + reach * step / np.linalg.norm(step)
        return PrivateMixture(counts / counts.sum(), centers, within, variance, error)


def late_sum(before: Released[Any], now: Released[Any], number: int, rounds: int, late: int) -> Released[Any]:
    """The noisy sums of round `number`, from the second of the last `late` rounds on added to those before."""
    return combine(lambda old, new: old + new if number > rounds - late else new, before, now)


def start_mixture(run: MixtureRounds, seed: int) -> Released[PrivateMixture]:
    """Equal groups around public centres."""
    k, rng = run.clusters, np.random.default_rng([seed, 1])
    within = 0.0 if run.within is None else run.within
    centers, ones = public_centers(k, run.d, run.radius, rng), np.ones(k)
    return public(PrivateMixture(ones / k, centers, within, np.zeros_like(centers)))


def next_mixture(
    run: MixtureRounds,
    state: tuple[Released[PrivateMixture], Released[NoisyGroups | None]],
    weights: Array,
    number: int,
    rng: np.random.Generator,
) -> tuple[Released[PrivateMixture], Released[NoisyGroups | None]]:
    """Round ``number``: release, add to the average of the late rounds, M-step."""
    here, averaged = state
    late = min(LATE, max(1, run.rounds // 2))
    now = run.release(weights, here.value.centers)
    averaged = late_sum(averaged, now, number, run.rounds, late)
    coins = rng if number < run.rounds - late else None
    return combine(lambda found, _: run.mixture(found, coins), averaged, here), averaged
