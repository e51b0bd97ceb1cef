"""Boosted trees as plain arrays: scikit-learn grows them, NumPy predicts, and nothing needs to be pickled.

The trees come from scikit-learn's histogram gradient boosting. Their number is chosen on a fifth of the training rows, and
the model is then grown again on all of them; zero trees is a possible choice, and gives the average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_softmax, softmax
from threadpoolctl import threadpool_limits

from coterie.comparison.exact.families import TargetKind, inverse, scores_of
from coterie.data.coded_table import Floats, Ints

Bools = npt.NDArray[np.bool_]
_FEW_ROWS = 5000  # fewer rows get fewer, smaller and faster trees
_VALIDATION = 0.2
_PATIENCE = 40
_NEWTON_TREES = 100
_MANY_ROWS = 50_000
_NONE = np.empty(0)
_CHUNK = 8192  # rows that walk down the trees together


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one list. A leaf is its own child, so that a row that has arrived stays.

    Column 0 may hold categories 0…k−1 (or −1): a node with a ``category`` sends those to the left that its row of ``sends``
    names, in which the last column is for categories that training did not see."""

    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    value: Floats
    roots: Ints  # (trees, outputs)
    depth: Ints  # () the longest way down
    base: Floats  # (outputs,)
    category: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # row of ``sends``, −1 for a threshold
    sends: Bools = field(default_factory=lambda: np.empty((0, 1), bool))

    def raw(self, X: Floats) -> Floats:
        """Sums of leaves (rows, outputs): numbers, or scores before the logistic or softmax function."""
        found = np.repeat(self.base[None], len(X), axis=0)
        if not self.roots.size:
            return found
        for begin in range(0, len(X), _CHUNK):
            part = X[begin : begin + _CHUNK]
            rows = np.arange(len(part))[:, None]
            node = np.repeat(self.roots.reshape(1, -1), len(part), axis=0)
            for _ in range(int(self.depth)):
                small = part[rows, self.feature[node]] <= self.threshold[node]
                if len(self.sends):
                    split, code = self.category[node], np.minimum(part[:, :1], self.sends.shape[1] - 1).astype(np.int64)
                    small = np.where(split >= 0, self.sends[split, code], small)
                node = np.where(small, self.left[node], self.right[node])
            found[begin : begin + _CHUNK] += self.value[node].reshape(len(part), *self.roots.shape).sum(1)
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        return {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Self:
        return cls(**{f.name: arrays[f.name] for f in fields(cls)})

    def cut(self, trees: int) -> Forest:
        """The first trees."""
        return replace(self, roots=self.roots[:trees])

    def without_base(self) -> Forest:
        """The trees alone, to be added to the scores of another model."""
        return replace(self, base=np.zeros_like(self.base))


def probabilities(raw: Floats) -> Floats:
    """(rows, classes), from one score for two classes or one per class."""
    if raw.shape[1] == 1:
        chance = expit(raw)
        return np.hstack([1 - chance, chance])
    return np.asarray(softmax(raw, axis=1))


@dataclass(frozen=True)
class Goal:
    """What trees are grown for besides the target: its kind, how much each row counts, the rows held out, and the number of
    categories in column 0 (0: it holds numbers)."""

    kind: TargetKind | None = None
    weight: Floats | None = None
    hold: Bools | None = None
    categories: int = 0

    def of(self, rows: np.ndarray) -> Goal:
        weight, hold = (None if v is None else v[rows] for v in (self.weight, self.hold))
        return Goal(self.kind, weight, hold, self.categories)

    def loss(self, raw: Floats, y: Floats, link: str) -> float:
        assert self.kind is not None
        return float(np.average(self.kind.deviance(y, inverse(link, raw[:, 0])), weights=self.weight))


PLAIN = Goal()


def grow(X: Floats, y: Floats, n_classes: int, seed: int, goal: Goal = PLAIN) -> Forest:
    """A forest for numbers (``n_classes`` 0) or class codes, with as many trees as help on rows that were held out."""
    n = len(y)
    kept, held = _parted(n, seed, goal.hold)
    kind, link = goal.kind, "identity" if goal.kind is None else goal.kind.tree_link
    if kind is not None and not (np.ptp(y[kept]) > 0 and np.ptp(y[held]) > 0):
        return _constant(scores_of(link, np.array([np.average(y, weights=goal.weight)])), 0)
    if n_classes and len(np.unique(y[kept])) < n_classes:
        return _constant(y, n_classes)
    tried = _grown(X[kept], y[kept], n_classes, _most_trees(n), seed, (X[held], y[held]), goal.of(kept), goal.of(held))
    judge = None if kind is None else lambda raw: goal.of(held).loss(raw, y[held], link)
    best = _best_number(tried, X[held], y[held], n_classes, judge=judge)
    if best:
        return _grown(X, y, n_classes, best, seed, None, goal)
    return _constant(y, n_classes) if kind is None else replace(tried.cut(0), base=tried.base)


def grow_on_working(X: Floats, y: Floats, eta: Floats, kind: TargetKind, seed: int, goal: Goal = PLAIN) -> Forest:
    """A forest to add to the scores ``eta`` of a model of a kind of target: trees of one Newton step."""
    response, weight = kind.working(y, eta)
    target, full = response - eta, weight if goal.weight is None else weight * goal.weight
    kept, held = _parted(len(y), seed, goal.hold)
    tried = _grown(
        X[kept], target[kept], 0, _NEWTON_TREES, seed, None, replace(goal.of(kept), kind=None, weight=full[kept])
    )
    tried, part = tried.without_base(), goal.of(held)
    best = _best_number(tried, X[held], y[held], 0, eta[held, None], lambda raw: part.loss(raw, y[held], kind.link))
    if not best:
        return tried.cut(0)
    return _grown(X, target, 0, best, seed, None, replace(goal, kind=None, weight=full)).without_base()


def _parted(n: int, seed: int, hold: Bools | None) -> tuple[Ints, Ints]:
    """The rows to grow on, and those that choose the number of trees: a random fifth, or the rows marked in ``hold``."""
    if hold is not None and 0 < hold.sum() < n:
        return np.flatnonzero(~hold), np.flatnonzero(hold)
    order = np.random.default_rng([seed, 7]).permutation(n)
    held = order[: int(_VALIDATION * n)]
    return order[len(held) :], held


def _most_trees(rows: int) -> int:
    return 150 if rows < _FEW_ROWS else 300


def grow_on_scores(X: Floats, y: Floats, scores: Floats, seed: int, goal: Goal = PLAIN) -> Forest:
    """A forest to add to the scores of a model of classes (rows, 1) or (rows, classes): trees of one Newton step.

    A Newton step of the log loss is a weighted regression of (y − p) / (p(1 − p)) with weights p(1 − p), one per output.
    The number of trees is the one with the lowest log loss on held-out rows."""
    q = max(scores.shape[1], 2)
    chance = probabilities(scores)[:, -scores.shape[1] :]
    hit = (y[:, None] == (np.arange(q) if q > 2 else np.ones(1))).astype(np.float64)
    weight = np.maximum(chance * (1 - chance), 0.02)
    target = (hit - chance) / weight
    kept, held = _parted(len(y), seed, goal.hold)
    tried = _newton_forest(X[kept], target[kept], weight[kept], _NEWTON_TREES, seed, goal.categories)
    best = _best_number(tried, X[held], y[held], q, scores[held])
    if not best:
        return _constant(y, q).without_base()
    return _newton_forest(X, target, weight, best, seed, goal.categories)


def _newton_forest(X: Floats, target: Floats, weight: Floats, trees: int, seed: int, categories: int) -> Forest:
    pairs = zip(target.T, weight.T, strict=True)
    return _joined(
        [_grown(X, one, 0, trees, seed, None, Goal(weight=weights, categories=categories)) for one, weights in pairs]
    )


def _joined(forests: list[Forest]) -> Forest:
    """Forests of one output each, with as many trees, as one of several outputs; base values are zero for all."""
    sizes = np.array([len(f.value) for f in forests])
    starts = np.cumsum(sizes) - sizes
    both = {n: np.concatenate([getattr(f, n) for f in forests]) for n in ("feature", "threshold", "value")}
    both |= {
        n: np.concatenate([getattr(f, n) + s for f, s in zip(forests, starts, strict=False)]) for n in ("left", "right")
    }
    roots = np.hstack([f.roots + s for f, s in zip(forests, starts, strict=False)])
    depth = np.array(max(int(f.depth) for f in forests))
    splits = np.cumsum([0, *(len(f.sends) for f in forests)])
    both["category"] = np.concatenate(
        [np.where(f.category >= 0, f.category + s, -1) for f, s in zip(forests, splits, strict=False)]
    )
    sends = np.concatenate([f.sends for f in forests])
    return Forest(**both, roots=roots, depth=depth, base=np.zeros(len(forests)), sends=sends)


def _constant(y: Floats, n_classes: int) -> Forest:
    if not n_classes:
        base = np.array([y.mean()])
    else:
        share = (np.bincount(y.astype(np.int64), minlength=n_classes) + 0.5) / (len(y) + 0.5 * n_classes)
        base = np.array([np.log(share[1] / share[0])]) if n_classes == 2 else np.log(share)
    none = np.empty(0)
    whole = np.empty(0, np.int64)
    return Forest(whole, none, whole, whole, none, np.empty((0, len(base)), np.int64), np.array(0), base)


def _grown(
    X: Floats, y: Floats, n_classes: int, trees: int, seed: int, watched: Any, goal: Goal = PLAIN, seen: Goal = PLAIN
) -> Forest:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if n_classes else HistGradientBoostingRegressor
    more: dict[str, Any] = {"early_stopping": False}
    given: dict[str, Any] = {}
    if watched is not None:
        more = {"early_stopping": True, "n_iter_no_change": _PATIENCE, "tol": 0.0, "scoring": "loss"}
        given = {"X_val": watched[0], "y_val": watched[1]}
        given |= {} if seen.weight is None else {"sample_weight_val": seen.weight}
    more |= {"categorical_features": [0]} if goal.categories else {}
    more |= {} if goal.kind is None else {"loss": goal.kind.trees}
    few = len(y) < _FEW_ROWS
    model = kind(
        max_iter=trees,
        learning_rate=0.1 if few else 0.06,
        max_leaf_nodes=15 if few else 31,
        min_samples_leaf=int(np.clip(len(y) // 40, 5, 20)),
        l2_regularization=1.0,
        random_state=seed,
        **more,
    )
    with threadpool_limits(1 if len(y) < _MANY_ROWS else None, "openmp"):  # on few rows threads mostly wait
        return _as_arrays(model.fit(X, y, sample_weight=goal.weight, **given), goal.categories, np.unique(X[:, 0]))


def _as_arrays(model: Any, categories: int = 0, seen: Floats = _NONE) -> Forest:
    """The nodes of a fitted model of scikit-learn, numbered through."""
    trees = [tree.nodes for step in model._predictors for tree in step]
    sizes = np.array([len(t) for t in trees], np.int64)
    starts = np.cumsum(sizes) - sizes
    nodes = np.concatenate(trees)
    offset = np.repeat(starts, sizes)
    leaf = nodes["is_leaf"].astype(bool)
    own = np.arange(len(nodes))
    base = np.asarray(model._baseline_prediction, np.float64).reshape(-1)
    return Forest(
        np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
        np.where(leaf, 0.0, nodes["num_threshold"]),
        np.where(leaf, own, nodes["left"] + offset).astype(np.int64),
        np.where(leaf, own, nodes["right"] + offset).astype(np.int64),
        np.where(leaf, nodes["value"], 0.0),
        starts.reshape(-1, len(base)),
        np.array(int(nodes["depth"].max())),
        base,
        *(
            _sent(model, nodes, sizes, categories, seen.astype(np.int64))
            if categories
            else (np.full(len(nodes), -1), np.empty((0, 1), bool))
        ),
    )


def _sent(model: Any, nodes: np.ndarray, sizes: Ints, categories: int, seen: Ints) -> tuple[Ints, Bools]:
    """Which split by categories a node has, and the categories that each of them sends to the left. scikit-learn numbers the
    categories that it has ``seen``, in their order."""
    words = [tree.raw_left_cat_bitsets for step in model._predictors for tree in step]
    starts = np.cumsum([len(w) for w in words]) - [len(w) for w in words]
    at = np.flatnonzero((nodes["is_categorical"] == 1) & (nodes["is_leaf"] == 0))
    code = np.arange(len(seen))
    bits = np.concatenate(words)[nodes["bitset_idx"][at] + np.repeat(starts, sizes)[at]]
    sends = np.repeat(nodes["missing_go_to_left"][at].astype(bool)[:, None], categories + 1, axis=1)
    sends[:, seen] = (bits[:, code // 32] >> (code % 32).astype(np.uint32)) & 1
    category = np.full(len(nodes), -1)
    category[at] = np.arange(len(at))
    return category, sends


def _best_number(
    forest: Forest,
    X: Floats,
    y: Floats,
    n_classes: int,
    scores: Floats | None = None,
    judge: Callable[[Floats], float] | None = None,
) -> int:
    """The number of trees with the lowest loss on these rows; ``scores`` are those that the trees are added to."""
    raw = np.repeat(forest.base[None], len(X), axis=0) if scores is None else scores
    judge = judge or (lambda raw: _loss(raw, y, n_classes))
    losses = [judge(raw)]
    for k in range(len(forest.roots)):
        raw = raw + replace(forest, roots=forest.roots[k : k + 1], base=np.zeros_like(forest.base)).raw(X)
        losses.append(judge(raw))
    return int(np.argmin(losses))


def _loss(raw: Floats, y: Floats, n_classes: int) -> float:
    if not n_classes:
        return float(((y - raw[:, 0]) ** 2).mean())
    if n_classes == 2:
        return float(np.logaddexp(0, np.where(y == 1, -raw[:, 0], raw[:, 0])).mean())
    return float(-log_softmax(raw, axis=1)[np.arange(len(y)), y.astype(np.int64)].mean())
