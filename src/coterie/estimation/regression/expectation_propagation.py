"""Expectation propagation (EP) for logistic rows: all clients' Gaussian posteriors, and the population behind them.

A row's likelihood σ(±s) of its score s = xᵀθ is replaced by a Gaussian "site" exp(ν s − τ s²/2). A sweep takes each site
out of its client's posterior (the cavity N(c, v) of the score), puts the exact likelihood in and matches two moments.
The likelihood is log-concave, so τ ≥ 0 and every posterior is proper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import expit

from coterie.estimation.conventions import Array
from coterie.estimation.regression.newton import Block, find_modes
from coterie.estimation.regression.spherical import Population

Sites = tuple[Array, Array]  # τ, ν of every row (c, n)

NODES, MASSES = np.polynomial.legendre.leggauss(20)
DROP = 10.0  # The quadrature ends where the log density has fallen by this much.
TINY = 1e-30
WIDE = 4.0  # From this cavity variance on, the moments of s are more exact than those of σ(−s).
# The search for log σ_θ² goes so far from scores of unit variance: equal clients, or certain labels.
RANGE = (-16.0, 10.0)
WEAK = 1e-4  # The precision of a flat prior on μ for features of unit size. It keeps μ finite on separable data.
STILL = 0.003  # μ has converged when it moves by less than this many standard errors.


def tilted_slopes(cavity: Array, variance: Array, weight: Array | float = 1.0) -> tuple[Array, Array]:
    """∂/∂c and −∂²/∂c² of log ∫ σ(s)^w N(s; c, v) ds: the mean g of wσ(−s) under the integrand, and its fall −∂g/∂c.

    Gauss–Legendre over the range of the integrand: at most √(2Dv) from its mode, and on the left, where σ(s) < eˢ, not
    beyond the fall of e^{ws} N(s; c, v) from s = 0. A weight w counts a row w times.
    """
    c, v, w = cavity, np.maximum(variance, 1e-12), weight  # for smaller variances s − c is lost in rounding
    mode = np.clip(0.0, c, c + v * w)  # Newton for s = c + v w σ(−s) never overshoots from here
    for _ in range(6):
        q = expit(-mode)
        mode = mode - (mode - c - v * w * q) / (1 + v * w * q * (1 - q))
    reach = np.sqrt(2 * DROP * v)
    rise = w + c / v
    left = np.maximum(mode - reach, -2 * DROP / np.maximum(rise + np.sqrt(rise**2 + 2 * DROP / v), TINY))
    half = (mode + reach - left) / 2
    peak = w * np.minimum(mode, 0.0) - np.square(mode - c) / (2 * v)
    total, first, second, slope, curve = np.zeros((5, *c.shape))
    for node, mass in zip(NODES, MASSES, strict=True):
        s = left + (1 + node) * half
        small = np.exp(-np.abs(s))
        height = np.exp(w * (np.minimum(s, 0.0) - np.log1p(small)) - np.square(s - c) / (2 * v) - peak)
        q = np.where(s > 0, small, 1.0) / (1 + small)
        away = (s - c) * mass * height
        total += mass * height
        first += away
        second += away * (s - c)
        slope += mass * height * q
        curve += mass * height * q * q
    first, second, slope, curve = np.stack([first, second, slope, curve]) / total
    wide, narrow = (1 - (second - first**2) / v) / v, w * slope - (w + w * w) * curve + np.square(w * slope)
    return np.where(v > WIDE, first / v, w * slope), np.maximum(np.where(v > WIDE, wide, narrow), 0.0)


@dataclass(frozen=True)
class Posterior:
    """A block's sites τ, ν (c, n), and its clients' posteriors θ_i = μ + V_i β_i, β_i ~ N(beta, inverse)."""

    tau: Array
    nu: Array
    inverse: Array  # (c, r, r)
    variance: Array  # of the scores, (c, n)
    beta: Array
    score: Array


def posterior(block: Block, mean: Array, prior_variance: float, tau: Array, nu: Array) -> Posterior:
    """The Gaussian posteriors given the sites: ridge regressions with weights τ."""
    precision = block.B.swapaxes(1, 2) @ (tau[:, :, None] * block.B) + np.eye(block.rank) / prior_variance
    inverse: Array = np.linalg.inv(precision).astype(np.float64)
    variance = np.maximum(((block.B @ inverse) * block.B).sum(2), TINY)
    return move(block, mean, Posterior(tau, nu, inverse, variance, tau, nu))


def move(block: Block, mean: Array, now: Posterior) -> Posterior:
    """The same sites under another μ."""
    offset = block.X @ mean
    pull = ((now.nu - now.tau * offset)[:, None] @ block.B).swapaxes(1, 2)
    beta = now.inverse @ pull
    return replace(now, beta=beta[:, :, 0], score=offset + (block.B @ beta)[:, :, 0])


def laplace_sites(block: Block, mean: Array, beta: Array) -> Sites:
    """The sites that touch the likelihoods at θ_i = μ + V_i β_i."""
    score = block.X @ mean + (block.B @ beta[:, :, None])[:, :, 0]
    chance = expit(score)
    tau = block.weight * chance * (1 - chance)
    return tau, block.weight * (block.y - chance) + tau * score


def damping(sweeps: int) -> float:
    """The step towards the new sites: the whole way, or half of it once the sweeps seem to cycle."""
    return 1.0 if sweeps < 8 else 0.5


def sweep(block: Block, now: Posterior, share: float) -> Sites:
    """New sites (τ, ν) of all rows at once. From the sites at the modes this converges; from far away it may cycle."""
    others = np.maximum(1 - now.tau * now.variance, 1e-8)
    sign = 2 * block.y - 1
    cavity, variance = (now.score - now.variance * now.nu) / others, now.variance / others
    slope, curve = tilted_slopes(sign * cavity, variance, block.weight)
    shrink = np.maximum(1 - variance * curve, 1e-8)
    seen = block.weight > 0
    tau, nu = seen * curve / shrink, seen * (sign * slope + cavity * curve) / shrink
    return now.tau + share * (tau - now.tau), now.nu + share * (nu - now.nu)


def settle(block: Block, mean: Array, prior_variance: float, sites: Sites) -> Posterior:
    """Sweep until none of a client's scores moves its posterior mean by more than 1e-4 deviations. A client's sweeps end by
    its own rows, so that its posterior does not depend on the block."""
    now = posterior(block, mean, prior_variance, *sites)
    moves = np.ones(len(now.score), np.bool_)
    for t in range(100):
        tau, nu = sweep(block, now, damping(t))
        tau, nu = (np.where(moves[:, None], new, old) for new, old in ((tau, now.tau), (nu, now.nu)))
        before, now = now, posterior(block, mean, prior_variance, tau, nu)
        moves &= (np.square(now.score - before.score) > 1e-8 * now.variance).any(1)
        if not moves.any():
            break
    return now


def client_posteriors(block: Block, now: Population) -> tuple[Array, Array, Array, Array]:
    """Every client's mode, posterior mean and variances of θ_i (c, d), and the share of the prior variance left.

    θ_i = μ + V_i β_i, β_i ~ N(0, σ² I) beforehand. The error C of μ̂ adds W C Wᵀ, where W = I − V_i J_i is the weight of μ
    in the posterior mean, J_i = −∂β̂_i/∂μ the sites held."""
    prior = now.prior_variance
    beta = find_modes(block, now.mean, prior)
    post = settle(block, now.mean, prior, laplace_sites(block, now.mean, beta))
    V = np.broadcast_to(np.eye(block.rank), (len(beta), block.rank, block.rank)) if block.basis is None else block.basis
    V = block.turned(V)  # rows are the directions of θ that the coordinates of β stand for
    J = post.inverse @ (block.B.swapaxes(1, 2) @ (post.tau[:, :, None] * block.X))
    C = np.zeros((len(now.mean), len(now.mean))) if now.covariance is None else now.covariance
    across = J @ C
    error = np.diag(C) + (V * ((across @ J.swapaxes(1, 2)) @ V - 2 * across)).sum(-2)
    removed = (V * ((prior * np.eye(block.rank) - post.inverse) @ V)).sum(-2)
    whole = prior * block.prior_diagonal()
    variance = np.maximum(whole - removed, 0.0) + np.maximum(error, 0.0)
    left = np.clip(1 - np.divide(removed, whole, out=np.zeros_like(removed), where=whole > 0), 0.0, 1.0)
    return now.mean + block.spread(beta), now.mean + block.spread(post.beta), variance, left


def weak_precision(X: Array) -> Array:
    """WEAK in the units of each feature (d,). Its size is the median of its non-zero numbers, or 1 if all are zero."""
    sizes = [np.median(np.abs(column[column != 0])) if column.any() else 1.0 for column in X.T]
    weak: Array = WEAK * np.square(np.array(sizes))
    return weak


def population_step(
    blocks: list[Block], posteriors: list[Posterior], now: Population, weak: Array
) -> tuple[Population, float]:
    """A Newton step for μ with the sites held, and σ_θ²'s score, twice the slope of log p(y) in log σ_θ².

    At EP's fixed point both are the exact slopes of its marginal likelihood, Σ X_iᵀ E[y_i − σ(X_i θ_i)] and EM's
    Σ_i E‖θ_i − μ‖²/σ_θ² − md, the parts off the clients' spans cancelling.
    """
    d, prior = len(now.mean), now.prior_variance
    gradient, information, score = -weak * now.mean, np.diag(weak), 0.0
    for block, post in zip(blocks, posteriors, strict=True):
        known = np.eye(block.rank) - post.inverse / prior  # the data's information, as a share of the prior variance
        gradient = gradient + (post.nu - post.tau * post.score).ravel() @ block.X.reshape(-1, d)
        if block.basis is None:
            information = information + known.sum(0) / prior
        else:
            information = information + block.basis.reshape(-1, d).T @ (known @ block.basis).reshape(-1, d) / prior
        score += float(np.square(post.beta).sum() / prior - np.trace(known, axis1=1, axis2=2).sum())
    covariance: Array = np.linalg.inv(information).astype(np.float64)
    step = covariance @ gradient
    longest = 3.0 * np.sqrt(sum(float(b.weight.sum()) for b in blocks))  # no score may move by more than 3 on average
    length = np.sqrt(sum(float(np.square(b.X @ step).sum()) for b in blocks))
    step = step * min(1.0, longest / max(length, TINY))
    return replace(now, mean=now.mean + step, covariance=covariance), score


@dataclass
class Search:
    """Learns (μ, σ_θ²). For every σ_θ² tried, μ is brought to its optimum; the σ_θ² sought is the root of its score.

    With few rows per client, (μ, σ_θ) are known much better up to a common factor than the factor itself. So only a
    well converged μ gives a useful score.
    """

    blocks: list[Block]
    now: Population
    rounds_left: int
    weak: Array  # the precision of the flat prior on μ, (d,)
    rounds: int = 0
    sites: list[Sites] = field(default_factory=list)
    tried: list[tuple[float, float]] = field(default_factory=list)  # log σ_θ² and its score

    def __post_init__(self) -> None:
        self._start_at_modes()

    def _start_at_modes(self) -> None:
        mean, variance = self.now.mean, self.now.prior_variance
        self.sites = [laplace_sites(block, mean, find_modes(block, mean, variance)) for block in self.blocks]

    def score(self, log_variance: float) -> float:
        variance = float(np.exp(log_variance))
        self.now = replace(self.now, prior_variance=variance)
        posts = [
            posterior(block, self.now.mean, variance, *sites)
            for block, sites in zip(self.blocks, self.sites, strict=True)
        ]
        score = np.inf
        for t in range(20):
            posts = [
                posterior(block, self.now.mean, variance, *sweep(block, post, damping(t)))
                for block, post in zip(self.blocks, posts, strict=True)
            ]
            before, last = self.now.mean, score
            self.now, score = population_step(self.blocks, posts, self.now, self.weak)
            posts = [move(block, self.now.mean, post) for block, post in zip(self.blocks, posts, strict=True)]
            self.rounds += 1
            assert self.now.covariance is not None
            moved = float(np.abs(self.now.mean - before).max() / np.sqrt(max(np.diag(self.now.covariance).min(), TINY)))
            if moved < STILL or abs(score - last) < 0.1 * abs(score) or self.rounds >= self.rounds_left:
                self.sites = [(post.tau, post.nu) for post in posts]
                break  # far from the root a rough score is enough
        else:
            self._start_at_modes()
        self.tried.append((log_variance, score))
        return score

    def spread(self) -> list[tuple[float, Population]]:
        """The populations that represent the uncertainty of σ_θ²: N(log σ̂_θ², its curvature) in three weighted points.

        μ changes with σ_θ², since few rows per client determine (μ, σ_θ) only up to a common factor. One point is enough
        where σ_θ² is known well, or at an end of RANGE.
        """
        best, place = self.now, self.tried[-1]
        apart = [other for other in self.tried if abs(other[0] - place[0]) > 0.1]
        if not apart or len({score > 0 for _, score in self.tried}) == 1:
            return [(1.0, best)]
        near = min(apart, key=lambda other: abs(other[0] - place[0]))
        information = -(near[1] - place[1]) / (near[0] - place[0]) / 2
        deviation = 1 / np.sqrt(max(information, 1.0))
        if deviation < 0.1:
            return [(1.0, best)]
        out = [(2 / 3, best)]
        for sign in (-1, 1):
            self.score(place[0] + sign * np.sqrt(3) * deviation)
            out.append((1 / 6, self.now))
        return out

    def run(self, tol: float) -> None:
        """Step out from the start until the score changes sign, or out of RANGE; then close in."""
        place = float(np.log(self.now.prior_variance))
        value = self.score(place)
        towards, end = (1.5, place + RANGE[1]) if value > 0 else (-1.5, place + RANGE[0])
        while self.rounds < self.rounds_left and (end - place) * towards > 0:
            last, last_value = place, value
            place += towards
            value = self.score(place)
            if (value > 0) != (last_value > 0):
                self._close_in((last, last_value), (place, value), tol)
                break

    def _close_in(self, a: tuple[float, float], b: tuple[float, float], tol: float) -> None:
        """Regula falsi, Illinois variant: b is the newest point, a on the other side of the root."""
        while abs(a[0] - b[0]) > tol and self.rounds < self.rounds_left:
            place = b[0] - b[1] * (b[0] - a[0]) / (b[1] - a[1])
            value = self.score(place)
            a = b if (value > 0) != (b[1] > 0) else (a[0], a[1] / 2)
            if abs(place - b[0]) < tol / 2:
                break
            b = (place, value)
