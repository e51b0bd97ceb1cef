"""Null worlds of real tables: repeated units, rows in time, heavy tails, unequal noise, and clients of 5 to 2,000 rows.

In "noise" no column matters, so that anything learned is a false claim. In "unrelated" clients have nothing in common: to
claim that learning together helps is false wherever it does not help on fresh rows. Fresh rows are of new units, or come
after the last row."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.decision import against_continuum
from coterie.comparison.exact.evaluation import measure
from coterie.comparison.exact.predictor import learn_all
from coterie.data.coded_table import Table, make_table
from coterie.evidence.scores import METHODS
from reproductions.study.worlds import all_true_losses

FRESH = 160  # rows per client after those of the table; the last TRUTH of them stand for the truth
TRUTH, AHEAD = 150, 20  # in time: the first AHEAD of them
UNIT_ROWS = 5
RHO = 0.9  # of errors and columns from row to row, where rows follow in time
_COLUMNS = 3


@dataclass(frozen=True)
class Dependent:
    """``rows``: "units", "time", "heavy", "unequal" or "sizes". ``told`` is whether the unit or the time is named."""

    truth: str
    rows: str
    m: int = 20
    kind: str = "regression"
    told: bool = True

    @property
    def name(self) -> str:
        return f"{self.truth} {self.rows} {self.kind[0]}{self.m}{'' if self.told else ' untold'}"


def dependent_worlds() -> list[Dependent]:
    found = [
        Dependent(truth, rows, m)
        for truth in ("noise", "unrelated")
        for rows in ("units", "time", "heavy", "unequal", "sizes")
        for m in (5, 20)
    ]
    found += [Dependent("noise", rows, 20, "classification") for rows in ("units", "time")]
    return [*found, *(Dependent("noise", rows, 20, told=False) for rows in ("units", "time"))]


def _series(owner: Ints, width: int, rng: np.random.Generator) -> Floats:
    """Stationary series of the first order, one per client and column."""
    fresh = rng.normal(size=(len(owner), width))
    out = fresh.copy()
    for i in range(1, len(owner)):
        if owner[i] == owner[i - 1]:
            out[i] = RHO * out[i - 1] + np.sqrt(1 - RHO**2) * fresh[i]
    return out


def _drawn(world: Dependent, owner: Ints, coef: Floats, scale: Floats, rng: np.random.Generator) -> tuple[Any, ...]:
    """Columns, target and unit of rows that are sorted by client."""
    n = len(owner)
    unit = np.arange(n)
    if world.rows == "units":
        start = np.append(True, owner[1:] != owner[:-1])
        place = np.arange(n) - np.maximum.accumulate(np.where(start, np.arange(n), 0))
        unit = np.cumsum(place % UNIT_ROWS == 0) - 1
        both = rng.normal(size=(unit.max() + 1, _COLUMNS + 1))[unit]
        X, error = both[:, 1:] + 0.2 * rng.normal(size=(n, _COLUMNS)), both[:, 0] + 0.3 * rng.normal(size=n)
    elif world.rows == "time":
        both = _series(owner, _COLUMNS + 1, rng)
        X, error = both[:, 1:], both[:, 0]
    else:
        X = rng.normal(size=(n, _COLUMNS))
        error = rng.standard_t(2.5, n) if world.rows == "heavy" else scale[owner] * rng.normal(size=n)
    eta = coef[owner, 0] + (X * coef[owner, 1:]).sum(1) + error
    return X, (eta > 0).astype(float) if world.kind == "classification" else eta, unit


def make(world: Dependent, seed: int) -> tuple[Table, Table]:
    rng = np.random.default_rng([seed, 79])
    coef = np.zeros((world.m, 1 + _COLUMNS)) if world.truth == "noise" else rng.normal(size=(world.m, 1 + _COLUMNS))
    low, high = (5, 2000) if world.rows == "sizes" else (20, 60)
    sizes = np.exp(rng.uniform(np.log(low), np.log(high), world.m)).astype(int)
    scale = np.exp(rng.normal(size=world.m)) if world.rows == "unequal" else np.ones(world.m)
    if world.rows == "time":  # one series per client; the truth comes after the last row
        sizes = np.full(world.m, 40)
    owner = np.repeat(np.arange(world.m), sizes + FRESH)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes + FRESH) - (sizes + FRESH), sizes + FRESH)
    X, y, unit = _drawn(world, owner, coef, scale, rng)
    seen = place < sizes[owner]
    after = place - sizes[owner]
    later = (after >= 0) & (after < AHEAD) if world.rows == "time" else after >= FRESH - TRUTH
    tables = [make_table(X[at], y[at], owner[at], world.kind, None) for at in (seen, later)]
    if world.told and world.rows == "units":
        tables[0] = replace(tables[0], unit=unit[seen])
    if world.told and world.rows == "time":
        order = np.argsort(place[seen], kind="stable")
        tables[0] = replace(tables[0], time=place[seen].astype(float)).rows(order)
    return tables[0], tables[1]


def simulate_dependent(world: Dependent, seed: int) -> dict[str, Any]:
    """The rule's answer by the first metric, and whether it claims what fresh rows deny."""
    table, fresh = make(world, seed)
    metric = "mse" if table.classes is None else "log_loss"
    found = measure(table, metric, seed=seed)
    predictors = learn_all(table, seed)
    verdict, _ = against_continuum(table, found, metric, predictors, alpha=0.05, seed=seed)
    mean = dict(zip(METHODS, np.nanmean(all_true_losses(fresh, predictors)[metric], 1), strict=True))
    advice, claimed = verdict.recommendation, verdict.shown in ("clear", "borderline")
    if world.truth == "noise":
        wrong = verdict.shown != "nothing"
    else:
        wrong = claimed and advice != "alone" and bool(mean[advice] >= mean["alone"])
    return {
        "advice": advice,
        "sure": verdict.shown,
        "wrong": wrong,
        "together": claimed and advice != "alone",
        "losses": {name: round(float(v), 4) for name, v in mean.items()},
    }


def tabulate_dependent(records: dict[str, Any]) -> str:
    """False claims per world, with the limits of their share (Wilson, 95 %)."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for key, record in records.items():
        cells.setdefault(key.split("/")[0], []).append(record)
    lines = [f"{'world':28s} worlds  false claims"]
    for name, some in cells.items():
        n, k = len(some), sum(r["wrong"] for r in some)
        low, high = wilson(k, n)
        lines.append(f"{name:28s} {n:6d}  {k:3d} = {100 * k / n:4.1f} % ({100 * low:.1f} to {100 * high:.1f} %)")
    told = [r for name, some in cells.items() if "untold" not in name for r in some]
    k, n = sum(r["wrong"] for r in told), len(told)
    low, high = wilson(k, n)
    return "\n".join(
        [
            *lines,
            f"All, where units and times are told: {k} of {n} = {100 * k / n:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)",
        ]
    )


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    centre, half = k / n + z**2 / (2 * n), z * np.sqrt(k / n * (1 - k / n) / n + z**2 / (4 * n**2))
    return float((centre - half) / (1 + z**2 / n)), float((centre + half) / (1 + z**2 / n))
