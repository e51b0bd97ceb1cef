"""Clients never seen: what they would get, measured on clients that were left out, and how columns can place them.

Every part that knows new clients is fitted again without a fifth of the clients and predicts their rows. The weights for
new clients are learned from these predictions, and so are their expected loss and their intervals.

Columns that are the same in all rows of each client (the height of a gauge, the size of a school) place a newcomer.
Their own slopes are in every linear model. The part `placed` also lets them move the other slopes: it is `shrunk` with
the products of both as further columns, so the prior mean of a client's coefficients is μ + Γ w for covariates w."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from coterie.comparison.deploy.parts import Arrays, LinearPart, Part
from coterie.comparison.deploy.stack import pooled_weights
from coterie.comparison.deploy.trees import fit_trees
from coterie.comparison.exact.candidates import CANDIDATES, Candidate
from coterie.comparison.exact.candidates.offsets import Offsets
from coterie.comparison.exact.fitting import learn
from coterie.data.coded_table import Floats, Ints, Table

FOLDS, FEWEST = 5, 3  # folds of clients; clients below which nothing is left out
_MANY_ROWS = 5000  # rows from which three folds do
_FEWEST_PLACED = 12  # clients from which covariates may move slopes
_MOST_PRODUCTS = 30
_LINEAR: dict[str, Candidate] = {name: CANDIDATES[name] for name in ("constant", "together", "shrunk")}
_LINEAR["offsets"] = Offsets()
_DEFAULT = {"shrunk": 0.3, "together": 0.3, "shrunk + trees": 0.2, "constant": 0.1, "trees together": 0.1}


@dataclass(frozen=True)
class PlacedPart:
    """A linear part on the columns and on products of covariates and other columns."""

    pairs: Ints  # (products, 2)
    middle: Floats  # (columns,) the means around which products are taken
    part: LinearPart
    A: Floats  # the sums ZᵀZ and Zᵀy of clients that came later, the last of the part's clients
    c: Floats

    def columns(self, X: Floats) -> Floats:
        levels = self.part.model.levels
        return with_products(X, self.pairs, self.middle, 0 if levels is None else len(levels.effects))

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        return self.part.outputs(self.columns(X), owner)

    def arrays(self) -> Arrays:
        return {"pairs": self.pairs, "middle": self.middle, "A": self.A, "c": self.c} | self.part.arrays()

    @classmethod
    def of(cls, arrays: Arrays) -> Self:
        return cls(arrays["pairs"], arrays["middle"], LinearPart.of(arrays), arrays["A"], arrays["c"])


def with_products(X: Floats, pairs: Ints, middle: Floats, codes: int = 0) -> Floats:
    """The columns and products of pairs of them; columns of ``codes`` stay the last."""
    away, first = X - middle, X.shape[1] - codes
    return np.hstack([X[:, :first], away[:, pairs[:, 0]] * away[:, pairs[:, 1]], X[:, first:]])


@dataclass(frozen=True)
class Newcomers:
    """Predictions for every row by models that never saw its client, and the weights learned from them."""

    weights: dict[str, float]
    unseen: Floats  # (rows, outputs), each by weights from other clients
    constant: Floats
    covariates: tuple[int, ...]
    placed: PlacedPart | None

    def of(self, rows: np.ndarray) -> Newcomers:
        """The predictions for some of the rows."""
        return replace(self, unseen=self.unseen[rows], constant=self.constant[rows])


def covariates(table: Table) -> tuple[int, ...]:
    """The columns that vary between clients and never inside one; only where most clients have several rows."""
    if np.median(table.sizes) < 2:
        return ()
    first = np.full(table.n_clients, -1)
    first[table.owner[::-1]] = np.arange(len(table.owner))[::-1]
    given = []
    for j, column in enumerate(table.X.T[: table.X.shape[1] - len(table.levels)]):
        there = column[first]
        if np.ptp(there) > 0 and (there[table.owner] == column).all():
            given.append(j)
    return tuple(given)


def judge_newcomers(table: Table, trees: bool, linear: bool, unseen: Floats | None, seed: int) -> Newcomers | None:
    """``unseen``: out-of-fold predictions of `shrunk`, whose residuals trees are grown on."""
    if table.n_clients < FEWEST:
        return None
    given = covariates(table)
    pairs = _pairs(table, given) if linear else None
    number = min(3 if len(table.y) >= _MANY_ROWS else FOLDS, table.n_clients)
    rng = np.random.default_rng([seed, 29])
    fold = (rng.permutation(table.n_clients) % number)[table.owner]
    found: dict[str, Floats] = {}
    for f in range(number):
        test = fold == f
        made = _fitted(table, ~test, trees, linear, unseen, pairs, seed)
        nobody = np.full(int(test.sum()), -1, np.int64)
        for name, part in made.items():
            found.setdefault(name, np.zeros((len(table.y), max(table.n_classes, 1))))
            found[name][test] = part.outputs(table.X[test], nobody)
    names = list(found)
    stacked = np.stack([found[name] for name in names])
    default = np.array([_DEFAULT.get(name, 0.05) for name in names])
    default = default / default.sum()
    classes = table.classes is not None
    made_by = np.zeros_like(stacked[0])
    for f in range(number):
        test = fold == f
        weights = pooled_weights(stacked[:, ~test], table.y[~test], classes, default)
        made_by[test] = np.einsum("k,knw->nw", weights, stacked[:, test])
    weights = pooled_weights(stacked, table.y, classes, default)
    placed = None if pairs is None else _placed(table, np.ones(len(table.y), bool), pairs, seed)
    return Newcomers(dict(zip(names, weights, strict=True)), made_by, found["constant"], given, placed)


def _pairs(table: Table, given: tuple[int, ...]) -> Ints | None:
    """The products of covariates and other columns; None for few clients, no covariates, or too many products."""
    others = [j for j in range(table.X.shape[1] - len(table.levels)) if j not in given]
    pairs = np.array([(w, j) for w in given for j in others], np.int64).reshape(-1, 2)
    many = table.n_clients >= _FEWEST_PLACED
    return pairs if many and len(pairs) and len(pairs) <= _MOST_PRODUCTS else None


def _fitted(
    table: Table, keep: np.ndarray, trees: bool, linear: bool, unseen: Floats | None, pairs: Ints | None, seed: int
) -> dict[str, Part]:
    models = learn(table, keep, _LINEAR, np.random.default_rng([seed, 31]))
    found: dict[str, Part] = {name: LinearPart(model) for name, model in models.items() if linear or name == "constant"}
    if pairs is not None:
        found["placed"] = _placed(table, keep, pairs, seed)
    return found | (fit_trees(table, keep, None, models["shrunk"], unseen, seed) if trees else {})


def _placed(table: Table, keep: np.ndarray, pairs: Ints, seed: int) -> PlacedPart:
    middle = table.X[keep].mean(0)
    wide, first = with_products(table.X, pairs, middle, len(table.levels)), table.X.shape[1] - len(table.levels)
    products = (f"{table.names[a]} × {table.names[b]}" for a, b in pairs)
    names = (*table.names[:first], *products, *table.names[first:])
    longer = replace(table, X=wide, names=names)
    only, p = {"shrunk": CANDIDATES["shrunk"]}, 1 + wide.shape[1]
    model = learn(longer, keep, only, np.random.default_rng([seed, 37]))["shrunk"]
    return PlacedPart(pairs, middle, LinearPart(model), np.empty((0, p, p)), np.empty((0, p)))
