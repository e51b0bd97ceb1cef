"""The decision from nothing but sums over all clients, so that secure sums carry every question of it.

Alone and together are compared. Shrunk models and groups need the sums of squares of single clients, so a study of this kind
does not have them. Gains of single clients stay with them.

    sizes      how many clients have a largest number of a power of two, per column
    counts     the number of clients and rows, sums and sums of squares of columns and target
    moments    Σ (1, x, y)(1, x, y)ᵀ about an agreed centre in agreed units, per repeat and fold
    forms      classes: loss, gradient and curvature of given models
    scores     means, squares and products of losses, and sums per fold
    weights    the same, with clients weighted by their precision; only of ten clients or more

Clients that are lost once are left out of all later questions. The study goes on with what they have told: asked again, sums
without them would show what they told."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.evaluation import FEWEST
from coterie.comparison.exact.plan import FEW_ROWS, WIDE
from coterie.comparison.sites.classes import constants, one_model, side_by_side
from coterie.comparison.sites.conduct import Shape, variance_of
from coterie.comparison.sites.quadratic import Sums, Units, chosen_ridge
from coterie.comparison.sites.study import Study, squares
from coterie.errors import ConfigError, DataError
from coterie.evidence.gains import LEVEL
from coterie.evidence.mean_gains import MANY
from coterie.evidence.rule import Verdict, decide_scores
from coterie.evidence.summed import SummedScores, contribution, weighted_contribution
from coterie.exchange.messages import Ask, Context, Reply, SumBy, Up

_POWERS = 128  # of two, from 2⁻⁶⁴
_FIRST = -64


@dataclass(frozen=True)
class SummedStudy(Study):
    """The same questions as a `Study` in units in which all numbers are of about 1, and answers of which only sums count."""

    def sizes(self, ctx: Context) -> Up:
        """Per column, 1 at the power of two above the largest number; zeros of a client with too few rows."""
        largest = np.abs(np.column_stack([ctx.x.double().numpy(), ctx.y.double().numpy()])).max(0)
        power = np.clip(np.frexp(largest)[1] - _FIRST, 0, _POWERS - 1)
        found = np.zeros((len(largest), _POWERS))
        found[np.arange(len(largest)), power] = len(ctx.y) >= self.fewest(ctx.x.shape[1])
        return Up({"sizes": torch.from_numpy(found)})

    def counts(self, ctx: Context, scale: Tensor) -> Up:  # type: ignore[override]
        told = super().counts(_scaled(ctx, scale)).send
        V = np.column_stack([ctx.x.double().numpy(), ctx.y.double().numpy()]) / scale.numpy()
        enough = (told["count"] > 0).double()
        return Up(told | {"clients": enough, "squares": enough * torch.from_numpy((V**2).sum(0))})

    def moments(self, ctx: Context, scale: Tensor, centre: Tensor, shape: Tensor) -> Up:  # type: ignore[override]
        return super().moments(_scaled(ctx, scale), centre, shape)

    def forms(self, ctx: Context, scale: Tensor, **given: Tensor) -> Up:  # type: ignore[override]
        return super().forms(_scaled(ctx, scale), **given)

    def told(self, ctx: Context, scale: Tensor, centre: Tensor, shape: Tensor, common: Tensor, shared: Tensor) -> Up:
        """A client's own losses under constant, alone and together (`shared`: the first and the last, per fit)."""
        given = [shared.numpy()[:, 0], None, shared.numpy()[:, 1]]
        found = self._judged(_scaled(ctx, scale), centre, shape, int(common), given)
        return Up({k: torch.from_numpy(np.asarray(v, np.float64)) for k, v in found.items()})

    def scores(self, ctx: Context, **given: Tensor) -> Up:  # type: ignore[override]
        found: dict[str, Tensor] = {}
        for metric, (known, mean, products, folds) in self._parts(ctx, given).items():
            key = [self.seed, 5, int(ctx.key) & (2**63 - 1)]
            made = contribution(len(ctx.y), mean, products, folds, key)
            found |= {f"{metric} {k}": torch.from_numpy(np.asarray(known * v, np.float64)) for k, v in made.items()}
        return Up(found)

    def weights(self, ctx: Context, common_variance: Tensor, between: Tensor, **given: Tensor) -> Up:
        known, mean, products, _ = self._parts(ctx, given)[self.metric]
        made = weighted_contribution(len(ctx.y), mean, products, common_variance.numpy(), between.numpy())
        return Up({k: torch.from_numpy(known * v) for k, v in made.items()})

    @property
    def judged(self) -> tuple[str, ...]:
        """The metric, and the log loss beside accuracy."""
        return (self.metric,) if self.metric != "accuracy" else ("accuracy", "log_loss")

    def _parts(self, ctx: Context, given: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
        told = {k: v.numpy() for k, v in self.told(ctx, **given).send.items()}
        n = len(ctx.y)
        usable = n >= max(FEWEST, self.fewest(ctx.x.shape[1]))
        return {
            m: (float(usable and told[f"{m} known"] > 0), *(told[f"{m} {k}"] for k in ("mean", "products", "folds")))
            for m in self.judged
        }


def _scaled(ctx: Context, scale: Tensor) -> Context:
    """The client's rows in the agreed units."""
    return replace(ctx, x=ctx.x.double() / scale[:-1], y=ctx.y.double() / scale[-1])


@dataclass
class Summed:
    """The result: the rule's answer, and the models of the fit to all rows, about the agreed centre in the agreed units."""

    clients: int
    rows: int
    gone: Ints  # that did not answer a question
    shape: Shape
    scale: Floats
    variance: float  # of the target, in these units
    verdict: Verdict
    common: float  # the variance of a row's gain of together over alone
    shared: Floats  # constant and together per fit
    majority: int
    final: Floats  # constant and together (2, 1 + columns)
    settled: bool


def refuse_unfit(metric: str) -> None:
    """Refuse a metric for which sums over clients are not enough."""
    if metric == "auc":
        raise ConfigError(
            "The error of the area under the curve needs single clients' numbers, and secure sums hide them. Choose metric "
            '= "log_loss" or "accuracy", or leave out [secure].'
        )


class _Asker:
    """Puts additive questions to all clients that were never lost."""

    def __init__(self, n_clients: int) -> None:
        self.clients, self.gone = np.arange(n_clients), np.zeros(0, np.int64)

    def ask(self, phase: Any, down: dict[str, Any]) -> Generator[Ask, Reply, dict[str, Floats]]:
        given = {k: torch.as_tensor(np.asarray(v)) if not isinstance(v, Tensor) else v for k, v in down.items()}
        reply = yield Ask(phase, self.clients, given, reduce=SumBy(), optional=True)
        lost = np.union1d(reply.lost, reply.dropped)
        self.gone, self.clients = np.union1d(self.gone, lost), np.setdiff1d(self.clients, lost)
        return {name: t.double().numpy()[0] for name, t in reply.values.items()}


def conduct_summed(study: SummedStudy, n_clients: int, repeats: int) -> Generator[Ask, Reply, Summed]:
    """The server's side of the study."""
    crowd = _Asker(n_clients)
    told = yield from crowd.ask(study.sizes, {})
    scale = np.array([2.0 ** (_FIRST + np.flatnonzero(c > 0.5).max(initial=0)) for c in told["sizes"]])
    scale[-1] = 1.0 if study.classification else scale[-1]
    told = yield from crowd.ask(study.counts, {"scale": scale})
    rows = round(float(told["count"]))
    if told["clients"] < 1.5:
        raise DataError(
            f"A study needs 2 clients with {study.fewest(len(scale) - 1)} rows or more; fewer can take part. Find more "
            "clients, leave out columns, or lower the least number of rows."
        )
    mean = told["sums"] / rows
    spread = np.sqrt(np.maximum(told["squares"] / rows - mean**2, 0))
    unit = np.where(spread > 1e-7, spread, 1.0)
    unit[-1] = 1.0 if study.classification else unit[-1]
    centre = mean / unit
    centre[-1] = 0.0 if study.classification else centre[-1]
    wide = len(scale) - 1 > WIDE
    shape = Shape(centre, 1 if (wide or rows >= FEW_ROWS) and repeats <= 3 else repeats, 5 if wide else 10)
    common = {"scale": scale * unit} | shape.down()
    told = yield from crowd.ask(study.moments, common)
    moments = squares(told["moments"], len(scale) + 1)[None]
    fits = [_training(moments, shape, f) for f in range(shape.fits)]
    units = [Units.of(cells.sum(0), not study.classification) for cells in fits]
    constant, together, settled = yield from _models(study, crowd, common, fits, units)
    shared = np.stack([u.outside(np.stack([a, b])) for u, a, b in zip(units, constant, together, strict=True)])
    total = moments[0, 0].sum(0)
    majority = int(2 * total[0, -1] > total[0, 0])
    given = common | {"common": majority, "shared": shared[:-1]}
    scores = yield from _scores(study, crowd, given)
    proper = scores["log_loss"] if study.metric == "accuracy" else None
    if scores[study.metric].m < 2:
        raise DataError(f"At least 2 clients must have {FEWEST} rows to be scored by {study.metric}; fewer can be.")
    verdict = decide_scores(scores[study.metric], 1 - LEVEL, study.seed, proper)
    return Summed(
        scores[study.metric].m, rows, crowd.gone, shape, scale * unit, variance_of(moments), verdict,
        scores[study.metric].common(), shared[:-1], majority, shared[-1], settled,
    )  # fmt: skip


def _training(moments: Floats, shape: Shape, fit: int) -> Floats:
    """The sums (folds, …) of the training rows of a fit."""
    repeat, out = shape.place(fit)
    return np.asarray(moments[0, repeat, [k for k in range(shape.folds) if k != out]])


def _models(
    study: SummedStudy, crowd: _Asker, common: dict[str, Any], fits: list[Floats], units: list[Units]
) -> Generator[Ask, Reply, tuple[Floats, Floats, bool]]:
    """Standardised models (fits, 1 + columns): the constant, and that for all."""
    total = np.stack([cells.sum(0) for cells in fits])  # (fits, …)
    L, n = np.stack([u.columns for u in units]), total[:, 0, 0]
    if not study.classification:
        sums = [Sums.of(cells[None], u) for cells, u in zip(fits, units, strict=True)]
        constant = np.stack([np.eye(L.shape[1])[0] * s.c.sum((0, 1))[0] for s in sums]) / np.maximum(n, 1)[:, None]
        return constant, np.stack([chosen_ridge(s)[0] for s in sums]), True
    constant = constants(n, total[:, 0, -1], L.shape[1])

    def asked(down: Any, each: dict[str, Floats]) -> Any:
        told = yield from crowd.ask(study.forms, common | down | {k: v[0] for k, v in each.items()})
        return {k: v[None] for k, v in told.items()}

    gram = (L @ total[:, :-1, :-1] @ L.swapaxes(1, 2))[None]
    ((together, settled),) = yield from side_by_side(asked, 1, L, [one_model(constant, gram)])
    return constant, together, settled


def _scores(study: SummedStudy, crowd: _Asker, given: dict[str, Any]) -> Generator[Ask, Reply, dict[str, SummedScores]]:
    told = yield from crowd.ask(study.scores, given)
    found = {
        m: SummedScores.of(m, {k.removeprefix(f"{m} "): v for k, v in told.items() if k.startswith(f"{m} ")})
        for m in study.judged
    }
    made = found[study.metric]
    if made.m >= MANY:
        parts = [replace(made, part=p) for p in range(1 + made.repeats)]
        asked = {
            "common_variance": np.array([p.common() for p in parts]),
            "between": np.array([p.between() for p in parts]),
        }
        weighted = yield from crowd.ask(study.weights, given | asked)
        found[study.metric] = replace(made, weighted=weighted["weighted"])
    return found
