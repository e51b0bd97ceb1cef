"""The server's side of a study: questions to clients, models from their sums, and the scores by which the rule decides.

A client that does not answer is left out, and the study goes on without it from what the others have told. Fits are numbered
repeat by repeat and fold by fold; the last fit is that to all rows."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.evaluation import FEWEST
from coterie.comparison.exact.plan import FEW_ROWS, WIDE
from coterie.comparison.sites.classes import fit_classes
from coterie.comparison.sites.quadratic import Fitted, Sums, Units, fit_regression
from coterie.comparison.sites.study import Study, halves, inner_parts, squares
from coterie.errors import DataError
from coterie.evidence.scores import ClientScores
from coterie.exchange.messages import Ask, Reply

Answers = dict[str, Floats]
Exchange = Generator[Ask, Reply, Answers]


@dataclass(frozen=True)
class Shape:
    """The agreed centre (columns, target), the repeats and the folds."""

    centre: Floats
    repeats: int
    folds: int

    @property
    def fits(self) -> int:
        return self.repeats * self.folds + 1

    def place(self, fit: int) -> tuple[int, int | None]:
        """The repeat of a fit, and the fold that it leaves out."""
        return (0, None) if fit == self.fits - 1 else divmod(fit, self.folds)

    def down(self) -> dict[str, Any]:
        return {"centre": torch.from_numpy(self.centre), "shape": torch.tensor([self.repeats, self.folds])}


@dataclass
class Found:
    """The result of a study: scores per metric, and the models of the fit to all rows, about the agreed centre."""

    clients: Ints
    few: Ints  # with too few rows to tell anything
    gone: Ints  # that did not answer
    shape: Shape
    rows: Floats
    variance: float  # of the target
    cells: Ints  # the number of folds of every client
    sums: Floats  # of every client's columns and target
    moments: Floats  # the mean of (1, x − centre)(1, x − centre)ᵀ over all rows
    scores: dict[str, ClientScores]
    final: Fitted
    units: Units
    groupings: Ints
    settled: bool


class Lost(Exception):
    """Some clients gave no answer."""

    def __init__(self, clients: Ints) -> None:
        super().__init__(clients)
        self.clients = clients


def conduct(study: Study, n_clients: int, repeats: int) -> Generator[Ask, Reply, Found]:
    """The exchange of a study. Folds do not depend on other clients, so a study without some clients starts again."""
    clients, gone = np.arange(n_clients), np.zeros(0, np.int64)
    while True:
        try:
            return (yield from _once(study, clients, gone, repeats))
        except Lost as lost:
            clients, gone = np.setdiff1d(clients, lost.clients), np.union1d(gone, lost.clients)


def ask(
    phase: Any, clients: Ints, down: dict[str, Any] | None = None, each: dict[str, Floats] | None = None
) -> Exchange:
    """A question to all clients, and their answers in the clients' order; without one of them, `Lost`."""
    rows = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in (each or {}).items()}
    reply = yield Ask(phase, clients, down or {}, rows, optional=True)
    if len(reply.clients) < len(clients):
        raise Lost(np.setdiff1d(clients, reply.clients))
    order = np.argsort(reply.clients)
    return {name: t.double().numpy()[order] for name, t in reply.values.items()}


def _once(study: Study, clients: Ints, gone: Ints, repeats: int) -> Generator[Ask, Reply, Found]:
    told = yield from ask(study.counts, clients)
    enough = told["count"] > 0
    few, clients = clients[~enough], clients[enough]
    _require_two(len(clients), study, told["sums"].shape[1] - 1, len(gone))
    rows, sums = told["count"][enough], told["sums"][enough]
    wide = sums.shape[1] - 1 > WIDE
    once = (wide or rows.sum() >= FEW_ROWS) and repeats <= 3
    shape = Shape(sums.sum(0) / rows.sum(), 1 if once else repeats, 5 if wide else 10)
    if study.classification:
        shape.centre[-1] = 0.0
    told = yield from ask(study.moments, clients, shape.down())
    moments = squares(told["moments"], sums.shape[1] + 1)
    fits = [_training(moments, shape, f) for f in range(shape.fits)]
    units = [Units.of(cells.sum((0, 1)), not study.classification) for cells, _ in fits]
    rng = [np.random.default_rng([study.seed, 3, f]) for f in range(shape.fits)]
    if study.classification:
        fitted = yield from fit_classes(study, clients, shape, moments, units, rng)
    else:
        fitted = [
            fit_regression(Sums.of(cells, u), part, r) for (cells, part), u, r in zip(fits, units, rng, strict=True)
        ]
    scores = yield from _scores(study, clients, shape, units, fitted, sums[:, -1], moments)
    final, last = fitted[-1], Sums.of(fits[-1][0], units[-1])
    if final.forms is None:
        A, c = last.A.sum(1), last.c.sum(1)
        square = last.losses(final.together[None])[:, 0]
        final = replace(final, forms=(A, c - A @ final.together, square))
    return Found(
        clients, few, gone, shape, rows, variance_of(moments), (moments[:, 0, :, 0, 0] > 0).sum(1), sums,
        moments[:, 0].sum((0, 1))[:-1, :-1] / rows.sum(), scores, final, units[-1],
        np.array([f.group for f in fitted[:-1]]), all(f.settled for f in fitted),
    )  # fmt: skip


def _require_two(count: int, study: Study, columns: int, gone: int) -> None:
    if count < 2:
        lost = f" {gone} did not answer." if gone else ""
        raise DataError(
            f"A study needs 2 clients with {study.fewest(columns)} rows or more; {count or 'none'} can take part.{lost} "
            "Find more clients, leave out columns, or lower the least number of rows."
        )


def _training(moments: Floats, shape: Shape, fit: int) -> tuple[Floats, Ints]:
    """The sums (clients, folds, …) of the training rows of a fit, and the inner part of every client's folds."""
    repeat, out = shape.place(fit)
    keep = np.array([k for k in range(shape.folds) if k != out])
    used = moments[:, repeat, :, 0, 0] > 0
    return moments[:, repeat, keep], np.stack([inner_parts(one, out)[keep] for one in used])


def _scores(
    study: Study, clients: Ints, shape: Shape, units: list[Units], fitted: list[Fitted], ones: Floats, moments: Floats
) -> Generator[Ask, Reply, dict[str, ClientScores]]:
    cv = list(zip(units[:-1], fitted[:-1], strict=True))
    each = {
        name: np.stack([u.outside(getattr(f, name)) for u, f in cv], 1) for name in ("shrunk", "groups")
    }  # (clients, fits, p)
    shared = np.stack([u.outside(np.stack([f.constant, f.together])) for u, f in cv])
    each["spread"] = np.zeros((len(clients), len(cv), 0))
    if study.classification:
        each["spread"] = halves(np.stack([u.outside_spread(f.spread) for u, f in cv if f.spread is not None], 1))
    total = moments[:, 0].sum((0, 1))
    common = torch.tensor(int(2 * ones.sum() > total[0, 0]))
    told = yield from ask(
        study.scores, clients, shape.down() | {"common": common, "shared": torch.from_numpy(shared)}, each
    )
    rows = moments[:, 0, :, 0, 0].sum(1)
    found: dict[str, ClientScores] = {}
    for metric in study.metrics:
        keep = np.flatnonzero((told[f"{metric} known"] > 0) & (rows >= FEWEST))
        scale = variance_of(moments) if metric == "mse" else 1.0
        mean, products, sums = (told[f"{metric} {name}"][keep] for name in ("mean", "products", "folds"))
        found[metric] = ClientScores.of(
            metric, keep, len(clients), rows[keep], np.moveaxis(mean, 0, -1) / scale,
            np.moveaxis(products, 0, -1) / scale**2, np.moveaxis(sums, 0, -1) / scale,
        )  # fmt: skip
    return found


def variance_of(moments: Floats) -> float:
    """Of the target, over all rows."""
    total = moments[:, 0].sum((0, 1))
    return max(float(total[-1, -1] / total[0, 0] - (total[0, -1] / total[0, 0]) ** 2), 1e-300)
