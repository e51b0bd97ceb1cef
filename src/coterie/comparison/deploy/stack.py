"""The stack: a weighted average of the candidates' predictions, with weights per client.

Weights are never negative and sum to one. They are learned from predictions of rows that the candidates did not see, in
three layers: those of all rows, those of clients of similar size (a large client can rely on itself more than a small one),
and those of the client. Each layer is shrunk towards the one above as if that were worth ``strength`` rows. The strength is
chosen on rows that the weights did not see; the expected loss of the stack comes from such rows, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from coterie.comparison.deploy.parts import Part
from coterie.data.coded_table import Floats, Ints

STRENGTHS = (30.0, 150.0, 1000.0)
_LADDER = (15, 40, 100, 300, 1000)  # rows; clients between two of them count as of similar size
_TOWARDS_DEFAULT = 10.0  # rows that the default weights of all clients are worth
_EM_STEPS = 60
INNER = 5


@dataclass(frozen=True)
class Stack:
    """Fitted candidates, and how much each counts for every client."""

    parts: dict[str, Part]
    weights: Floats  # (clients + 1, parts), the last row for clients never seen

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        total: Floats | None = None
        for j, part in enumerate(self.parts.values()):
            weight = self.weights[owner, j]
            used = np.flatnonzero(weight)
            if not len(used):
                continue
            one = part.outputs(X[used], owner[used])
            total = np.zeros((len(X), one.shape[1])) if total is None else total
            total[used] += weight[used, None] * one
        assert total is not None
        return total


@dataclass(frozen=True)
class Weights:
    """The weights of every client (clients, candidates), those of all rows, and the predictions of a stack whose weights
    never saw the row that they predict."""

    by_client: Floats
    overall: Floats
    unseen: Floats  # (rows, outputs)
    strength: float


def learn_weights(
    outputs: Floats,
    y: Floats,
    owner: Ints,
    n_clients: int,
    classes: bool,
    default: Floats,
    seed: int,
    fold: Ints | None = None,
    ordered: bool = False,
    scale: Floats | None = None,
) -> Weights:
    """Weights from out-of-fold predictions ``outputs`` (candidates, rows, width); ``default`` are the weights of no data.

    ``fold`` keeps units whole; where folds are ``ordered`` in time, those of a fold come from the folds before it.
    ``scale`` is what a row's error is divided by: the spread of counts and amounts grows with their mean."""
    evidence = _chances(outputs, y) if classes else outputs[..., 0].T - y[:, None]
    evidence = evidence if scale is None else evidence / scale[:, None]
    fold = np.random.default_rng([seed, 13]).permutation(len(y)) % INNER if fold is None else fold
    solve = _mixture if classes else _average
    sizes = np.bincount(owner, minlength=n_clients)
    rung = rung_of(sizes)
    best: tuple[float, float, Floats] | None = None
    for strength in STRENGTHS:
        unseen = np.empty(outputs.shape[1:])
        for f in np.unique(fold):
            at = fold == f
            use = fold < f if ordered else ~at
            weights = np.repeat(default[None], n_clients, 0)
            if use.any():
                weights, _ = solve(evidence[use], owner[use], n_clients, rung, strength, default)
            unseen[at] = np.einsum("nk,knw->nw", weights[owner[at]], outputs[:, at])
        loss = _loss(unseen, y, classes, scale)
        if best is None or loss < best[0]:
            best = loss, strength, unseen
    assert best is not None
    by_client, overall = solve(evidence, owner, n_clients, rung, best[1], default)
    return Weights(by_client, overall, best[2], best[1])


def rung_of(sizes: Floats | Ints) -> Ints:
    """Clients of similar size have the same number."""
    return np.asarray(np.searchsorted(_LADDER, sizes), np.int64)


def pooled_weights(outputs: Floats, y: Floats, classes: bool, default: Floats) -> Floats:
    """One set of weights for all rows, from predictions (candidates, rows, width) of rows that were not seen."""
    evidence = _chances(outputs, y) if classes else outputs[..., 0].T - y[:, None]
    one = np.zeros(len(y), np.int64)
    return (_mixture if classes else _average)(evidence, one, 1, np.zeros(1, np.int64), 1.0, default)[1]


def _chances(outputs: Floats, y: Floats) -> Floats:
    """The probability that every candidate gave to the true class (rows, candidates)."""
    return np.maximum(outputs[:, np.arange(len(y)), y.astype(np.int64)].T, 1e-9)


def _loss(unseen: Floats, y: Floats, classes: bool, scale: Floats | None = None) -> float:
    if classes:
        return float(-np.log(np.maximum(unseen[np.arange(len(y)), y.astype(np.int64)], 1e-9)).mean())
    return float((((unseen[:, 0] - y) / (1.0 if scale is None else scale)) ** 2).mean())


def _average(
    errors: Floats, owner: Ints, n_clients: int, rung: Ints, strength: float, default: Floats
) -> tuple[Floats, Floats]:
    """Weights that minimise squared error: wᵀGw on the simplex, G the candidates' products of errors."""
    k = errors.shape[1]
    products = np.zeros((n_clients, k, k))
    for a in range(k):
        for b in range(a, k):
            both = np.bincount(owner, weights=errors[:, a] * errors[:, b], minlength=n_clients)
            products[:, a, b] = products[:, b, a] = both
    count = np.bincount(owner, minlength=n_clients).astype(float)
    size = np.diag(products.sum(0)).min() / max(count.sum(), 1)
    anchor = _TOWARDS_DEFAULT * size
    overall_form = products.sum(0)
    overall = _on_simplex(overall_form + anchor * np.eye(k), anchor * default)
    found = np.empty((n_clients, k))
    for r in np.unique(rung):
        at = rung == r
        above = overall_form / max(count.sum(), 1)
        form, rows = products[at].sum(0), count[at].sum()
        mixed = (form + strength * above) / (rows + strength)
        for c in np.flatnonzero(at):
            own = products[c] + strength * mixed + anchor * np.eye(k)
            found[c] = _on_simplex(own, anchor * default)
    return found, overall


def _on_simplex(form: Floats, pull: Floats) -> Floats:
    """argmin wᵀ form w − 2 pullᵀw over weights that are not negative and sum to one."""
    scale = float(np.trace(form)) / len(form)
    if not scale > 0:
        return np.full(len(form), 1 / len(form))
    lower = np.linalg.cholesky(form / scale + 1e-9 * np.eye(len(form)))
    right = np.linalg.solve(lower, pull / scale)
    heavy = 1e3
    found, _ = nnls(np.vstack([lower.T, np.full((1, len(form)), heavy)]), np.append(right, heavy))
    return np.asarray(found / found.sum())


def _mixture(
    chance: Floats, owner: Ints, n_clients: int, rung: Ints, strength: float, default: Floats
) -> tuple[Floats, Floats]:
    """Weights that maximise the likelihood of the mixture of probabilities, by EM; the layer above is a Dirichlet prior."""
    everyone = np.zeros(len(owner), np.int64)
    overall = _em(chance, everyone, 1, _TOWARDS_DEFAULT * default[None])[0]
    rungs = int(rung.max()) + 1
    of_rung = _em(chance, rung[owner], rungs, np.repeat(strength * overall[None], rungs, 0))
    return _em(chance, owner, n_clients, strength * of_rung[rung]), overall


def _em(chance: Floats, unit: Ints, n_units: int, prior: Floats) -> Floats:
    weights = prior / prior.sum(1, keepdims=True)
    for _ in range(_EM_STEPS):
        share = weights[unit] * chance
        share /= share.sum(1, keepdims=True)
        total = np.stack([np.bincount(unit, weights=s, minlength=n_units) for s in share.T], 1) + prior
        weights = total / total.sum(1, keepdims=True)
    return np.asarray(weights)
