"""Models for two classes from quadratic forms: every exchange asks for loss, gradient and curvature of some models per fit.

Two tracks run side by side, so that one message carries the questions of both: the model for all with the groups, and the
shrunk models. A track yields a `Question` and gets a `Form`. Coefficients are those of standardised rows."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from coterie.comparison.exact.candidates.groups import Forms, hard_em, number_of_groups, sorted_by_size
from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.candidates.shrunk import evidence_of, nudged, starts_of
from coterie.comparison.sites.quadratic import MOST, PENALTIES, STARTS, Fitted, Units, ridges
from coterie.comparison.sites.study import INNER, Study, squares
from coterie.exchange.messages import Ask, Reply

_FIRST = 0.01  # penalty per row of the model around which penalties are compared
_NEAR, _CONVERGED = 0.05, 1e-5  # largest Newton step
_NEWTON, _GROUPED, _LINEARISATIONS = 9, 8, 18  # the most exchanges of each
_SETTLED, _ROUGH = 0.01, 0.5
_STRIDE = 1.0  # root mean squared scores of a client move by at most this


@dataclass(frozen=True)
class Question:
    """Models (clients, given, p) of the fits; of those with `parted`, the same on the inner parts of the training rows."""

    fit: Ints
    models: Floats
    parted: bool = False


@dataclass(frozen=True)
class Form:
    """Per client and model: loss, −gradient and curvature; with inner parts (clients, given, parts, …) and no loss."""

    value: Floats
    slope: Floats
    curve: Floats


Track = Generator[Question, Form, Any]


def fit_classes(
    study: Study, clients: Ints, shape: Any, moments: Floats, units: list[Units], rng: list[np.random.Generator]
) -> Generator[Ask, Reply, list[Fitted]]:
    """All methods in all fits."""
    from coterie.comparison.sites.conduct import ask

    at = [shape.place(f) for f in range(shape.fits)]
    train = np.stack([moments[:, r].sum(1) - (0 if k is None else moments[:, r, k]) for r, k in at], 1)
    n, ones = train[..., 0, 0], train[..., 0, -1]  # (clients, fits)
    L = np.stack([u.columns for u in units])
    gram = L @ train[..., :-1, :-1] @ L.swapaxes(1, 2)  # of standardised rows (clients, fits, p, p)
    constant = constants(n.sum(0), ones.sum(0), L.shape[1])
    tracks = [_together(constant, gram, rng), _shrunk(constant, gram, n)]

    def asked(down: Any, each: dict[str, Floats]) -> Any:
        return ask(study.forms, clients, shape.down() | down, each)

    results = yield from side_by_side(asked, len(clients), L, tracks)
    (together, groups, group, one, forms), (shrunk, spread, two) = results
    return [
        Fitted(
            constant[f], together[f], shrunk[:, f], groups[:, f], group[f], bool(one and two), spread[:, f],
            forms if f == shape.fits - 1 else None,
        )
        for f in range(shape.fits)
    ]  # fmt: skip


def side_by_side(asked: Callable[..., Any], m: int, L: Floats, tracks: list[Track]) -> Any:
    """Run tracks until all have ended; each exchange carries the questions of all that go on. ``asked(down, each)`` puts
    them to m clients."""
    results: list[Any] = [None] * len(tracks)
    waiting = {i: next(t) for i, t in enumerate(tracks)}
    p = L.shape[1]
    while waiting:
        plain = [i for i, q in waiting.items() if not q.parted]
        parted = [i for i, q in waiting.items() if q.parted]
        fits, models = {}, {}
        for name, which in (("fit", plain), ("inner", parted)):
            fits[name] = np.concatenate([np.zeros(0, np.int64), *(waiting[i].fit for i in which)])
            outside = [waiting[i].models[..., None, :] @ L[waiting[i].fit] for i in which]
            models[name] = np.concatenate([np.zeros((m, 0, 1, p)), *outside], 1)[..., 0, :]
        down = {name: torch.from_numpy(f) for name, f in fits.items()}
        told = yield from asked(down, {"models": models["fit"], "parted": models["inner"]})
        answers = {}
        for which, value, slope, curve in (
            (plain, told["value"], told["slope"], squares(told["curve"], p)),
            (parted, np.zeros(told["slopes"].shape[:3]), told["slopes"], squares(told["curves"], p)),
        ):
            start = 0
            for i in which:
                end = start + len(waiting[i].fit)
                turn = L[waiting[i].fit]
                g, H = slope[:, start:end], curve[:, start:end]
                if waiting[i].parted:
                    turn = turn[:, None]
                answers[i] = Form(value[:, start:end], (turn @ g[..., None])[..., 0], turn @ H @ turn.swapaxes(-1, -2))
                start = end
        for i, form in answers.items():
            try:
                waiting[i] = tracks[i].send(form)
            except StopIteration as done:
                results[i] = done.value
                del waiting[i]
    return results


# ---- one model for all, and one per group ----------------------------------------------------------------------------


def _together(constant: Floats, gram: Floats, rng: list[np.random.Generator]) -> Track:
    """The model for all, and the groups."""
    m, F, p, _ = gram.shape
    fits = np.arange(F)
    beta, settled = yield from one_model(constant, gram)
    parts = yield Question(fits, np.repeat(beta[None], m, 0), parted=True)
    forms = (parts.curve[:, -1].sum(1), parts.slope[:, -1].sum(1), np.zeros(m))
    ridge = max(1.0, (p - 1) / 10)
    group = np.zeros((F, m), np.int64)
    for f in fits:
        test = Forms(parts.curve[:, f].swapaxes(0, 1)[:, None], parts.slope[:, f].swapaxes(0, 1)[:, None])
        whole = Forms(test.A.sum(0)[None], test.c.sum(0)[None])
        k, _ = number_of_groups(whole, test, MOST, STARTS, ridge, rng[f])
        if k > 1:
            group[f] = sorted_by_size(hard_em(whole, k, 2 * STARTS, ridge, rng[f])[1][0])[0]
    groups, group = yield from _grouped(beta, group, parts, gram)
    return beta, groups, group, settled, forms


def one_model(constant: Floats, gram: Floats) -> Generator[Question, Form, tuple[Floats, bool]]:
    """The model for all (fits, p) with its chosen penalty, and whether it converged. It needs only sums over clients."""
    m, total = len(gram), gram.sum(0)
    beta, _ = yield from _newton(constant.copy(), ridges(total, np.array([_FIRST]))[:, 0], m, _NEAR)
    parts = yield Question(np.arange(len(beta)), np.repeat(beta[None], m, 0), parted=True)
    penalty, moved = _chosen(beta, parts.slope.sum(0), parts.curve.sum(0), total)  # of (fits, parts, p)
    return (yield from _newton(beta + moved, penalty, m, _CONVERGED))


def constants(n: Floats, ones: Floats, p: int) -> Floats:
    """The models (fits, p) of nothing but the share of the second class."""
    rate = (ones + 0.5) / (n + 1)
    found = np.zeros((len(n), p))
    found[:, 0] = np.log(rate / (1 - rate))
    return found


def _chosen(beta: Floats, g: Floats, H: Floats, total: Floats) -> tuple[Floats, Floats]:
    """Penalties (given, p) with the lowest loss on inner parts, by the quadratic form at `beta`, and the step to their
    model. `g`, `H` (given, parts, …) are of the unit's rows."""
    G, A = g.sum(1), H.sum(1)
    tried = ridges(total, PENALTIES)  # (given, penalties, p)
    share = 1 - 1 / INNER

    def step(A: Floats, g: Floats, penalty: Floats) -> Floats:
        right = g - penalty * beta.reshape(len(beta), *[1] * (penalty.ndim - 2), -1)
        return np.asarray(np.linalg.solve(A + penalty[..., None] * np.eye(A.shape[-1]), right[..., None])[..., 0])

    left = step((A[:, None] - H)[:, :, None], (G[:, None] - g)[:, :, None], share * tried[:, None])
    error = 0.5 * np.einsum("ujlp,ujpq,ujlq->ujl", left, H, left, optimize=True) - np.einsum("ujlp,ujp->ujl", left, g)
    penalty = tried[np.arange(len(tried)), error.sum(1).argmin(1)]
    return penalty, step(A, G, penalty)


def _newton(beta: Floats, penalty: Floats, m: int, near: float) -> Generator[Question, Form, tuple[Floats, bool]]:
    """Newton steps for the models (fits, p) of all clients, halved where the loss grows; only fits that still move are
    asked for. Half a row of each class at the mean keeps them finite."""
    moving, best = np.arange(len(beta)), beta.copy()
    value, step = np.full(len(beta), np.inf), np.zeros_like(beta)
    for _ in range(_NEWTON):
        told = yield Question(moving, np.repeat(beta[None, moving], m, 0))
        new, g, H = _penalised(told.value.sum(0), told.slope.sum(0), told.curve.sum(0), beta[moving], penalty[moving])
        better = new <= value[moving] + 1e-9 * np.abs(new)
        took, back = moving[better], moving[~better]
        best[took], value[took] = beta[took], new[better]
        step[took] = np.linalg.solve(H[better], g[better][..., None])[..., 0]
        step[back] /= 4
        beta = beta.copy()
        beta[moving] = best[moving] + step[moving]
        moving = moving[np.abs(step[moving]).max(1) > near]
        if not len(moving):
            break
    return beta, not len(moving)


def _penalised(value: Floats, g: Floats, H: Floats, beta: Floats, penalty: Floats) -> tuple[Floats, Floats, Floats]:
    """Loss, −gradient and curvature with the penalty and half a row of each class at the mean."""
    level = beta[..., 0]
    middle = expit(level)
    value = value + 0.5 * (np.logaddexp(0, level) + np.logaddexp(0, -level)) + 0.5 * (penalty * beta**2).sum(-1)
    g = g - penalty * beta
    g[..., 0] += 0.5 - middle
    H = H + penalty[..., None] * np.eye(H.shape[-1])
    H[..., 0, 0] += middle * (1 - middle)
    return value, g, H


def _grouped(base: Floats, group: Ints, parts: Form, gram: Floats) -> Generator[Question, Form, tuple[Floats, Ints]]:
    """Newton steps for a model per group, in which clients move to the group with the lowest loss; at most three times."""
    m, F = gram.shape[:2]
    coef = np.repeat(base[None], m, 0)  # (clients, fits, p)
    which = [f for f in range(F) if group[f].max() > 0]
    fit = np.array([f for f in which for _ in range(group[f].max() + 1)], np.int64)
    number = np.array([g for f in which for g in range(group[f].max() + 1)], np.int64)
    if not len(fit):
        return coef, group
    member = (group[fit] == number[:, None]) * 1.0  # (models, clients)
    g, H = (np.einsum("am,ma...->a...", member, v[:, fit]) for v in (parts.slope, parts.curve))
    total = np.einsum("am,mapq->apq", member, gram[:, fit])
    penalty, moved = _chosen(base[fit], g, H, total)
    beta, changes = base[fit] + moved, 0
    for _ in range(_GROUPED):
        told = yield Question(fit, np.repeat(beta[None], m, 0))
        if changes < 3:
            new = group.copy()
            for f in which:
                new[f] = told.value[:, fit == f].argmin(1)
            changes = changes + 1 if (new != group).any() else 3
            group = new
            member = (group[fit] == number[:, None]) * 1.0
        g, H = (np.einsum("am,ma...->a...", member, v) for v in (told.slope, told.curve))
        _, g, H = _penalised(np.zeros(len(fit)), g, H, beta, penalty)
        step = np.linalg.solve(H, g[..., None])[..., 0]
        beta = beta + step * np.minimum(1, 4 / np.maximum(np.abs(step).max(1, keepdims=True), 1e-12))
        if changes == 3 and np.abs(step).max() < _CONVERGED:
            break
    for f in which:
        coef[:, f] = beta[fit == f][group[f]]
        group[f] = sorted_by_size(group[f])[0]
    return coef, group


# ---- shrunk ----------------------------------------------------------------------------------------------------------


def _shrunk(constant: Floats, gram: Floats, n: Floats) -> Track:
    """Penalised quasi-likelihood as in `candidates/shrunk.py`; how far scores move is judged by their mean square, since the
    largest would be of one row."""
    m, F, p, _ = gram.shape
    coef = np.repeat(constant[None], m, 0)
    spread = np.zeros((m, F, p, p))
    begin: list[list[Floats]] = [starts_of(p)] * F
    far, converged = np.full(F, np.inf), np.zeros(F, bool)
    for _ in range(_LINEARISATIONS):
        moving = np.flatnonzero((far >= _SETTLED) | ~converged)
        if not len(moving):
            break
        told = yield Question(moving, coef[:, moving])
        for a, f in enumerate(moving):
            A, now = told.curve[:, a], coef[:, f]
            evidence = evidence_of(A, (A @ now[..., None])[..., 0] + told.slope[:, a], round(n[:, f].sum()), None)
            found = evidence.maximise(begin[f], 9.0, 10 if far[f] > _ROUGH else 200)
            begin[f], converged[f], spread[:, f] = [nudged(found)], found.converged, found.covariance
            change, rows = found.coef - now, np.maximum(n[:, f], 1)
            move = np.sqrt(np.einsum("mp,mpq,mq->m", change, gram[:, f], change) / rows)
            change = change * np.minimum(1, _STRIDE / np.maximum(move, 1e-12))[:, None]
            far[f] = 2 * np.sqrt(np.einsum("mp,mpq,mq->m", change, A, change) / rows).max()
            coef[:, f] = now + change
    return coef, spread, bool((far < _SETTLED).all() and converged.all())
