"""Do intervals of the deployed model cover? Fresh worlds, and real tables with rows and whole clients held out.

Worlds: clients of unequal sizes and noise, heavy tails, skewed targets, noise that grows with the target, few clients,
tiny clients. Coverage of 90 % intervals is counted on fresh rows of known clients (of small and large ones apart) and on
rows of clients never seen. For classes the question is whether the share of right predictions lies between the means of
low and high."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from coterie.comparison.deploy.coding import Coding
from coterie.comparison.deploy.fitted import fitted
from coterie.data.coded_table import Floats, Ints, Table, make_table
from reproductions.study.sources import MORE, SOURCES, Source, load

LEVEL = 0.9
_NEW = 12  # clients never seen
_FRESH = 40  # fresh rows per client
_SMALL, _LARGE = 15, 100  # rows
_TABLES = (
    "sleepstudy",
    "Gasoline",
    "dietox",
    "Hedonic",
    "Males",
    "Crime",
    "Caschool",
    "heart",
    "elections",
    "rain",
    "VietNamI",
)


@dataclass(frozen=True)
class World:
    """Clients with slopes of their own; ``sizes`` are drawn from a list, ``noise`` names the law of the errors."""

    name: str
    clients: int
    sizes: tuple[int, ...]
    noise: str = "normal"
    spread: float = 0.0  # of the clients' noise, on the log scale
    classes: bool = False


WORLDS = (
    World("equal", 30, (40,)),
    World("unequal noise and sizes", 30, (8, 20, 60, 200), spread=0.6),
    World("heavy tails", 30, (15, 60), "student"),
    World("skewed", 30, (15, 60), "exponential"),
    World("noise grows with the target", 30, (30, 100), "growing"),
    World("few clients", 6, (15, 60), spread=0.4),
    World("tiny clients", 80, (4, 6, 10), spread=0.4),
    World("classes", 30, (20, 60), classes=True),
    World("classes, few clients", 8, (30, 100), classes=True),
)


def tasks(worlds: int, first_seed: int) -> list[tuple[str, Callable[[], Any]]]:
    found: list[tuple[str, Callable[[], Any]]] = [
        (f"{w.name}/{s}", partial(simulate, w, s)) for s in range(first_seed, first_seed + worlds) for w in WORLDS
    ]
    return found + [(s.name, partial(held_out, s, first_seed)) for s in (*SOURCES, *MORE) if s.name in _TABLES]


def simulate(world: World, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 41])
    m = world.clients + _NEW
    slope = rng.normal(size=(m, 3)) * 0.7 + np.array([0.0, 1.0, -0.5])
    scale = np.exp(world.spread * rng.normal(size=m))
    sizes = rng.choice(world.sizes, world.clients)

    def rows(owner: Ints) -> tuple[Floats, np.ndarray]:
        X = rng.normal(size=(len(owner), 2))
        eta = slope[owner, 0] + (slope[owner, 1:] * X).sum(1)
        draw: Any = {"normal": rng.normal, "growing": rng.normal, "student": partial(rng.standard_t, 3)}.get(
            world.noise
        )
        error = scale[owner] * (rng.exponential(size=len(owner)) - 1 if draw is None else draw(size=len(owner)))
        if world.noise == "growing":
            error = error * np.exp(0.4 * np.clip(eta, -4, 4))
        return X, (eta + rng.logistic(size=len(owner)) > 0) * 1.0 if world.classes else eta + error

    owner = np.repeat(np.arange(world.clients), sizes)
    X, y = rows(owner)
    table = make_table(X, y, owner, "classification" if world.classes else "regression", None)
    known = np.repeat(np.arange(world.clients), _FRESH)
    new = np.repeat(np.arange(world.clients, m), _FRESH)
    return _measured(table, (*rows(known), known), (*rows(new), new), seed)


def held_out(source: Source, seed: int) -> dict[str, Any]:
    """A fifth of the clients, and a fifth of the others' rows, were never seen."""
    table = load(source)
    rng = np.random.default_rng([seed, 43])
    away = np.isin(table.owner, rng.choice(table.n_clients, max(table.n_clients // 5, 1), replace=False))
    test = ~away & (rng.random(len(away)) < 0.2)
    keep = ~away & ~test
    present, owner = np.unique(table.owner[keep], return_inverse=True)
    train = replace(table, X=table.X[keep], y=table.y[keep], owner=owner, clients=table.clients[present])
    place = pd.Index(present).get_indexer(pd.Index(table.owner))
    test &= place >= 0
    known, new = ((table.X[at], table.y[at], place[at]) for at in (test, away))
    return _measured(train, known, new, seed)


def _measured(table: Table, known: Any, new: Any, seed: int) -> dict[str, Any]:
    model, taken = fitted(table, Coding(None, table.names, "float64"), "client", "target", seed=seed)
    found: dict[str, Any] = {"clients": table.n_clients, "rows": len(table.y), "loss": round(taken.loss, 4)}
    X, y, owner = known
    sizes = table.sizes[owner]
    for name, at in (("all", sizes > 0), ("small", sizes <= _SMALL), ("large", sizes >= _LARGE)):
        if at.any():
            found[name] = _covered(model, X[at], y[at], owner[at])
    return found | {"new": _covered(model, new[0], new[1], np.full(len(new[1]), -1))}


def _covered(model: Any, X: Floats, y: Floats, owner: Ints) -> dict[str, float]:
    made = model.stack.outputs(X, owner)
    if model.classes is None:
        low, high = model.intervals.numbers(made[:, 0], owner, LEVEL)
        inside, width = (low <= y) & (y <= high), (high - low).mean() / y.std()
        return {"coverage": round(float(inside.mean()), 4), "width": round(float(width), 3)}
    low, high = model.intervals.chances(made, LEVEL)
    right = made.argmax(1) == y
    return {
        "right": round(float(right.mean()), 4),
        "low": round(float(low.mean()), 4),
        "high": round(float(high.mean()), 4),
    }


def summary(results: dict[str, Any]) -> pd.DataFrame:
    """A row per world and table: mean coverage over seeds with its standard error; for classes the shares and bounds."""
    rows: dict[str, dict[str, str]] = {}
    names = dict.fromkeys(name.rpartition("/")[0] or name for name in results)
    for name in names:
        some = [r for key, r in results.items() if (key.rpartition("/")[0] or key) == name]
        for part in ("all", "small", "large", "new"):
            found = [r[part] for r in some if part in r]
            rows.setdefault(name, {})[part] = _cell(found)
    return pd.DataFrame(rows).T


def _cell(found: list[dict[str, float]]) -> str:
    if not found:
        return ""
    if "right" in found[0]:
        right, low, high = (100 * np.mean([f[k] for f in found]) for k in ("right", "low", "high"))
        return f"{right:.1f} in {low:.1f} to {high:.1f}"
    values = 100 * np.array([f["coverage"] for f in found])
    error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{values.mean():.1f}{error}"
