"""Do the clients form groups, or a gradient? Any set of clients can be cut into groups, and the same cut is found again.

The groups found are therefore compared with those that the same search finds in federations without groups. Their clients
lie evenly along the axes in which these clients differ, with the same mean and covariance, the same rows and the same noise.
Of all cases without groups, even spread looks most like groups (Tibshirani, Walther and Hastie 2001, the gap statistic).
Groups are claimed only when they explain more of the differences between clients than in 95 % of these references."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coterie.comparison.exact.candidates.groups import Forms, hard_em
from coterie.comparison.exact.candidates.rows import Floats, Ints, Rows, chances
from coterie.comparison.exact.fitting import learn_scaling
from coterie.comparison.exact.levels import with_effects
from coterie.data.coded_table import Table
from coterie.estimation.blocks import grams

DRAWS = 99  # reference federations
CHANCE = 0.05  # how often a continuum may be called groups
_STARTS, _PENALTY = 3, 1.0  # of the search for groups
_AXES = 10  # number of directions used: those in which clients differ most
_MOST_CLIENTS, _MOST_ROWS = 200, 10_000  # random ones of more
_STEPS = 60  # of the estimate of the continuum
_CORRECTIONS = 3  # of the covariance of classes
_STRIDE = 1.5  # by which a row's score moves at most in one of them


@dataclass(frozen=True)
class Continuum:
    """The share of the differences between clients that groups explain, here and (the 95 % quantile) in federations without
    groups, and the chance of such a share without groups."""

    groups: int
    explained: float
    reference: float
    chance: float

    @property
    def exceeded(self) -> bool:
        """Whether the groups are more than a gradient cut into pieces."""
        return self.chance <= CHANCE


def continuum(table: Table, groups: int, seed: int) -> Continuum | None:
    """How much of the differences between clients so many groups explain, against clients without groups; None where there
    are fewer than two groups, or no differences."""
    if groups < 2:
        return None
    rng = np.random.default_rng([seed, 4])
    here = _along_axes(_some_rows(table, rng))
    mean, covariance, noise = _population(here)
    if here.classes:
        covariance = _corrected(here, mean, covariance, rng)
    if not np.trace(covariance) > 1e-9:
        return None
    A, c = here.at_base
    drawn = np.stack([here.slope(here.draw(mean, covariance, noise, rng)) for _ in range(DRAWS)])
    return _compared(A, c, drawn, groups, rng)


def continuum_of_sums(
    A: Floats, c: Floats, squares: Floats | None, groups: int, seed: int, n_rows: int
) -> Continuum | None:
    """The same from clients' quadratic forms around the model for all, and for numbers their squared errors there: a drawn
    client has a slope A b with normal noise of covariance σ² A."""
    if groups < 2:
        return None
    rng = np.random.default_rng([seed, 4])
    if A.shape[1] > _AXES:
        axes = _axes(A, c)
        A, c = axes.T @ A @ axes, c @ axes
    p = A.shape[1]
    b = np.asarray(np.linalg.solve(A + np.eye(p), c[..., None])[..., 0], np.float64)
    mean, covariance, noise = b.mean(0), np.cov(b.T).reshape(p, p) + 1e-3 * np.eye(p), 1.0
    for _ in range(_STEPS):
        precision = np.linalg.inv(covariance + 1e-9 * np.eye(p))
        spread = np.linalg.inv(A / noise + precision)
        b = (spread @ (c / noise + precision @ mean)[..., None])[..., 0]
        if squares is not None:
            left = squares.sum() - 2 * (b * c).sum() + np.einsum("mp,mpq,mq->", b, A, b)
            noise = max(float(left + np.einsum("mpr,mrp->", A, spread)) / n_rows, 1e-12)
        mean = b.mean(0)
        covariance = (b - mean).T @ (b - mean) / max(len(b) - 1, 1) + spread.mean(0)
    if not np.trace(covariance) > 1e-9:
        return None
    root = np.linalg.cholesky(noise * (A + 1e-9 * (1 + np.trace(A, axis1=1, axis2=2)[:, None, None]) * np.eye(p)))
    drawn = []
    for _ in range(DRAWS):
        own = _even(mean, covariance, len(b), rng)
        drawn.append((A @ own[..., None] + root @ rng.normal(size=(*own.shape, 1)))[..., 0])
    return _compared(A, c, np.stack(drawn), groups, rng)


def _compared(A: Floats, c: Floats, drawn: Floats, groups: int, rng: np.random.Generator) -> Continuum:
    share = _explained(A, np.concatenate([c[None], drawn]), groups, rng)
    worse = int((share[1:] >= share[0]).sum())
    return Continuum(groups, float(share[0]), float(np.quantile(share[1:], 1 - CHANCE)), (1 + worse) / (1 + DRAWS))


@dataclass(frozen=True)
class _Clients:
    """Scores of the rows are eta + U b, with coefficients b of each client relative to the model for all. Outputs of a row
    lie one after the other."""

    U: Floats  # (rows · outputs, p)
    eta: Floats  # (rows, outputs)
    y: Floats
    owner: Ints  # of rows · outputs
    m: int
    classes: bool

    def expected(self, b: Floats) -> Floats:
        """The target (rows, outputs) that clients with coefficients b (clients, p) expect."""
        eta = self.eta + np.einsum("np,np->n", self.U, b[self.owner]).reshape(self.eta.shape)
        return chances(eta) if self.classes else eta

    def forms(self, b: Floats, y: Floats) -> tuple[Floats, Floats]:
        """A (clients, p, p) and c (clients, p): the quadratic approximation at b."""
        expected, q = self.expected(b), self.eta.shape[1]
        weight = None
        if self.classes:  # of several classes each counts q/(q − 1) times its own curvature
            weight = np.maximum(expected * (1 - expected), 0.01).ravel() * (1 if q == 1 else q / (q - 1))
        A, slope = grams(self.U, (y - expected).ravel(), weight, self.owner, self.m)
        return A, slope + (A @ b[..., None])[..., 0]

    @cached_property
    def at_base(self) -> tuple[Floats, Floats]:
        return self.forms(np.zeros((self.m, self.U.shape[1])), self.y)

    def draw(self, mean: Floats, covariance: Floats, noise: float, rng: np.random.Generator) -> Floats:
        """Targets (rows, outputs) of clients that lie evenly in a box along the axes of the covariance."""
        expected = self.expected(_even(mean, covariance, self.m, rng))
        if not self.classes:
            return np.asarray(expected + np.sqrt(noise) * rng.normal(size=expected.shape))
        if expected.shape[1] == 1:
            return np.asarray((rng.random(expected.shape) < expected) * 1.0)
        chosen = (rng.random((len(expected), 1)) > np.cumsum(expected, 1)).sum(1).clip(0, expected.shape[1] - 1)
        return np.asarray(np.eye(expected.shape[1])[chosen])

    def slope(self, y: Floats) -> Floats:
        """c (clients, p) of these targets at the model for all."""
        slope = (y - self.expected(np.zeros((self.m, self.U.shape[1])))).ravel()[:, None] * self.U
        return np.stack([np.bincount(self.owner, weights=s, minlength=self.m) for s in slope.T], 1)


def _even(mean: Floats, covariance: Floats, m: int, rng: np.random.Generator) -> Floats:
    """Coefficients of clients that lie evenly in a box along the axes of the covariance."""
    values, vectors = np.linalg.eigh(covariance)
    vectors = _signed(vectors)
    even = rng.uniform(-np.sqrt(3), np.sqrt(3), size=(m, len(mean)))
    return np.asarray(mean + (even * np.sqrt(np.maximum(values, 0))) @ vectors.T)


def _some_rows(table: Table, rng: np.random.Generator) -> _Clients:
    """Scaled rows around the model for all; of a large table a random part."""
    keep = np.ones(len(table.y), bool)
    if table.n_clients > _MOST_CLIENTS:
        keep = np.isin(table.owner, rng.choice(table.n_clients, _MOST_CLIENTS, replace=False))
    if keep.sum() > _MOST_ROWS:
        keep &= rng.random(len(keep)) < _MOST_ROWS / keep.sum()
    names, owner = np.unique(table.owner[keep], return_inverse=True)
    outputs, classes = table.outputs()[keep], table.classes is not None
    inside = with_effects(table, keep)[1]
    scaling = learn_scaling(inside, outputs, classes)
    rows = Rows(scaling.columns(inside), scaling.target(outputs), owner, len(names), classes)
    q = rows.n_outputs
    U = np.einsum("np,oq->noqp", rows.Z, np.eye(q)).reshape(len(owner) * q, -1)
    return _Clients(U, rows.Z @ rows.pooled[0][0], rows.y, np.repeat(owner, q), len(names), classes)


def _along_axes(here: _Clients) -> _Clients:
    """The same with coefficients along the directions in which predictions of clients' own models differ most."""
    p = here.U.shape[1]
    if p <= _AXES:
        return here
    return _Clients(here.U @ _axes(*here.at_base), here.eta, here.y, here.owner, here.m, here.classes)


def _axes(A: Floats, c: Floats) -> Floats:
    """The directions (p, axes) in which predictions of clients' own models differ most."""
    p = A.shape[1]
    own = np.linalg.solve(A + np.eye(p), c[..., None])[..., 0]
    values, vectors = np.linalg.eigh(A.mean(0) + 1e-9 * np.eye(p))
    size = np.sqrt(np.maximum(values, 1e-12))
    turned = np.linalg.svd((own - own.mean(0)) @ (vectors * size), full_matrices=False)[2][:_AXES]
    axes = (vectors / size) @ turned.T
    return _signed(np.asarray(axes / np.linalg.norm(axes, axis=0)))


def _signed(vectors: Floats) -> Floats:
    """The same columns with their largest entry positive, so that rounding does not turn them round."""
    top = np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0)
    return np.asarray(vectors * np.where(top < 0, -1.0, 1.0))


def _population(here: _Clients) -> tuple[Floats, Floats, float]:
    """Mean and covariance of the clients' coefficients, and the noise of rows, by expectation and maximisation (classes:
    of the quadratic approximation at the current coefficients)."""
    p, rows = here.U.shape[1], len(here.y)
    A, c = here.at_base
    b = np.asarray(np.linalg.solve(A + np.eye(p), c[..., None])[..., 0], np.float64)
    mean, covariance, noise = b.mean(0), np.cov(b.T).reshape(p, p) + 1e-3 * np.eye(p), 1.0
    for _ in range(_STEPS):
        if here.classes:
            A, c = here.forms(b, here.y)
        precision = np.linalg.inv(covariance + 1e-9 * np.eye(p))
        spread = np.linalg.inv(A / noise + precision)
        new = (spread @ (c / noise + precision @ mean)[..., None])[..., 0]
        if here.classes:
            move = np.zeros(here.m)
            np.maximum.at(move, here.owner, np.abs(np.einsum("np,np->n", here.U, (new - b)[here.owner])))
            new = b + (new - b) * np.minimum(1, _STRIDE / np.maximum(move, 1e-12))[:, None]
        else:
            left = float(((here.y - here.expected(new)) ** 2).sum() + np.einsum("mpr,mrp->", A, spread))
            noise = max(left / rows, 1e-12)
        b, mean = new, new.mean(0)
        covariance = (b - mean).T @ (b - mean) / max(here.m - 1, 1) + spread.mean(0)
    return mean, covariance, noise


def _corrected(here: _Clients, mean: Floats, found: Floats, rng: np.random.Generator) -> Floats:
    """The covariance, corrected for the bias of its estimate: the quadratic approximation makes large log-odds of small
    clients too small. The bias is measured on simulated federations whose covariance is known."""
    size, made = float(np.trace(found)), found
    for _ in range(_CORRECTIONS):
        again = replace(here, y=here.draw(mean, made, 1.0, rng))
        made = made * np.clip(size / max(float(np.trace(_population(again)[1])), 1e-12), 0.5, 2.0)
    return np.asarray(made)


def _explained(A: Floats, c: Floats, groups: int, rng: np.random.Generator) -> Floats:
    """Per copy: how much groups lower the loss of one model, as a share of how much a model per client lowers it."""
    forms = Forms(A[None, None], c[:, None])
    grouped, which = hard_em(forms, groups, _STARTS, _PENALTY, rng)
    one = hard_em(forms, 1, _STARTS, _PENALTY, rng)[0]
    own = np.linalg.solve(A + _PENALTY * np.eye(c.shape[2]), c[..., None])[..., 0]
    best = (own * (0.5 * (A @ own[..., None])[..., 0] - c)).sum((1, 2))
    base = forms.losses(one)[..., 0].sum(1)
    held = np.take_along_axis(forms.losses(grouped), which[..., None], 2)[..., 0].sum(1)
    return np.asarray((base - held) / np.maximum(base - best, 1e-12))


__all__ = ["CHANCE", "Continuum", "continuum"]
