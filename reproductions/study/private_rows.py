"""How often is the decision right where every row is protected? Worlds in which a claim can be checked by fresh rows.

Null worlds: nothing can be learned (noise), or every client's slopes are its own, with common or own spreads and centres of
columns (different, shifted). A claim is checked against what the client would do alone, with its clear rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.comparison.exact.candidates.axes import Path
from coterie.comparison.exact.candidates.path import ALONE_LINEAR, fit_units
from coterie.comparison.sites.noisy_fit import Told, decided
from coterie.evidence.scores import WAYS
from coterie.privacy import SimulationNoise, noise_multiplier
from coterie.privacy.mechanisms.moments import UnitMoments
from reproductions.study.dependent import wilson

NULL = ("noise", "different", "shifted")
KINDS = (*NULL, "same", "mixed", "groups")
SIZES = ((4, 250), (20, 200), (1000, 50))
EPSILON, DELTA, COLUMNS, FRESH = (1.0, 3.0, 10.0, 1000.0), 1e-5, 4, 500
_WIDE, _TALL = 4.0, 5.0  # public bounds of columns and target: ± so much


@dataclass(frozen=True)
class RowWorld:
    kind: str
    clients: int
    rows: int
    epsilon: float

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.clients} x {self.rows}, epsilon {self.epsilon:g}"


def row_worlds() -> list[RowWorld]:
    return [RowWorld(k, m, n, e) for m, n in SIZES for k in KINDS for e in EPSILON]


def draw(world: RowWorld, rng: np.random.Generator) -> tuple[Any, ...]:
    """Rows to learn from, and fresh ones: columns and target in public units, (clients, rows, …)."""
    m, p, kind = world.clients, COLUMNS, world.kind
    common, own = rng.normal(size=p), rng.normal(size=(m, p))
    common /= np.linalg.norm(common)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    slope = {
        "noise": np.zeros((m, p)), "same": np.tile(common, (m, 1)), "mixed": common + 0.5 * own,
        "groups": common * np.where(np.arange(m) % 2, 1.0, -1.0)[:, None],
    }.get(kind, own)  # fmt: skip
    level = 0.5 * rng.normal(size=(m, 1)) if kind == "mixed" else np.zeros((m, 1))
    scale = rng.uniform(0.4, 1.6, (m, 1, p)) if kind == "shifted" else np.ones((m, 1, p))
    centre = 0.5 * rng.normal(size=(m, 1, p)) if kind == "shifted" else np.zeros((m, 1, p))
    x = centre + scale * rng.normal(size=(m, world.rows + FRESH, p))
    y = level + np.einsum("mnp,mp->mn", x, slope) + rng.normal(size=x.shape[:2])
    x, y = np.clip(x / _WIDE, -1, 1), np.clip(y / _TALL, -1, 1)
    return x[:, : world.rows], y[:, : world.rows], x[:, world.rows :], y[:, world.rows :]


def simulate_rows(world: RowWorld, seed: int) -> dict[str, Any]:
    """The answer, its interval, and the gain of the methods on fresh rows over learning alone from clear rows."""
    x, y, fresh, target = draw(world, np.random.default_rng([seed, 31]))
    m, n, p = x.shape
    mechanism = UnitMoments("moments", 5, p + 2, 1.0, noise_multiplier(world.epsilon, DELTA, 1))
    rows, noise = np.concatenate([np.ones((m, n, 1)), x, y[..., None]], 2), SimulationNoise([seed, 32])
    told = np.stack([mechanism(one, np.arange(n), noise).value for one in rows])
    decision = decided(Told(told, mechanism.sigma, (-1.0, 1.0), seed), list(map(str, range(m))), list("abcd"))
    path = Path(ALONE_LINEAR, per_row=False, average=True)
    alone, _ = fit_units(x.reshape(-1, p), y.reshape(-1, 1), np.repeat(np.arange(m), n), m, path, False)
    models = {"alone": alone[..., 0]}
    models |= {w: decision.predictors[w].coefficients().to_numpy() for w in WAYS[1:]}
    loss = {
        w: float(((target - b[:, :1] - np.einsum("mnp,mp->mn", fresh, b[:, 1:])) ** 2).mean())
        for w, b in models.items()
    }
    return {
        "answer": decision.recommendation, "sure": decision.sure, "method": decision.method,
        "too small": bool(decision.doubts), "low": round(decision.interval[0], 4), "high": round(decision.interval[1], 4),
        "true": {w: round(1 - loss[w] / loss["alone"], 4) for w in WAYS[1:]},
    }  # fmt: skip


def _wrong(record: dict[str, Any]) -> bool:
    """A clear claim that fresh rows deny: of a gain where there is none, or of none where a method gains one per cent."""
    if record["sure"] != "clear":
        return False
    if record["answer"] == "alone":
        return bool(max(record["true"].values()) > 0.01)
    return bool(record["true"][record["method"]] <= 0)


def tabulate_rows(records: dict[str, Any]) -> str:
    lines = [f"{'world':38s} worlds  together is clear  alone is clear  borderline  too small  wrong  interval holds"]
    cells: dict[str, list[dict[str, Any]]] = {}
    for key, record in records.items():
        cells.setdefault(key.split("/")[0], []).append(record)
    wrong, claims, held, known = 0, 0, 0, 0
    null = [0, 0]
    for name, some in cells.items():
        clear = [r for r in some if r["sure"] == "clear"]
        shared = sum(r["answer"] != "alone" for r in clear)
        told = [r for r in some if not r["too small"] and r["sure"] != "nothing"]
        inside = sum(r["low"] <= r["true"][r["method"]] <= r["high"] for r in told)
        bad = sum(map(_wrong, some))
        wrong, claims, held, known = wrong + bad, claims + len(clear), held + inside, known + len(told)
        if name.split(",")[0] in NULL:
            null = [null[0] + sum(_wrong(r) for r in clear if r["answer"] != "alone"), null[1] + len(some)]
        lines.append(
            f"{name:38s} {len(some):6d} {shared:18d} {len(clear) - shared:15d} "
            f"{sum(r['sure'] == 'borderline' for r in some):11d} {sum(r['too small'] for r in some):10d} {bad:6d} "
            f"{inside:8d} of {len(told)}"
        )
    totals = {"False claims in null worlds": null, "Wrong clear answers": [wrong, claims]}
    for what, (hit, of) in (totals | {"Intervals that hold the true gain": [held, known]}).items():
        low, high = wilson(hit, of) if of else (0.0, 1.0)
        lines.append(f"{what}: {hit} of {of} ({100 * low:.1f} to {100 * high:.1f} %)")
    return "\n".join(lines)
