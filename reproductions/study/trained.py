"""Small federations of networks whose truth is known, and what `compare` makes of them when it has to train."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import coterie as ct
from coterie.comparison.compare import Comparison, compare
from coterie.evidence.gains import Floats

METHODS = ("local", "fedavg", "finetuned")
SPLITS = 3
COLUMNS, HIDDEN = 4, 8
FRESH = 200  # rows per client, from units that no table holds, that stand for the truth


@dataclass(frozen=True)
class Trained:
    """Two classes whose log-odds are a small network of four columns; a quarter of the rows is held out.

    ``truth``: "identical" (one network), "noise" (coin flips), "unrelated" (a network per client), "skewed" (one network,
    and shares of the classes that differ between clients), "repeated" (as unrelated, every unit measured four times)."""

    truth: str
    m: int = 8
    rows: int = 60

    @property
    def name(self) -> str:
        return f"{self.truth} {self.m} clients, {self.rows} rows"


def trained_worlds() -> list[Trained]:
    found = [Trained(truth) for truth in ("noise", "identical", "unrelated", "skewed", "repeated")]
    return [*found, Trained("identical", m=16), Trained("unrelated", m=16)]


def _network(rng: np.random.Generator) -> tuple[Floats, Floats]:
    return rng.normal(size=(COLUMNS, 6)), 4 * rng.normal(size=6) / np.sqrt(6)


def _draw(world: Trained, network: tuple[Floats, Floats], tilt: float, rows: int, rng: np.random.Generator) -> Any:
    """Rows of one client: a quarter as many units, each measured four times, where units are repeated."""
    times = 4 if world.truth == "repeated" else 1
    x = np.repeat(rng.normal(size=(-(-rows // times), COLUMNS)), times, axis=0)[:rows]
    score = 0.0 * x[:, 0] if world.truth == "noise" else np.tanh(x @ network[0]) @ network[1] + tilt
    chance = np.repeat(rng.random(-(-rows // times)), times)[:rows]
    x = x + (0.1 * rng.normal(size=x.shape) if times > 1 else 0.0)
    return x.astype(np.float32), (chance < 1 / (1 + np.exp(-score))).astype(int)


def make(world: Trained, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The clients' rows, and fresh rows of the same clients."""
    rng = np.random.default_rng([seed, 78])
    shared = _network(rng)
    here, fresh = {}, {}
    for i in range(world.m):
        own = _network(rng) if world.truth in ("unrelated", "repeated") else shared
        tilt = 2.0 * rng.normal() if world.truth == "skewed" else 0.0
        here[f"c{i}"] = _draw(world, own, tilt, world.rows, rng)
        fresh[f"c{i}"] = _draw(world, own, tilt, FRESH, rng)
    return here, fresh


def true_gains(found: Comparison, fresh: dict[str, Any]) -> dict[str, float]:
    """Per method: what its networks gain over `local` on fresh rows, mean over clients and splits, in log loss or in the
    share of right classes."""
    scores = {}
    for name, results in found.results.items():
        scores[name] = np.mean([_score(r.evaluation, fresh, found.metric) for r in results])
    return {name: float(s - scores["local"]) for name, s in scores.items()}


def _score(live: Any, fresh: dict[str, Any], metric: str) -> float:
    models = live.personal(live.everyone())
    each = []
    for i, client in enumerate(live.federation.clients):
        x, y = fresh[str(client)]
        with torch.no_grad():
            out = live.task.outputs({k: t[i] for k, t in models.items()}, torch.from_numpy(x))
        out = torch.log_softmax(out, 1).numpy() if out.shape[-1] > 1 else None
        assert out is not None
        each.append((out.argmax(1) == y).mean() if metric == "accuracy" else out[np.arange(len(y)), y].mean())
    return float(np.mean(each))


def simulate_trained(world: Trained, seed: int, metric: str = "log_loss", rounds: int | None = 10) -> dict[str, Any]:
    """Compare on one federation, and set the answer against the truth."""
    here, fresh = make(world, seed)

    def split(number: int) -> ct.Federation:
        return ct.Federation.from_arrays(here, test_fraction=0.25, seed=number, one_class="allow")

    task = ct.Task(ct.models.mlp(COLUMNS, HIDDEN, 2), "cross_entropy", metric)
    found = compare(split, task, METHODS, rounds=rounds, seeds=SPLITS, metric=metric)
    judged, real = found.judgement, true_gains(found, fresh)
    assert judged is not None
    return {
        "world": world.name,
        "seed": seed,
        "advice": judged.recommendation,
        "sure": judged.sure,
        "method": judged.method,
        "gain": {k: round(v, 5) for k, v in judged.mean.items()},
        "error": {k: float(f"{v:.3g}") for k, v in judged.error.items()},
        "needed": round(judged.needed, 3),
        "learnable": list(judged.learnable),
        "real": {k: round(v, 5) for k, v in real.items()},
    }
