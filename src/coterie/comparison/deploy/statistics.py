"""More rows for a saved model, without the rows it was trained on.

| part | with further rows |
|---|---|
| `shrunk`, numbers | what all rows together give, from the clients' stored sums ZᵀZ and Zᵀy; scales are the first rows' |
| `shrunk`, two classes | the first rows' posterior of a client is the prior of the further ones (Laplace's approximation) |
| clients' averages and sizes of errors | exact |
| `alone`, `together`, `offsets`, `groups`, trees, the weights | stay as they are until the next comparison |

A new client starts from the population's prior and gets the weights of clients with as many rows; what parts that cannot
learn from its rows would weigh goes to `shrunk`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import expit

from coterie.comparison.deploy.newcomers import PlacedPart
from coterie.comparison.deploy.parts import LinearPart, Part
from coterie.comparison.deploy.stack import Stack, rung_of
from coterie.comparison.deploy.trees import PRIOR_ROWS, TreesPart
from coterie.comparison.exact.candidates.shrunk import from_sums
from coterie.comparison.exact.fitting import Model
from coterie.data.client_names import client_text
from coterie.data.coded_table import Floats, Ints, Table
from coterie.errors import DataError
from coterie.estimation.blocks import grams

if TYPE_CHECKING:
    from coterie.comparison.deploy.model import TableModel

_MOST = 4_000_000  # numbers in the clients' sums; larger models keep none
_FRESH = 10.0  # rows of a new client that the weights for clients never seen are worth
_STEPS = 25
_STAY = ("alone", "offsets", "groups", "trees alone", "trees per group")


@dataclass(frozen=True)
class Statistics:
    """Sums over the rows of every client, on the scales of `shrunk`: A = ZᵀZ, c = Zᵀy; and yᵀy of all rows."""

    A: Floats
    c: Floats
    total: Floats
    count: Floats

    @classmethod
    def of(cls, table: Table, model: Model) -> Statistics | None:
        """None for classes, which have no such sums, and where they would be too many."""
        p = 1 + table.X.shape[1]
        if model.fit.classification or table.kind or table.weight is not None or table.n_clients * p * p > _MOST:
            return None
        return cls.of_rows(model, table.X, table.y, table.owner, table.n_clients)

    @classmethod
    def of_rows(cls, model: Model, X: Floats, y: Floats, owner: Ints, n_clients: int) -> Statistics:
        Z = np.hstack([np.ones((len(X), 1)), model.columns(X)])
        target = model.scaling.target(y[:, None])[:, 0]
        A, c = grams(Z, target, None, owner, n_clients)
        return cls(A, c, np.array(target @ target), np.bincount(owner, minlength=n_clients).astype(float))

    def plus(self, other: Statistics) -> Statistics:
        """Sums of both; the other may have more clients, after these."""
        more = len(other.count) - len(self.count)
        A = np.concatenate([self.A, np.zeros((more, *self.A.shape[1:]))]) + other.A
        c = np.concatenate([self.c, np.zeros((more, self.c.shape[1]))]) + other.c
        return Statistics(A, c, self.total + other.total, np.append(self.count, np.zeros(more)) + other.count)


@dataclass(frozen=True)
class Further:
    """Coded rows that a model has not seen; clients from ``old`` on are new."""

    X: Floats
    y: Floats
    owner: Ints
    old: int
    clients: int
    classes: bool

    @property
    def fresh(self) -> int:
        return self.clients - self.old

    @property
    def outputs(self) -> Floats:
        return (self.y == 1)[:, None] * 1.0 if self.classes else self.y[:, None]


def updated(model: TableModel, frame: pd.DataFrame, *, prior: bool) -> TableModel:
    """The model after these rows; ``prior`` also learns again what clients have in common."""
    y = _targets(model, frame)
    owner, old = model.owners(frame), len(model.clients)
    column = next(c for c in frame.columns if str(c) == model.client)
    if frame[column].isna().any():
        raise DataError(f"Every row needs its client in the column {model.client!r}; some have none. Fill it in.")
    names = frame.loc[owner < 0, column].map(client_text)
    new = list(dict.fromkeys(names))
    owner[owner < 0] = old + pd.Index(new).get_indexer(pd.Index(names))
    rows = Further(model.coding.inputs(frame), y, owner, old, old + len(new), model.classes is not None)
    shrunk, sums = _more(model, _shrunk(model), rows, prior)
    intervals, before = model.intervals.with_clients(len(new)), np.append(model.intervals.count, np.zeros(len(new)))
    if rows.classes:
        intervals = replace(intervals, count=before + np.bincount(owner, minlength=len(before)))
    else:
        intervals = intervals.with_rows(y, model.outputs(frame)[:, 0], owner)
    parts = {name: _further(part, name, shrunk, rows, before) for name, part in model.stack.parts.items()}
    counts = np.bincount(owner, minlength=rows.clients)[old:]
    weights = [_fresh_weights(model, int(n)) for n in counts]
    stack = Stack(parts, np.vstack([model.stack.weights[:-1], *weights, model.stack.weights[-1:]]))
    about = dict(model.about) | {"rows": int(model.about["rows"]) + len(y), "updated": True}
    clients = (*model.clients, *new)
    return replace(model, stack=stack, clients=clients, intervals=intervals, about=about, statistics=sums)


def words(before: TableModel, after: TableModel, rows: int) -> str:
    """What an update changed, and what it left alone."""
    fresh = len(after.clients) - len(before.clients)
    again = (
        "its prior and every client's coefficients" if before.classes is None else "the coefficients of their clients"
    )
    return (
        f"{rows} rows were added, {fresh} clients are new. Learned again: {again} in the part shrunk, the clients' averages "
        "and the sizes of their errors. Unchanged: the other parts, and the weights; compare again to learn these."
    )


def _targets(model: TableModel, frame: pd.DataFrame) -> Floats:
    target = model.about["target"]
    if target not in map(str, frame.columns):
        raise DataError(f"To learn from rows, the model needs their target {target!r}; the table lacks it. Add it.")
    values = next(frame[c] for c in frame.columns if str(c) == target)
    if not len(frame) or values.isna().any():
        raise DataError(f"To learn from rows, every one needs its target {target!r}; some have none. Drop those rows.")
    if model.classes is None:
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64)
        if not np.isfinite(numbers).all():
            raise DataError(f"The target {target!r} must be a finite number in every row; some are not. Correct them.")
        return np.asarray(numbers)
    if len(model.classes) > 2:
        raise DataError("A model of several classes cannot be updated. Compare again with all rows.")
    codes = pd.Index([client_text(c) for c in model.classes]).get_indexer(pd.Index(values.map(client_text)))
    if (codes < 0).any():
        raise DataError(
            f"The target {target!r} holds a class that the model does not know; its classes are "
            f"{', '.join(map(str, model.classes))}. Compare again with all rows."
        )
    return np.asarray(codes, np.float64)


def _shrunk(model: TableModel) -> Model:
    for part in model.stack.parts.values():
        if isinstance(part, TreesPart) and part.shrunk is not None:
            return part.shrunk
    own = model.stack.parts.get("shrunk")
    if not isinstance(own, LinearPart):
        raise DataError("This model has no part shrunk, the only one that can learn more. Compare again with all rows.")
    return own.model


def _more(model: TableModel, shrunk: Model, rows: Further, prior: bool) -> tuple[Model, Statistics | None]:
    """`shrunk` after the rows, and the sums of all rows."""
    if rows.classes:
        return _classes(shrunk, rows.X, rows), None
    further = Statistics.of_rows(shrunk, rows.X, rows.y, rows.owner, rows.clients)
    if model.statistics is None and (prior or (rows.owner < rows.old).any()):
        raise DataError(
            "The model was saved without its clients' sums, so it cannot learn more about clients it knows. Add new clients "
            "alone with adapt, or compare again with all rows."
        )
    sums = further if model.statistics is None else model.statistics.plus(further)
    if not prior:
        return _posterior(_longer(shrunk, rows.fresh), sums.A, sums.c, np.unique(rows.owner)), model.statistics and sums
    found = from_sums(sums.A, sums.c, int(sums.count.sum()), float(sums.total) + 1e-12)
    changed = replace(shrunk.fit, coef=found.coef[..., None], of_client=np.arange(rows.clients))
    changed = replace(changed, population=found.mean[:, None], details={"prior_variance": found.theta[:, None]})
    return Model(shrunk.scaling, changed), sums


def _posterior(model: Model, A: Floats, c: Floats, clients: Ints) -> Model:
    """The posterior of some clients from their sums, with the prior as it is: b = θ (I + Aθ)⁻¹ (c − Aμ)."""
    fit = model.fit
    coef, mean, theta = fit.client_coefficients(), fit.population[:, 0], fit.details["prior_variance"][:, 0]
    for i in clients:
        coef[i, :, 0] = mean + theta * np.linalg.solve(np.eye(len(mean)) + A[i] * theta, c[i] - A[i] @ mean)
    return replace(model, fit=replace(fit, coef=coef, of_client=np.arange(len(coef))))


def _classes(model: Model, X: Floats, rows: Further) -> Model:
    """The posterior of every client with rows, by Newton's method from its posterior before (or the population's prior)."""
    fit = _longer(model, rows.fresh).fit
    assert fit.spread is not None
    Z = np.hstack([np.ones((len(X), 1)), model.columns(X)])
    coef, spread = fit.client_coefficients(), fit.spread.copy()
    spread[len(spread) - rows.fresh :] = np.diag(fit.details["prior_variance"][:, 0])
    for i in np.unique(rows.owner):
        z, hit = Z[rows.owner == i], rows.y[rows.owner == i]
        start, precision = coef[i, :, 0].copy(), np.linalg.inv(spread[i, 0] + 1e-9 * np.eye(Z.shape[1]))
        b = start
        for _ in range(_STEPS):
            chance = expit(z @ b)
            form = precision + (z * np.maximum(chance * (1 - chance), 1e-4)[:, None]).T @ z
            step = np.linalg.solve(form, z.T @ (hit - chance) - precision @ (b - start))
            b = b + step * min(1.0, 2.0 / max(float(np.abs(z @ step).max()), 1e-12))
        coef[i, :, 0], spread[i, 0] = b, np.linalg.inv(form)
    return Model(model.scaling, replace(fit, coef=coef, of_client=np.arange(rows.clients), spread=spread))


def _further(part: Part, name: str, shrunk: Model, rows: Further, before: Floats) -> Part:
    """A part with room for the new clients, and with `shrunk` and the clients' averages as they are now."""
    if name == "shrunk":
        return LinearPart(shrunk)
    if isinstance(part, LinearPart):
        return LinearPart(_longer(part.model, rows.fresh))
    if isinstance(part, PlacedPart):
        return _placed(part, rows)
    assert isinstance(part, TreesPart)
    of_client = np.concatenate([part.of_client[:-1], np.repeat(part.of_client[-1:], rows.fresh + 1)])
    averages = None if part.averages is None else _averages(part.averages, rows, before)
    return replace(part, of_client=of_client, averages=averages, shrunk=None if part.shrunk is None else shrunk)


def _placed(part: PlacedPart, rows: Further) -> PlacedPart:
    """The part that places new clients learns from their rows; of the first clients it kept no sums."""
    model, X = part.part.model, part.columns(rows.X)
    if rows.classes:
        late = rows.owner >= rows.old - len(part.A)
        some = replace(rows, X=rows.X[late], y=rows.y[late], owner=rows.owner[late])
        again, blank = _classes(model, X[late], some), np.zeros((rows.fresh, *part.A.shape[1:]))
        return replace(part, part=LinearPart(again), A=np.append(part.A, blank, 0))
    sums = Statistics.of_rows(model, X, rows.y, rows.owner, rows.clients)
    first = rows.old - len(part.A)
    A, c = sums.A[first:], sums.c[first:]
    A[: len(part.A)] += part.A
    c[: len(part.c)] += part.c
    sums.A[first:], sums.c[first:] = A, c
    again = _posterior(_longer(model, rows.fresh), sums.A, sums.c, np.arange(first, rows.clients))
    return replace(part, part=LinearPart(again), A=A, c=c)


def _longer(model: Model, fresh: int) -> Model:
    fit = model.fit
    if not fresh:
        return model
    own = np.append(fit.of_client, np.full(fresh, len(fit.coef)))
    spread = fit.spread
    if spread is not None:
        spread = np.concatenate([spread, np.zeros((fresh, *spread.shape[1:]))])
    return replace(
        model, fit=replace(fit, coef=np.append(fit.coef, fit.population[None], 0), of_client=own, spread=spread)
    )


def _averages(values: Floats, rows: Further, before: Floats) -> Floats:
    mean, m = values[-1], rows.clients
    known = np.concatenate([values[:-1], np.repeat(mean[None], rows.fresh, 0)])
    total = known * (before + PRIOR_ROWS)[:, None]
    total += np.stack([np.bincount(rows.owner, weights=o, minlength=m) for o in rows.outputs.T], 1)
    count = before + np.bincount(rows.owner, minlength=m)
    return np.vstack([total / (count + PRIOR_ROWS)[:, None], mean])


def _fresh_weights(model: TableModel, rows: int) -> Floats:
    """The weights of clients with as many rows, mixed with those of clients never seen."""
    names, weights = list(model.stack.parts), model.stack.weights
    sizes, never = model.intervals.count, dict(zip(names, weights[-1], strict=True))
    alike = rung_of(sizes) == rung_of(np.array([rows]))[0]
    known: Any = weights[:-1][alike if alike.any() else np.full(len(sizes), True)].mean(0)
    into = max([n for n in ("shrunk", "placed", "shrunk + trees") if n in names], key=lambda n: never[n])
    for j, name in enumerate(names):
        if name in _STAY or (name == "shrunk" and into == "placed"):
            known[names.index(into)] += known[j]
            known[j] = 0.0
    share = rows / (rows + _FRESH)
    return np.asarray(share * known + (1 - share) * weights[-1])[None]
