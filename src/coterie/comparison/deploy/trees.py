"""Boosted trees as further candidates: the ways of sharing, with another family of models.

| candidate | trees are grown on |
|---|---|
| `trees alone` | every client's own rows (clients with enough rows; the others get the average) |
| `trees together` | all rows, without the client |
| `trees with client` | all rows, and the client's own average and (of at most 250 clients) its name as more columns |
| `trees per group` | the rows of every group that the candidate `groups` found |
| `shrunk + trees` | what `shrunk` leaves unexplained on rows that it did not see |

A client's average is shrunk towards that of all clients, and computed without the row itself while trees are grown.
With classes the trees are added to the scores of `shrunk`, before the logistic or softmax function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from coterie.comparison.deploy.forest import Forest, Goal, grow, grow_on_scores, grow_on_working, probabilities
from coterie.comparison.deploy.parts import Arrays, LinearPart
from coterie.comparison.exact.candidates import CANDIDATES
from coterie.comparison.exact.families import KINDS, LINKS, inverse, scores_of
from coterie.comparison.exact.fitting import Model, learn
from coterie.comparison.exact.folds import Bools, inner_folds
from coterie.comparison.exact.levels import Levels, with_effects
from coterie.data.coded_table import Floats, Ints, Table

ENOUGH = 100  # rows of a client or a group for trees of its own
_MOST_OWN = 40  # clients that get trees of their own
_MOST_NAMES = 250  # clients that trees may tell apart by name
PRIOR_ROWS = 10.0
_PARTS = 5  # in which averages and residuals are computed without the row itself


@dataclass(frozen=True)
class Averages:
    """The average target of every client, shrunk towards that of all rows; one column per output."""

    values: Floats  # (clients + 1, outputs), the last row for a client never seen

    @classmethod
    def learn(cls, outputs: Floats, owner: Ints, n_clients: int) -> Averages:
        count = np.bincount(owner, minlength=n_clients)[:, None]
        total = np.stack([np.bincount(owner, weights=o, minlength=n_clients) for o in outputs.T], 1)
        mean = outputs.mean(0)
        return cls(np.vstack([(total + PRIOR_ROWS * mean) / (count + PRIOR_ROWS), mean]))

    def of(self, owner: Ints) -> Floats:
        return self.values[owner]


def _without_itself(outputs: Floats, owner: Ints, n_clients: int, rng: np.random.Generator) -> Floats:
    """Every row's client average, from the parts of the rows that do not hold it."""
    part = rng.permutation(len(owner)) % _PARTS
    found = np.empty_like(outputs)
    for p in range(_PARTS):
        at = part == p
        if at.any():
            found[at] = Averages.learn(outputs[~at], owner[~at], n_clients).of(owner[at])
    return found


@dataclass(frozen=True)
class TreesPart:
    """Forests, which of them serves which client, and the columns that are added before they are asked."""

    forests: tuple[Forest, ...]
    of_client: Ints  # (clients + 1,), the last for a client never seen
    classification: bool
    averages: Floats | None = None  # (clients + 1, outputs)
    shrunk: Model | None = None  # the linear model to whose numbers or scores the trees are added
    link: str = "identity"  # of the scores that trees add up, where they are neither numbers nor classes
    levels: Levels | None = None

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        base = None if self.shrunk is None else self.shrunk.outputs(X, owner)
        inputs = X if self.levels is None else self.levels.columns(X)
        inputs = inputs if self.averages is None else _with_client(inputs, owner, self.averages[owner])
        raw = np.empty((len(X), len(self.forests[0].base)))
        for f, forest in enumerate(self.forests):
            at = self.of_client[owner] == f
            if at.any():
                raw[at] = forest.raw(inputs[at])
        if self.classification:
            return probabilities(raw if base is None else raw + _scores(base))
        return inverse(self.link, raw if base is None else raw + scores_of(self.link, base))

    def arrays(self) -> Arrays:
        found: Arrays = {
            "forests": np.array(len(self.forests)),
            "of_client": self.of_client,
            "classification": np.array(self.classification),
            "link": np.array(LINKS.index(self.link)),
        }
        for f, forest in enumerate(self.forests):
            found |= {f"forest{f}.{name}": value for name, value in forest.arrays().items()}
        if self.averages is not None:
            found["averages"] = self.averages
        if self.levels is not None:
            found["effects"] = self.levels.effects
        if self.shrunk is not None:
            found |= {f"shrunk.{name}": value for name, value in LinearPart(self.shrunk).arrays().items()}
        return found

    @classmethod
    def of(cls, arrays: Arrays) -> Self:
        forests = tuple(Forest.of(_under(arrays, f"forest{f}.")) for f in range(int(arrays["forests"])))
        below = _under(arrays, "shrunk.")
        return cls(
            forests,
            arrays["of_client"],
            bool(arrays["classification"]),
            arrays.get("averages"),
            LinearPart.of(below).model if below else None,
            LINKS[int(arrays.get("link", 0))],
            Levels(arrays["effects"]) if "effects" in arrays else None,
        )


def _with_client(X: Floats, owner: Ints, averages: Floats) -> Floats:
    return np.hstack([owner[:, None], X, averages])


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _scores(chance: Floats) -> Floats:
    """Log odds of two classes, or logarithms of all probabilities, as columns."""
    safe = np.log(np.clip(chance, 1e-6, 1.0))
    return safe[:, 1:] - safe[:, :1] if chance.shape[1] == 2 else safe


def fit_trees(
    table: Table,
    keep: np.ndarray,
    groups: Ints | None,
    shrunk: Model,
    unseen: Floats | None,
    seed: int,
) -> dict[str, TreesPart]:
    """Every candidate with trees, fitted to the rows marked in ``keep``.

    ``groups`` are the clients' groups and ``shrunk`` the linear model of the same rows. ``unseen`` are the predictions of
    `shrunk` for rows that it did not see (all rows of the table); None computes them here. Without ``groups`` only the
    candidates that know new clients are fitted."""
    y, owner, m, q = table.y[keep], table.owner[keep], table.n_clients, table.n_classes
    levels, X = with_effects(table, keep)
    everyone = np.zeros(m + 1, np.int64)
    outputs, rng = table.outputs()[keep], np.random.default_rng([seed, 11])
    averages, kind = Averages.learn(outputs, owner, m).values, KINDS.get(table.judged_as)
    weight = None if table.weight is None else table.weight[keep]
    goal = Goal(kind, weight, held_rows(table.rows(keep), seed))
    link = "identity" if kind is None else kind.tree_link
    named = replace(goal, categories=m if m <= _MOST_NAMES else 0)
    with_client = _with_client(X, owner, _without_itself(outputs, owner, m, rng))
    base = out_of_part(table, keep, rng) if unseen is None else unseen[keep]
    found = {
        "trees together": TreesPart((grow(X, y, q, seed, goal),), everyone, q > 0, link=link),
        "trees with client": TreesPart((grow(with_client, y, q, seed, named),), everyone, q > 0, averages, link=link),
    }
    if q:
        rest = grow_on_scores(with_client, y, _scores(base), seed, named)
    elif kind is not None:
        rest, link = grow_on_working(with_client, y, kind.scores(base[:, 0]), kind, seed, named), kind.link
    else:
        rest = grow(with_client, y - base[:, 0], 0, seed, replace(named, kind=None))
    found["shrunk + trees"] = TreesPart((rest,), everyone, q > 0, averages, shrunk, link)
    if groups is None:
        return {name: replace(part, levels=levels) for name, part in found.items()}
    sizes = np.bincount(owner, minlength=m)
    if m <= _MOST_OWN and np.median(sizes) >= ENOUGH:
        found["trees alone"] = _separate(X, y, np.arange(m), owner, q, seed, goal)
    if len(np.unique(groups)) > 1 and np.bincount(groups, weights=sizes).min() >= ENOUGH:
        found["trees per group"] = _separate(X, y, groups, owner, q, seed, goal)
    return {name: replace(part, levels=levels) for name, part in found.items()}


def held_rows(table: Table, seed: int) -> Bools:
    """A fifth of the rows, by which the number of trees is chosen: the last ones in time, or those of whole units."""
    fold = inner_folds(table, _PARTS, np.random.default_rng([seed, 7]))
    return np.asarray(fold == _PARTS - 1)


def _separate(X: Floats, y: Floats, unit: Ints, owner: Ints, q: int, seed: int, goal: Goal) -> TreesPart:
    """A forest per client or group; a unit with few rows, and a client never seen, get one grown on all rows."""
    forests = [grow(X, y, q, seed, goal)]
    which = np.zeros(len(unit) + 1, np.int64)
    for u in np.unique(unit):
        at = unit[owner] == u
        if at.sum() >= ENOUGH:
            which[:-1][unit == u] = len(forests)
            forests.append(grow(X[at], y[at], q, seed, goal.of(at)))
    return TreesPart(tuple(forests), which, q > 0, link="identity" if goal.kind is None else goal.kind.tree_link)


def out_of_part(table: Table, keep: np.ndarray, rng: np.random.Generator) -> Floats:
    """Predictions of `shrunk` for the rows in ``keep``, each by a fit to the other parts of them."""
    rows = np.flatnonzero(keep)
    part = inner_folds(replace(table.rows(keep), time=None), _PARTS, rng)
    found = np.empty((len(rows), max(table.n_classes, 1)))
    only: Mapping[str, object] = {"shrunk": CANDIDATES["shrunk"]}
    for p in range(_PARTS):
        inner = np.zeros(len(keep), bool)
        inner[rows[part != p]] = True
        model = learn(table, inner, dict(only), rng)["shrunk"]  # type: ignore[arg-type]
        at = rows[part == p]
        found[part == p] = model.outputs(table.X[at], table.owner[at])
    return found
