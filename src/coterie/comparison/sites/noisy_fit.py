"""The server's side where sites tell noisy sums: models from repaired sums, losses from sums of folds not seen by them.

M = Σ v vᵀ over v = (1, x, y) comes with noise whose distribution is known. The squared error of a given model on a held-out
fold is linear in that fold's M, so noise leaves it unbiased, and its spread over folds and clients includes the noise.

Models come from the sums of the other folds, repaired in three steps (`repaired`). A site would learn alone from its clear
rows, without noise: its model alone is imagined from its noisy sums, and what the noise adds to its loss on average is taken
off again: a trace, since the model is nearly linear in the sums (`_alone`), and what fresh noise still shows (`_left`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import linalg

from coterie.comparison.exact.candidates import Fit
from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.continuum import continuum_of_sums
from coterie.comparison.exact.decision import Decision, concluded
from coterie.comparison.exact.evaluation import Evaluation
from coterie.comparison.exact.fitting import Model, Scaling
from coterie.comparison.exact.predictor import Predictor
from coterie.comparison.sites.quadratic import PENALTIES, Fitted, Sums, Units, chosen_ridge, fit_regression, ridges
from coterie.comparison.sites.study import inner_parts
from coterie.data.coded_table import TableFacts
from coterie.evidence.gains import LEVEL
from coterie.evidence.rule import LITTLE, decide_scores
from coterie.evidence.scores import METHODS, ClientScores
from coterie.privacy.mechanisms.moments import matrices

_LEAST = 0.1  # of the common sums: a client's repaired sums are at least so large in every direction
_DRAWN = 400  # clients with fresh noise, by which the noise left in alone is known
TOO_SMALL = (
    "The budget is too small to tell: what could be seen is mostly the noise that protects rows. More rows, fewer columns, "
    "narrower bounds or a larger ε would help."
)
SYSTEMATIC, BLIND = (
    0.25,
    0.5,
)  # of what noise added to the loss of alone: what may be left; the most that can be taken off
NOISY = 0.5  # share of the variance of the gain that is noise, from which on the budget is what stands in the way


@dataclass(frozen=True)
class Told:
    """Noisy Σ v vᵀ (clients, folds, q, q) in public units, σ of the noise (off the diagonal σ/√2), bounds of the target."""

    moments: Floats
    sigma: float
    target: tuple[float, float]
    seed: int


@dataclass(frozen=True)
class Repaired:
    """Sums around a model for all, `base`: A = Σ z zᵀ, u = Σ z r, Σ r² (clients, folds, …), r = y − z·base. `rows` are the
    clients' rows per fold, and `noise` is the covariance of u in one fold."""

    base: Floats
    A: Floats
    u: Floats
    rr: Floats
    rows: Floats
    noise: Floats
    drowned: bool  # whether noise is as large as half of a usual client's sums in most directions

    @property
    def cells(self) -> Floats:
        """The repaired Σ v vᵀ (clients, folds, q, q)."""
        return _joined(self.base, self.A, self.u, self.rr)

    @property
    def deflated(self) -> Floats:
        """The same as if noise came from fewer rows. u is A b with an error of covariance s² A + noise (s²: residuals); with
        G = s² A (s² A + noise)⁻¹ the sums G A and G u say the same of b, and the error of G u is s² G A, as that of rows is.
        One G, of the mean A, serves all: noise in it would not average out."""
        mean = self.A.mean((0, 1))
        value, turn = linalg.eigh(self.noise, self.rr.mean() / self.rows.mean() * mean)
        left, right = np.linalg.inv(turn).T, turn.T
        half = left @ (right / np.sqrt(1 + value)[:, None])
        A = half @ self.A @ half.T
        return _joined(self.base, A, self.u @ (half @ half).T, self.rr * A[..., 0, 0] / self.A[..., 0, 0])


def _joined(base: Floats, A: Floats, u: Floats, rr: Floats) -> Floats:
    """Σ v vᵀ from sums around the model `base`."""
    p = len(base)
    found = np.zeros((*rr.shape, p + 1, p + 1))
    found[..., :p, :p] = A
    found[..., :p, p] = found[..., p, :p] = u + A @ base
    found[..., p, p] = rr + 2 * u @ base + np.einsum("p,...pq,q->...", base, A, base)
    return found


def repaired(cells: Floats, sigma: float) -> Repaired:
    """Sums that can be sums of rows. The total gets eigenvalues of at least σ's size. Each client's A and Σ r² move towards
    the common ones by the share of their spread between clients that is noise; no direction of A is below a tenth of the
    common one. u stays as it was told, since its noise is accounted for."""
    m, folds, q, _ = cells.shape
    p = q - 1
    size = sigma * np.sqrt(m * folds)
    usual = float(np.median(np.linalg.eigvalsh(cells.sum(1).mean(0))))
    drowned = sigma * np.sqrt(folds) > BLIND * usual
    total = floored(cells.sum((0, 1)), np.eye(q), size)
    base = np.asarray(np.linalg.solve(total[:p, :p], total[:p, p]), np.float64)
    b = np.append(-base, 1.0)
    turn = np.eye(q)
    turn[p] = b
    V = turn @ cells @ turn.T
    rows = _rows(V[..., 0, 0].sum(1), folds * sigma**2) / folds
    common = total[:p, :p] / max(total[0, 0], 1e-300)
    A = _steadied(V[..., :p, :p], rows[:, None, None, None] * common, sigma**2 * p * (p + 1) / 2)
    A = floored(A, common, _LEAST * rows[:, None])
    middle = max(float(b @ total @ b), 1e-300) / max(total[0, 0], 1e-300)
    rr = _steadied(V[..., p, p, None, None], rows[:, None, None, None] * middle, sigma**2 * (b @ b) ** 2)[..., 0, 0]
    rr = np.maximum(rr, _LEAST * rows[:, None] * middle)
    noise: Floats = np.asarray(sigma**2 / 2 * (b @ b * np.eye(p) + np.outer(b[:p], b[:p])), np.float64)
    return Repaired(base, A, V[..., :p, p], rr, rows, noise, drowned)


def floored(M: Floats, common: Floats, least: Floats | float) -> Floats:
    """Symmetric matrices whose eigenvalues relative to `common` are at least `least`."""
    root = np.asarray(np.linalg.cholesky(common), np.float64)
    back = np.asarray(np.linalg.inv(root), np.float64)
    value, turn = np.linalg.eigh(back @ M @ back.T)
    value = np.maximum(value, np.asarray(least)[..., None])
    return np.asarray(root @ (turn * value[..., None, :]) @ turn.swapaxes(-1, -2) @ root.T)


def _steadied(cells: Floats, middle: Floats, noise: float) -> Floats:
    """Moved towards the middle by the share of the squared differences from it that is noise."""
    apart = cells - middle
    spread = float((apart**2).sum((-1, -2)).mean())
    return middle + max(spread - noise, 0.0) / max(spread, 1e-300) * apart


def _rows(told: Floats, noise: float) -> Floats:
    """Clients' numbers of rows from noisy ones: at least a fifth of their mean, and one."""
    mean = max(float(told.mean()), 1.0)
    spread = float(((told - mean) ** 2).mean())
    return np.maximum(mean + max(spread - noise, 0.0) / max(spread, 1e-300) * (told - mean), max(0.2 * mean, 1.0))


def _shared(fixed: Repaired, rng: np.random.Generator) -> tuple[Fitted, Units, Floats]:
    """Constant, together, shrunk and groups from repaired sums, and the sums."""
    cells = fixed.deflated
    units = Units.of(cells.sum((0, 1)), True)
    part = np.tile(inner_parts(np.ones(cells.shape[1], bool), None), (len(cells), 1))
    everybody = Sums.of(fixed.cells.sum(0, keepdims=True), units)
    found = replace(fit_regression(Sums.of(cells, units), part, rng), together=chosen_ridge(everybody)[0])
    return found, units, cells


def _error(model: Floats, held: Floats) -> Floats:
    """Σ (y − z·model)² of held-out sums (clients, q, q), for models (…, clients, p)."""
    b = np.concatenate([-model, np.ones((*model.shape[:-1], 1))], -1)
    return np.asarray(np.einsum("...mp,mpq,...mq->...m", b, held, b))


def _alone(fixed: Repaired, held: Floats) -> tuple[Floats, Floats]:
    """Per penalty and client: the loss of the model alone on the held-out fold, without what noise adds, and the model."""
    folds = fixed.A.shape[1]
    A, u = fixed.A.sum(1), fixed.u.sum(1)
    penalty = np.moveaxis(ridges(A, PENALTIES), 1, 0)  # (penalties, clients, p)
    B = np.linalg.inv(A + penalty[..., None] * np.eye(A.shape[-1]))
    model = fixed.base + (B @ (u - penalty * fixed.base)[..., None])[..., 0]
    added = np.einsum("mpq,lmqr,rs,lmsp->lm", held[:, :-1, :-1], B, folds * fixed.noise, B, optimize=True)
    return _error(model, held) - added, model


def _left(told: Told) -> Floats:
    """Per penalty: what noise still adds to the mean loss of alone. Fresh noise is added to repaired sums, whose loss
    without it is known."""
    m, folds, q, _ = told.moments.shape
    clean, rng = repaired(told.moments, told.sigma).cells, np.random.default_rng([told.seed, 7])
    draws = int(np.clip(_DRAWN // m, 1, 20))
    found = np.zeros((draws, folds, len(PENALTIES)))
    for d, k in np.ndindex(draws, folds):
        keep, shape = np.arange(folds) != k, (m, folds, q * (q + 1) // 2)
        noisy = clean + matrices(rng.normal(scale=told.sigma, size=shape), q)
        for sign, cells, sigma in ((1, noisy, told.sigma), (-1, clean, 0.0)):
            fixed = repaired(cells[:, keep], sigma)
            found[d, k] += sign * (_alone(fixed, cells[:, k])[0] / fixed.rows).mean(1)
    return np.asarray(found.mean((0, 1)))


@dataclass(frozen=True)
class Judged:
    """Mean losses (folds, methods, clients) of held-out rows; the variance of the noise in the difference of each method
    and alone, per fold; and by how much noise raised the mean loss of alone before that was taken off."""

    losses: Floats
    noise: Floats
    raised: float
    groupings: Ints
    settled: bool


def judged(told: Told) -> Judged:
    """Every method in every fold. The penalty of alone is the one with the lowest loss over all folds, in alone's favour."""
    m, folds = told.moments.shape[:2]
    losses, alone = np.zeros((folds, len(METHODS), m)), np.zeros((folds, len(PENALTIES), m))
    models = np.zeros((folds, len(METHODS), m, told.moments.shape[2] - 1))
    own, rows, groupings, settled = [], np.zeros((folds, m)), [], True
    for k in range(folds):
        fixed = repaired(told.moments[:, np.arange(folds) != k], told.sigma)
        fitted, units, _ = _shared(fixed, np.random.default_rng([told.seed, 3, k]))
        held, rows[k] = told.moments[:, k], fixed.rows
        for j, given in ((0, fitted.constant), (2, fitted.together), (3, fitted.shrunk), (4, fitted.groups)):
            models[k, j] = units.outside(np.broadcast_to(given, models.shape[2:]).copy())
        alone[k], found = _alone(fixed, held)
        own.append(found)
        losses[k] = _error(models[k], held) / rows[k]
        groupings.append(fitted.group)
        settled &= fitted.settled
    alone = alone / rows[:, None] - _left(told)[:, None]
    best = int(alone.mean((0, 2)).argmin())
    losses[:, 1] = alone[:, best]
    models[:, 1] = np.stack(own)[:, best]
    raised = float(
        np.mean([_error(models[k, 1], told.moments[:, k]) / rows[k] for k in range(folds)]) - losses[:, 1].mean()
    )
    b = np.concatenate([-models, np.ones((*models.shape[:-1], 1))], -1)
    size = (b**2).sum(-1) ** 2
    with_alone = np.einsum("fjmq,fmq->fjm", b, b[:, 1]) ** 2
    apart = size + size[:, [1]] - 2 * with_alone  # ‖b bᵀ − a aᵀ‖²
    return Judged(
        losses, told.sigma**2 * np.maximum(apart, 0) / rows[:, None] ** 2, raised, np.array(groupings), settled
    )


def decided(told: Told, clients: Sequence[str], names: Sequence[str], level: float = LEVEL) -> Decision:
    """The decision; rows count as much as they are shortened. A fold of a client is one piece of evidence:
    its losses hold the noise of rows and the noise of the release alike."""
    found = judged(told)
    fixed = repaired(told.moments, told.sigma)
    fitted, units, cells = _shared(fixed, np.random.default_rng([told.seed, 3, len(found.losses)]))
    half, sizes = (told.target[1] - told.target[0]) / 2, fixed.rows * cells.shape[1]
    total = fixed.deflated.sum((0, 1))
    variance = max(float(total[-1, -1] / total[0, 0] - (total[0, -1] / total[0, 0]) ** 2), 1e-300)
    facts = TableFacts(
        np.maximum(sizes.round(), 1).astype(np.int64), pd.Index(clients, name="client"), tuple(names), None,
        variance * half**2, fixed.A.sum(1)[:, 0, 1:] / sizes[:, None], np.zeros(len(names)),
        fixed.A.sum((0, 1)) / sizes.sum(),
    )  # fmt: skip
    scores = _scores(found.losses / variance)
    last = Sums.of(cells, units)
    A, c = last.A.sum(1), last.c.sum(1) - last.A.sum(1) @ fitted.together
    square = last.losses(fitted.together[None])[:, 0]
    groups = len(np.unique(fitted.group))
    beyond = continuum_of_sums(A, c, square, groups, told.seed, max(int(A[:, 0, 0].sum()), 1))
    verdict = decide_scores(scores, 1 - level, told.seed, None, beyond is None or not beyond.exceeded)
    notes = () if found.settled and fitted.settled else ("A model stopped before it converged.",)
    decision = concluded(
        facts, Evaluation({"mse": scores}, notes, found.groupings), "mse", _predictors(fitted, units, facts, told), verdict,
        beyond, level=level, folds=len(found.losses), repeats=1, seed=told.seed,
    )  # fmt: skip
    return _limited(decision, found, variance, fixed.drowned)


def _limited(decision: Decision, found: Judged, variance: float, drowned: bool) -> Decision:
    """The decision with the interval widened by what may be wrong with alone, whose noise is taken off by a calculation.

    It is a leaning at most where the budget is too small to tell: where noise is half as large as a usual client's sums, or
    raised the loss of alone by half of it, or nothing is clear and most of the error of the gain is noise."""
    verdict = decision.verdict
    assert verdict is not None
    alone = float(found.losses[:, 1].mean())
    doubt = SYSTEMATIC * max(found.raised, 0.0) / max(alone, 1e-3 * float(found.losses[:, 0].mean()))
    low, high = decision.interval[0] - doubt, min(decision.interval[1] + doubt, 1.0)
    sure = decision.sure
    if sure == "clear":
        crossed = high > LITTLE if decision.recommendation == "alone" else low <= 0
        sure = ("leaning" if decision.recommendation == "alone" else "borderline") if crossed else sure
    decision = replace(decision, interval=(low, high), sure=sure)
    at, (folds, _, m) = METHODS.index(decision.method), found.losses.shape
    noise = float(np.sqrt(found.noise[:, at].sum()) / folds / m) / variance
    error = verdict.over_alone[decision.method].gate_se()
    lost = sure not in ("clear", "borderline") and noise**2 > NOISY * error**2
    return decision.doubted([TOO_SMALL]) if drowned or found.raised > BLIND * alone or lost else decision


def _scores(losses: Floats) -> ClientScores:
    """Scores in which every fold of a client counts as one row; losses are (folds, methods, clients)."""
    folds, _, m = losses.shape
    apart = losses - losses.mean(0)
    mean = np.repeat(losses.mean(0)[None], 2, 0)
    products = np.repeat(np.einsum("kam,kbm->abm", apart, apart)[None], 2, 0)
    return ClientScores.of("mse", np.arange(m), m, np.full(m, float(folds)), mean, products, losses[None])


def _predictors(fitted: Fitted, units: Units, facts: TableFacts, told: Told) -> dict[str, Predictor]:
    """The models of all rows, for columns in public units and the target in its own."""
    inverse = np.diag(units.L)[1:]
    mean = np.where(inverse > 0, -units.L[1:, 0] / np.where(inverse > 0, inverse, 1.0), 0.0)
    low, high = told.target
    half, scale = (high - low) / 2, 1 / np.where(inverse[-1:] > 0, inverse[-1:], 1.0)
    scaling = Scaling(mean[:-1], inverse[:-1], (low + high) / 2 + half * mean[-1:], half * scale)
    made, m = {}, len(fitted.group)
    for name in METHODS:
        if name == "alone":
            continue
        coef = np.atleast_2d(getattr(fitted, name))[..., None]
        of_client = np.arange(m) if len(coef) > 1 else np.zeros(m, np.int64)
        if name == "groups":
            _, first = np.unique(fitted.group, return_index=True)
            coef, of_client = coef[first], fitted.group
        fit = Fit(coef, of_client, coef.mean(0) if name == "shrunk" else coef[0], False, None)
        made[name] = Predictor(name, Model(scaling, fit), facts.names, facts.clients, facts.classes)
    return made
