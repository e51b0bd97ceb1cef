"""Models fitted to parts of a table, in its units."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coterie.comparison.exact.candidates import Candidate, Fit, Rows
from coterie.comparison.exact.families import KINDS, MOST, SETTLED, STEPS, TargetKind, bulk, inverse
from coterie.comparison.exact.levels import Levels, with_effects
from coterie.data.coded_table import Floats, Ints, Table

_ROOM, _ROOM_IN_TIME = 0.3, 0.5  # how far beyond its training rows a column is believed, in their range


@dataclass(frozen=True)
class Scaling:
    """Centre and scale learned on training rows. A constant column is sent to zero.

    ``low`` and ``high`` bound the columns of new rows: a line says little far beyond the rows that it was drawn through."""

    mean: Floats
    inverse: Floats
    y_mean: Floats
    y_scale: Floats
    low: Floats | None = None
    high: Floats | None = None

    def columns(self, X: Floats) -> Floats:
        inside = X if self.low is None else np.clip(X, self.low, self.high)
        return np.asarray((inside - self.mean) * self.inverse)

    def target(self, outputs: Floats) -> Floats:
        return np.asarray((outputs - self.y_mean) / self.y_scale)


def learn_scaling(X: Floats, outputs: Floats, classification: bool) -> Scaling:
    mean, size = X.mean(0), np.abs(X).max(0, initial=0)
    sd = np.sqrt(((X - mean) ** 2).mean(0))
    inverse = np.where(sd > 1e-10 * size, 1 / np.where(sd > 0, sd, 1.0), 0.0)
    if classification:
        return Scaling(mean, inverse, np.zeros(outputs.shape[1]), np.ones(outputs.shape[1]))
    scale = outputs.std(0)
    return Scaling(mean, inverse, outputs.mean(0), np.where(scale > 0, scale, 1.0))


def bounded(scaling: Scaling, X: Floats, ordered: bool) -> Scaling:
    """The scaling with bounds a little beyond these training rows, and further where the future is to be predicted."""
    low, high = X.min(0, initial=np.inf), X.max(0, initial=-np.inf)
    room = (_ROOM_IN_TIME if ordered else _ROOM) * (high - low)
    return replace(scaling, low=low - room, high=high + room) if len(X) else scaling


@dataclass(frozen=True)
class Model:
    """A fitted candidate in the units of the table; ``link`` says what its scores are of a mean, and ``levels`` what the
    codes in the last columns do."""

    scaling: Scaling
    fit: Fit
    link: str = "identity"
    levels: Levels | None = None

    def columns(self, X: Floats) -> Floats:
        """The columns on the scales of training, with effects in place of codes."""
        return self.scaling.columns(X if self.levels is None else self.levels.columns(X))

    def beyond(self, X: Floats) -> npt.NDArray[np.bool_]:
        """The rows that are further out than the bounds."""
        low, high = self.scaling.low, self.scaling.high
        if low is None or high is None:
            return np.zeros(len(X), bool)
        inside = X if self.levels is None else self.levels.columns(X)
        return np.asarray(((inside < low) | (inside > high)).any(1))

    def unbounded(self) -> Model:
        """The same model for rows of any size: claims about collaboration rest on it, at sites as in one table."""
        return replace(self, scaling=replace(self.scaling, low=None, high=None))

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        """Predicted targets (rows, 1) or probabilities (rows, classes); owner −1 is a client never seen."""
        raw = self.fit.outputs(self.columns(X), owner)
        return raw if self.fit.classification else inverse(self.link, raw * self.scaling.y_scale + self.scaling.y_mean)


def _stepped(candidate: Candidate, rows: Rows, kind: TargetKind, seed: int) -> Fit:
    """The candidate's linear fit to working responses, until scores settle. Every step draws the same random numbers."""
    y, own = rows.y[:, 0], np.ones(len(rows.y)) if rows.weight is None else rows.weight
    mean = float(np.average(y, weights=own))
    if kind.link != "identity":
        rows_of = np.bincount(rows.owner, weights=own, minlength=rows.n_clients)[rows.owner]
        y = (rows_of * y + 0.5 * mean) / (rows_of + 0.5)
    eta = kind.scores((y + mean) / 2) if kind.link != "identity" else np.full(len(y), float(np.median(y)))
    for _ in range(STEPS):
        response, weight = kind.working(y, eta)
        weight = weight * own
        step = replace(rows, y=response[:, None], weight=weight / weight.mean())
        fit = candidate.fit(step, np.random.default_rng(seed))
        move = fit.outputs(rows.X, rows.owner)[:, 0] - eta
        eta = eta + (np.clip(move, -MOST, MOST) if kind.link != "identity" else move)
        if np.abs(move).max() < SETTLED:
            break
    return fit


def learn(
    table: Table,
    keep: npt.NDArray[np.bool_],
    candidates: dict[str, Candidate],
    rng: np.random.Generator,
) -> dict[str, Model]:
    """Fit every candidate to the rows marked in ``keep``; nothing else is seen."""
    classification = table.classes is not None
    outputs, (levels, inside) = table.outputs()[keep], with_effects(table, keep)
    chosen = KINDS.get(table.judged_as)
    linked = chosen is not None and chosen.link != "identity"
    scaling = learn_scaling(inside, outputs, classification or linked)
    if chosen is not None and not linked:  # one wild row must not set the scale
        middle = np.median(outputs, 0)
        scaling = replace(scaling, y_mean=middle, y_scale=bulk(outputs - middle))
    scaling = bounded(scaling, inside, table.time is not None)
    weight = None if table.weight is None else table.weight[keep] / table.weight[keep].mean()
    X, y = scaling.columns(inside), scaling.target(outputs)
    rows = Rows(X, y, table.owner[keep], table.n_clients, classification, weight)
    if chosen is not None:
        seed = int(rng.integers(2**32))
        return {
            name: Model(scaling, _stepped(c, rows, chosen, seed), chosen.link, levels) for name, c in candidates.items()
        }
    return {name: Model(scaling, candidate.fit(rows, rng), levels=levels) for name, candidate in candidates.items()}
