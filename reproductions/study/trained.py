"""Small federations of networks whose truth is known, and what `compare` makes of them when it has to train."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
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
    metric: str
    m: int = 8
    rows: int = 60

    @property
    def name(self) -> str:
        return f"{self.truth} {self.m} × {self.rows}"


def trained_worlds() -> list[Trained]:
    """Seven kinds of federations, each judged by log loss or by accuracy."""
    kinds = [*((truth, 8, 60) for truth in ("noise", "identical", "unrelated", "skewed", "repeated"))]
    kinds += [("identical", 16, 40), ("unrelated", 16, 40)]
    return [Trained(truth, metric, m, rows) for truth, m, rows in kinds for metric in ("log_loss", "accuracy")]


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
    """Per method: what its networks gain over `local` on fresh rows, mean over splits and clients."""
    scores = {
        name: np.mean([_score(r.evaluation, fresh, found.metric) for r in results])
        for name, results in found.results.items()
    }
    return {name: float(s - scores["local"]) for name, s in scores.items()}


def _score(live: Any, fresh: dict[str, Any], metric: str) -> float:
    """Accuracy, or minus the log loss, of every client's own network on its fresh rows; mean over clients."""
    models = live.personal(live.everyone())
    each = []
    for i, client in enumerate(live.federation.clients):
        x, y = fresh[str(client)]
        with torch.no_grad():
            out = live.task.outputs({k: t[i] for k, t in models.items()}, torch.from_numpy(x))
        chances = torch.log_softmax(out, 1).numpy()
        each.append((chances.argmax(1) == y).mean() if metric == "accuracy" else chances[np.arange(len(y)), y].mean())
    return float(np.mean(each))


def simulate_trained(world: Trained, seed: int) -> dict[str, Any]:
    """Compare on one federation, and set the answer against the truth."""
    here, fresh = make(world, seed)

    def split(number: int) -> ct.Federation:
        return ct.Federation.from_arrays(here, test_fraction=0.25, seed=number, one_class="allow")

    task = ct.Task(ct.models.mlp(COLUMNS, HIDDEN, 2), "cross_entropy", world.metric)
    found = compare(split, task, METHODS, seeds=SPLITS, metric=world.metric)
    judged, real = found.judgement, true_gains(found, fresh)
    assert judged is not None
    record = {
        "world": world.name,
        "seed": seed,
        "metric": world.metric,
        "advice": judged.recommendation,
        "sure": judged.sure,
        "method": judged.method,
        "gain": {k: round(g.mean, 5) for k, g in judged.over_alone.items()},
        "error": {k: float(f"{g.gate_se():.3g}") for k, g in judged.over_alone.items()},
        "real": {k: round(v, 5) for k, v in real.items()},
    }
    return record | {"wrong": _wrong(world, record)}


def _wrong(world: Trained, record: dict[str, Any]) -> bool:
    """Anything found in noise; collaboration advised that does not gain; alone called clear though a rival gains more than
    half a point of accuracy, or a hundredth of log loss."""
    real = record["real"]
    if world.truth == "noise":
        return bool(record["sure"] != "nothing")
    if record["advice"] != "alone":
        return bool(real[record["method"]] <= 0)
    return bool(record["sure"] == "clear") and max(real.values()) > (0.005 if world.metric == "accuracy" else 0.01)


def tabulate_trained(records: dict[str, Any]) -> str:
    """Per cell: answers, wrong claims, wrong leanings, and how often gain ± 1.96 errors holds the true gain."""
    table = pd.DataFrame(list(records.values()))
    table["claim"] = table["sure"].isin(("clear", "borderline"))
    rows = []
    for (world, metric), cell in table.groupby(["world", "metric"], sort=False):
        row: dict[str, Any] = {"world": world, "metric": metric, "federations": len(cell)}
        row["nothing"] = int((cell["sure"] == "nothing").sum())
        for way in ("alone", "together", "shrunk"):
            for claim, word in ((True, "clear"), (False, "leaning")):
                chosen = (cell["advice"] == way) & (cell["claim"] == claim) & (cell["sure"] != "nothing")
                row[f"{way}, {word}"] = int(chosen.sum())
        row["wrong claims"] = int((cell["wrong"] & (cell["sure"] != "leaning")).sum())
        row["wrong leanings"] = int((cell["wrong"] & (cell["sure"] == "leaning")).sum())
        held = [
            abs(r["gain"][k] - r["real"][k]) <= 1.96 * r["error"][k] for r in cell.to_dict("records") for k in r["gain"]
        ]
        row["covered %"] = round(100 * float(np.mean(held)))
        rows.append(row)
    return pd.DataFrame(rows).to_string()
