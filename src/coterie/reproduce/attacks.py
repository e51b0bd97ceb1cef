"""Liars against clustered learning: every attack, some shares of liars, robust and plain methods.

Thirty clients in three groups of ten that number the digits differently, on MNIST pictures of 14 × 14 pixels, 60 rows per
client. The liars are spread evenly over the groups, or are six of the ten in the first one. The table shows the accuracy of
the honest clients' own models on their test rows.

    python -m coterie.reproduce.attacks --seeds 3 --out attacks.json
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.aggregation import GeometricMedian, Median, MultiKrum, NearestNeighbourMixing, TrimmedMean
from coterie.aggregation.radius import Percentile
from coterie.algorithms import IFCA, FedAvg, FederatedClustering, Local
from coterie.data.federation import Federation
from coterie.errors import CoterieWarning, Diverged
from coterie.exchange.channels import attacks
from coterie.learning.cluster_metrics import adjusted_rand
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.models import mlp
from coterie.learning.task import Task
from coterie.reproduce.lopsided import World, federation
from coterie.training.run import fit

GROUPS, MEMBERS, ROUNDS = 3, 10, 8
WORLD = World((1 / 3, 1 / 3, 1 / 3), relabelled=True, clusters=GROUPS, clients=GROUPS * MEMBERS)
SHARES: dict[str, tuple[int, ...]] = {"30 %": (3, 3, 3), "10 %": (1, 1, 1), "6 of one group's 10": (6, 0, 0)}
"""Liars per group."""
SLOW, CAPTURED = "Federated-Clustering", "6 of one group's 10"
STEPS = LocalSGD(steps=10, lr=0.1, batch_size=None)
BALL = Percentile(20)

ATTACKS: dict[str, Callable[[list[str]], attacks.Attack]] = {
    "sign flip ×3": lambda liars: attacks.SignFlip(liars, scale=3.0),
    "large ×100": attacks.LargeGradient,
    "noise": attacks.GaussianNoise,
    "label flip": attacks.LabelFlip,
    "inner product": attacks.InnerProduct,
    "ALIE, z = 1": lambda liars: attacks.ALIE(liars, z=1.0),
    "edge of the ball": lambda liars: attacks.EdgeAttack(liars, radius=BALL),
}


def methods(liars: int) -> dict[str, tuple[Any, int]]:
    """Algorithm and rounds; rules that need a number of liars are told the right one."""

    def ifca(rule: Any) -> tuple[Any, int]:
        return IFCA(GROUPS, local=STEPS, aggregate=rule), ROUNDS

    return {
        "FedAvg": (FedAvg(STEPS), ROUNDS),
        "FedAvg, median": (FedAvg(STEPS, aggregate=Median()), ROUNDS),
        "FedAvg, trimmed mean": (FedAvg(STEPS, aggregate=TrimmedMean(liars)), ROUNDS),
        "IFCA": (IFCA(GROUPS, local=STEPS), ROUNDS),
        "IFCA, geometric median": ifca(GeometricMedian()),
        "IFCA, multi-Krum": ifca(MultiKrum(liars)),
        "IFCA, mixing and median": ifca(NearestNeighbourMixing(liars)),
        SLOW: (FederatedClustering(lr=1.0, radius=BALL), 2 * ROUNDS),
        "Local": (Local(STEPS), ROUNDS),
    }


def chosen_liars(data: Federation, share: str) -> list[str]:
    """The first clients of every group."""
    truth = np.asarray(data.clusters)
    groups = [np.flatnonzero(truth == g)[:count] for g, count in enumerate(SHARES[share])]
    return [str(data.clients[i]) for i in np.concatenate(groups)]


def one(attack: str, share: str, method: str, seed: int) -> dict[str, Any]:
    """The honest clients' accuracy and the agreement of their clusters with the truth; 0 for a run that diverged."""
    data = federation(WORLD, seed)
    liars = chosen_liars(data, share)
    honest = ~np.isin(data.clients, liars)
    algorithm, rounds = methods(len(liars))[method]
    channels = [] if attack == "none" else [ATTACKS[attack](liars)]
    task = Task(model=mlp(196, 32, 10), loss="cross_entropy", metric="accuracy")
    try:
        result = fit(algorithm, data, task, rounds=rounds, seed=seed, channels=channels, alone=False, progress=False)
    except Diverged:
        return {"accuracy": 0.0, "ari": 0.0, "diverged": True}
    found, truth = result.clusters.to_numpy()[honest], np.asarray(data.clusters)[honest]
    return {
        "accuracy": float(result.evaluate()["accuracy"].to_numpy()[honest].mean()),
        "ari": float(adjusted_rand(found, truth)),
    }


def study(seeds: range, out: Path, only: str = "") -> dict[str, Any]:
    """All attacks, shares and methods (see `planned`); what the file already holds is not run again."""
    records: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for seed in seeds:
        for share, spread in SHARES.items():
            for attack in ("none", *ATTACKS):
                for method in methods(sum(spread)):
                    key = f"{attack}/{share}/{method}/{seed}"
                    if key not in records and only in key and planned(attack, share, method):
                        records[key] = one(attack, share, method, seed)
                        out.write_text(json.dumps(records, indent=1))
    return records


def planned(attack: str, share: str, method: str) -> bool:
    """Local models hear nobody, so no attack reaches them. Federated-Clustering, ten times as slow as the rest, is attacked
    by 30 % only. A captured group meets three attacks."""
    if method == "Local" and attack != "none":
        return False
    if share == CAPTURED and attack not in ("none", "sign flip ×3", "large ×100", "label flip"):
        return False
    return method != SLOW or share == "30 %"


def table(records: dict[str, Any]) -> pd.DataFrame:
    """Mean accuracy per share and method (rows) and attack (columns), and the largest standard error of a row."""
    rows = [
        dict(zip(("attack", "share", "method", "seed"), key.split("/"), strict=True)) | record
        for key, record in records.items()
    ]
    frame = pd.DataFrame(rows)
    cells = frame.groupby(["share", "method", "attack"], sort=False)["accuracy"]
    order = [attack for attack in ("none", *ATTACKS) if attack in set(frame["attack"])]
    means = cells.mean().unstack()[order]
    means["error ≤"] = cells.sem().unstack().max(axis=1)
    return means.round(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=300)
    parser.add_argument("--only", default="", help="only runs whose key, attack/share/method/seed, contains this")
    parser.add_argument("--out", type=Path, default=Path("attacks.json"))
    given = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        records = study(range(given.first_seed, given.first_seed + given.seeds), given.out, given.only)
    print(table(records).to_string())


if __name__ == "__main__":
    main()
