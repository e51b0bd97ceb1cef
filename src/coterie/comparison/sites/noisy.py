"""The decision where every row (or unit of rows) is protected: each site tells one noisy release, and nothing else.

Columns and target have public bounds; values beyond them are cut off. A site tells Σ v vᵀ over v = (1, x, y) of each of five
disjoint folds in one Gaussian release, which serves every candidate and every fold (`noisy_fit`). Two classes are judged by
the squared error of a linear model of 0 and 1: each step of a logistic model would need a release of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from coterie.comparison.exact.candidates.rows import Floats
from coterie.comparison.exact.decision import Decision
from coterie.comparison.from_decision import comparison_of
from coterie.comparison.result import Comparison
from coterie.comparison.sites.noisy_fit import Told, decided
from coterie.comparison.sites.result import all_rows
from coterie.data.federation import Federation
from coterie.data.provenance import undeclared
from coterie.engines.base import Engine, rows_env
from coterie.errors import ConfigError, DataError
from coterie.exchange.messages import Ask, Context, Up
from coterie.privacy.account import GRADIENTS, MOMENTS, account_of_rows, plan_of
from coterie.privacy.mechanisms.moments import UnitMoments
from coterie.privacy.plan import Line
from coterie.privacy.receipt import Receipt
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import foreign, patched

FOLDS = 5
_LINE = Line(MOMENTS, 1.0)
MOST_COLUMNS = 60
_UNSCALED = (
    "unaccounted: columns were prepared by statistics of the rows; read the table with ranges=, categories= and kind= "
    "declared public, or give arrays in public units"
)


@dataclass(frozen=True)
class RowStudy:
    """What every site knows before it answers: the budget, and the public bounds of the target. Columns lie in [−1, 1].

    With `coded` the last column says whose a row is. `names` are those of the clients."""

    privacy: Privacy
    target: tuple[float, float]
    columns: int
    coded: bool
    names: tuple[str, ...]
    seed: int = 0
    doubts: tuple[str, ...] = ()
    receipts: dict[str, Receipt] = field(default_factory=dict, compare=False)

    def client(self, ctx: Context) -> dict[str, Any]:
        """Clients keep nothing between questions."""
        return {}

    @property
    def release(self) -> str:
        """Its name in a ledger."""
        return MOMENTS if self.privacy.unit == "row" else f"{MOMENTS}, per {self.privacy.unit}"

    def mechanism(self, z: float) -> UnitMoments:
        p = self.privacy
        return UnitMoments(self.release, FOLDS, self.columns + 2, p.clip, z, p.rows, p.adjacency)

    def moments(self, ctx: Context) -> Up:
        """The one release of a site, booked in the site's own ledger."""
        x, y = ctx.x.double().numpy(), ctx.y.double().numpy()
        unit = x[:, -1].astype(np.int64) if self.coded else np.arange(len(y))
        low, high = self.target
        rows = np.column_stack([np.ones(len(y)), x[:, : self.columns], (2 * y - low - high) / (high - low)])
        rows = np.where(np.isfinite(rows).all(1, keepdims=True), np.clip(rows, -1, 1), np.nan)
        name = self.names[int(ctx.index)]
        line = replace(_LINE, name=self.release)
        known = (self.release, GRADIENTS) if self.privacy.unit == "row" else (self.release,)
        account = account_of_rows(self.privacy, name, [line], self.seed * 1_000_003 + int(ctx.index), known)
        for reason in self.doubts:
            account.ledger.void(reason)
        made = self.mechanism(account.noise_multiplier(self.release))
        found = account.keep(made(rows, unit, account.noise, account.book))
        about = max(1, round(float(rows_told(found.sum(0), self.privacy.clip)) / self.privacy.rows))
        self.receipts[name] = account.closed(
            about, {"ranges": "public", "folds": "fixed in advance"}, guarantee="central"
        )
        return Up({"moments": torch.from_numpy(found)})


def across_sites_privately(
    federation: Federation, privacy: Privacy, seed: int, engine: Engine, target: tuple[float, float] | None
) -> Comparison:
    """The comparison of clients whose rows are protected."""
    target = _target(federation, target)
    fed, doubts = all_rows(federation), []
    if federation.columns is not None and federation.labels.get("scaling") != "ranges":
        doubts.append(_UNSCALED)
    doubts += undeclared(federation, groups=False)
    if type(federation) is not Federation or patched(federation):
        doubts.append("unaccounted: the federation's class is not this package's")
    if foreign(engine):
        doubts.append("unaccounted: the engine is not this package's")
    columns, coded = fed.n_features, privacy.unit not in ("row", "client")
    if coded:
        fed = _with_units(fed, privacy.unit)
    study = RowStudy(privacy, target, columns, coded, tuple(map(str, fed.clients)), seed, tuple(doubts))

    with threadpool_limits(1, "blas"):
        reply = engine.run(Ask(study.moments, np.arange(len(fed)), {}, {}, optional=True), rows_env(fed, seed))
        order = np.argsort(reply.clients)
        here = reply.clients[order]
        if len(here) < 2:
            raise DataError(f"A study needs 2 clients or more; {len(here)} answered. Find more clients.")
        plan = plan_of(privacy, [_LINE])
        assert plan is not None
        sigma = study.mechanism(plan.noise_multiplier(MOMENTS)).sigma
        told = Told(reply.values["moments"].double().numpy()[order], sigma, target, seed)
        names_here = [study.names[i] for i in here]
        decision = decided(told, names_here, federation.columns or tuple(f"x{j}" for j in range(columns)))
    gone = sorted(set(study.names) - set(names_here))
    notes = (f"Left out because they did not answer: {', '.join(gone)}.",) if gone else ()
    sizes = np.maximum(rows_told(told.moments.sum(1), privacy.clip), 1.0)
    return _shown(replace(decision, warnings=(*decision.warnings, *notes)), sizes, study, seed)


def rows_told(total: Floats, clip: float) -> Floats:
    """About how many rows these noisy sums (…, q, q) are of: a row adds at most 1 to the first entry and c² to the trace."""
    return np.asarray(np.maximum(total[..., 0, 0], np.trace(total, axis1=-2, axis2=-1) / clip**2))


def _shown(decision: Decision, sizes: Floats, study: RowStudy, seed: int) -> Comparison:
    p = study.privacy
    about = {
        "kind": "regression", "classes": None, "clients": len(sizes), "rows": int(sizes.sum()), "features": study.columns,
        "columns": list(decision.table.names), "seeds": [seed], "notes": None, "across": "sites", "least": None,
        "privacy": {"unit": p.protects, "epsilon": p.epsilon, "delta": p.delta},
    }  # fmt: skip
    overview = pd.DataFrame({"samples": sizes.round().astype(np.int64)}, index=decision.table.clients)
    return replace(comparison_of(decision, about, overview), receipts=dict(study.receipts))


def _target(federation: Federation, given: tuple[float, float] | None) -> tuple[float, float]:
    if federation.n_features > MOST_COLUMNS:
        raise DataError(
            f"Where rows are protected, at most {MOST_COLUMNS} columns are compared; there are {federation.n_features}. "
            "Name fewer: noise grows with their number."
        )
    if federation.kind == "classification" and federation.n_outputs == 2:
        return 0.0, 1.0
    if federation.kind != "regression" or federation.x.dim() > 2:
        raise DataError(
            "Where rows are protected, tables with a number or two classes to predict are compared; this target is another. "
            "Choose another target, or compare without a budget."
        )
    if given is None or not given[0] < given[1]:
        raise ConfigError(
            f"Where rows are protected, the target needs public bounds, low < high; got {given}.",
            python="Pass target_range=(low, high).",
            cli="Give them with --target-range LOW,HIGH.",
        )
    return given


def _with_units(fed: Federation, unit: str) -> Federation:
    """The same clients, with the unit of every row as a last column."""
    if "unit" not in fed.beside or fed.labels.get("unit", unit) != unit:
        raise ConfigError(
            f"The budget protects all rows of one {unit!r}, and the table was read without such units.",
            python=f"Read it with unit={unit!r}.",
            cli=f"Name the column with --unit {unit}.",
        )
    codes = torch.from_numpy(np.asarray(fed.beside["unit"], np.float64))[:, None]
    return replace(fed, x=torch.cat([fed.x.double(), codes], 1), columns=None)
