"""How often IFCA finds groups of very different sizes, from its two starts.

Forty clients in four groups, on MNIST pictures of 14 × 14 pixels: the groups see turned pictures ("turned") or have their
labels permuted ("relabelled"). A run is right when the adjusted Rand index of the clusters found exceeds 0.95. Two more
counts look at some clients only: `right_large` at those with at least eight training rows, since a client with three rows
can fit several models, and `right_others` at those that are not odd.

    python -m coterie.reproduce.lopsided --seeds 10 --out lopsided.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.algorithms import IFCA
from coterie.data.federation import Federation
from coterie.datasets.files import load_arrays
from coterie.exchange.channels import Dropout
from coterie.learning.cluster_metrics import adjusted_rand
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.models import mlp
from coterie.learning.task import Task
from coterie.training.run import fit

CLIENTS, TRUE_GROUPS = 40, 4


@dataclass(frozen=True)
class World:
    """`shares` of the clients per group; `rows` per client, or the two ends of log-uniform sizes; `odd` clients see one
    class only."""

    shares: tuple[float, ...]
    rows: int | tuple[int, int] = 60
    relabelled: bool = False
    odd: int = 0
    cohort: float | None = None
    dropout: float = 0.0
    clusters: int = TRUE_GROUPS
    clients: int = CLIENTS


EQUAL = (0.25, 0.25, 0.25, 0.25)
WORLDS: dict[str, World] = {
    "equal, 60 rows": World(EQUAL),
    "equal, 20 rows": World(EQUAL, 20),
    ".7/.1/.1/.1": World((0.7, 0.1, 0.1, 0.1)),
    ".85/.05×3": World((0.85, 0.05, 0.05, 0.05)),
    ".85/.05×3 relabelled": World((0.85, 0.05, 0.05, 0.05), relabelled=True),
    ".7/.1/.1/.1, two odd clients": World((0.7, 0.1, 0.1, 0.1), odd=2),
    "equal, 4–400 rows": World(EQUAL, (4, 400)),
    ".7/.1/.1/.1, 10 % cohorts": World((0.7, 0.1, 0.1, 0.1), cohort=0.1),
    ".7/.1/.1/.1, 30 % lost": World((0.7, 0.1, 0.1, 0.1), dropout=0.3),
    ".7/.1/.1/.1, k = 6": World((0.7, 0.1, 0.1, 0.1), clusters=6),
    ".7/.1/.1/.1, k = 3": World((0.7, 0.1, 0.1, 0.1), clusters=3),
}


def federation(world: World, seed: int) -> Federation:
    """The clients of one world."""
    pictures, labels = load_arrays("mnist.npz", "x_train", "y_train")
    rng = np.random.default_rng([seed, 41])
    order = rng.permutation(len(pictures))
    counts = np.round(np.array(world.shares) * world.clients).astype(int)
    counts[0] += world.clients - counts.sum()
    truth = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    relabel = [np.arange(10), *(rng.permutation(10) for _ in counts[1:])]
    if isinstance(world.rows, int):
        sizes = np.full(world.clients, world.rows)
    else:
        low, high = np.log(world.rows)
        sizes = np.exp(rng.uniform(low, high, world.clients)).astype(int)
    data, at = {}, 0
    for i, (group, n) in enumerate(zip(truth, sizes, strict=True)):
        rows, at = order[at : at + n], at + n
        x, y = pictures[rows][:, ::2, ::2], labels[rows].astype(np.int64)
        if i < world.odd:
            x, y = (np.resize(a[y == y[0]], a.shape) for a in (x, y))
        x, y = (x, relabel[group][y]) if world.relabelled else (np.rot90(x, int(group), axes=(1, 2)), y)
        data[f"c{i}"] = ((x.reshape(n, -1) / 255.0).astype(np.float32), y)
    clusters = {f"c{i}": int(g) for i, g in enumerate(truth)}
    return Federation.from_arrays(data, clusters=clusters, kind="classification", seed=seed, one_class="allow")


def one(world: World, start: str, seed: int, rounds: int = 12) -> dict[str, Any]:
    """One run: the agreement with the true groups, over all clients, those with eight rows or more and those not odd."""
    data = federation(world, seed)
    local = LocalSGD(steps=10, lr=0.1, batch_size=None)
    algorithm = IFCA(clusters=world.clusters, local=local, start=start)  # type: ignore[arg-type]
    task = Task(model=mlp(196, 32, 10), loss="cross_entropy", metric="accuracy")
    result = fit(
        algorithm,
        data,
        task,
        rounds=rounds if world.cohort is None else 4 * rounds,
        seed=seed,
        cohort=world.cohort,
        channels=[Dropout(world.dropout)] if world.dropout else [],
        alone=False,
        progress=False,
    )
    truth, large = np.asarray(data.clusters), data.n_train >= 8
    found = result.clusters.to_numpy()
    return {
        "ari": float(adjusted_rand(found, truth)),
        "ari_large": float(adjusted_rand(found[large], truth[large])),
        "ari_others": float(adjusted_rand(found[world.odd :], truth[world.odd :])),
        "accuracy": float(result.evaluate()["accuracy"].mean()),
    }


def study(seeds: range, out: Path, only: str = "") -> dict[str, Any]:
    """All worlds and both starts; what the file already holds is not run again."""
    records: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for name, world in WORLDS.items():
        for start in ("updates", "random"):
            for seed in seeds:
                key = f"{name}/{start}/{seed}"
                if only in name and key not in records:
                    records[key] = one(world, start, seed) | {"world": asdict(world)}
                    out.write_text(json.dumps(records, indent=1))
    return records


def table(records: dict[str, Any]) -> pd.DataFrame:
    """Runs that were right, of all, per world and start."""
    rows = []
    for key, record in records.items():
        name, start, seed = key.rsplit("/", 2)
        rows.append(record | {"world": name, "start": start, "seed": int(seed)})
    frame = pd.DataFrame(rows)
    for ending in ("", "_large", "_others"):
        frame["right" + ending] = frame["ari" + ending] > 0.95
    found = frame.groupby(["world", "start"], sort=False).agg(
        runs=("seed", "size"),
        right=("right", "sum"),
        right_large=("right_large", "sum"),
        right_others=("right_others", "sum"),
        ari=("ari", "mean"),
        error=("ari", "sem"),
        accuracy=("accuracy", "mean"),
    )
    return found.reset_index().round(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=300)
    parser.add_argument("--only", default="", help="only worlds whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("lopsided.json"))
    given = parser.parse_args()
    records = study(range(given.first_seed, given.first_seed + given.seeds), given.out, given.only)
    print(table(records).to_string(index=False))


if __name__ == "__main__":
    main()
