"""Personalisation × privacy × robustness in one table: ``python -m coterie.reproduce.private --scale quick --seeds 3``.

Clients of two groups with opposite labels; each has a few rows. Every method runs plainly, privately (ε = 3, δ = 1e-6, by
simulation), attacked, and both. One client in twenty lies: *loud* liars send their update reversed and fifty times as long,
*sly* ones send twenty times the reversed mean of the honest updates, which they know. The numbers are mean test accuracies
of the honest clients' own models, with standard errors over seeds (data, start and noise are drawn anew for each).
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from torch import nn

from coterie.aggregation import CentredClipping
from coterie.algorithms import IFCA, Ditto, FedAvg, FineTuned, HypCluster, Local, Oracle
from coterie.data.federation import Federation
from coterie.errors import ConfigError, CoterieWarning, Diverged
from coterie.exchange.channels.attacks import InnerProduct, SignFlip
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.training.run import fit

SCALES = {"quick": (2_000, 20), "full": (10_000, 40)}  # clients, rounds
FEATURES, ROWS, TEST_ROWS = 8, 12, 8
LIARS, LOUDER, SLYER = 0.05, 50.0, 20.0
PRIVACY = Privacy(3.0, 1e-6, clip=0.5, noise="simulation")
CONDITIONS = ("none", "private", "loud", "private + loud", "sly", "private + sly")


def world(clients: int, seed: int = 0) -> Federation:
    """Two equal groups: the same features, opposite labels, one label in ten wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=FEATURES)
    group = np.arange(clients) % 2
    x = rng.normal(size=(clients, ROWS + TEST_ROWS, FEATURES)).astype(np.float32)
    y = ((x @ truth > 0) ^ (group[:, None] == 1) ^ (rng.random(x.shape[:2]) < 0.1)).astype(np.int64)
    return Federation.from_flat(
        x.reshape(-1, FEATURES),
        y.reshape(-1),
        sizes=np.full(clients, ROWS + TEST_ROWS),
        clients=range(clients),
        clusters=group,
        n_test=np.full(clients, TEST_ROWS),
        one_class="allow",
    )


def methods() -> dict[str, Any]:
    local = LocalSGD(steps=5, lr=0.3, batch_size=None)
    return {
        "local": Local(local),
        "fedavg": FedAvg(local),
        "fedavg, centred clipping": FedAvg(local, aggregate=CentredClipping(PRIVACY.clip, 1)),
        "finetuned": FineTuned(FedAvg(local)),
        "ditto": Ditto(local=local),
        "hypcluster": HypCluster(2, local),
        "ifca": IFCA(2, local=local, start="random"),
        "finetuned ifca": FineTuned(IFCA(2, local=local, start="random")),
        "oracle": Oracle(local),
    }


def make_table(scale: str = "quick", seed: int = 0) -> pd.DataFrame:
    """Mean accuracy of honest clients: a row a method, a column a condition; NaN where the run diverged."""
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}; got {scale!r}.")
    clients, rounds = SCALES[scale]
    federation, task = world(clients, seed), Task(lambda: nn.Linear(FEATURES, 2))
    liars = list(range(0, clients, round(1 / LIARS)))
    attacks: dict[str, Any] = {"loud": SignFlip(liars, LOUDER), "sly": InnerProduct(liars, SLYER)}
    table = pd.DataFrame(index=pd.Index(methods(), name="method"), columns=list(CONDITIONS), dtype=float)
    for name, algorithm in methods().items():
        for condition in CONDITIONS:
            options: dict[str, Any] = {"channels": [attack for word, attack in attacks.items() if word in condition]}
            if "private" in condition:
                options["privacy"] = PRIVACY
            table.loc[name, condition] = _score(algorithm, federation, task, rounds, seed, liars, options)
    return table


def _score(
    algorithm: Any, federation: Federation, task: Task, rounds: int, seed: int, liars: Any, options: Any
) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        try:
            result = fit(algorithm, federation, task, rounds=rounds, seed=seed, alone=False, progress=False, **options)
        except Diverged:
            return float("nan")
    return float(result.scores()["accuracy"].drop(liars).mean())


def markdown(tables: list[pd.DataFrame]) -> str:
    """Means and, in the last digits, standard errors over seeds; "diverged" where a run did."""
    stacked = np.stack([table.to_numpy() for table in tables])
    means, errors = stacked.mean(0), stacked.std(0, ddof=1) / len(tables) ** 0.5 if len(tables) > 1 else 0 * stacked[0]
    lines = ["| method | " + " | ".join(CONDITIONS) + " |", "|---" * (len(CONDITIONS) + 1) + "|"]
    for name, row, error in zip(tables[0].index, means, errors, strict=True):
        cells = [f"{m:.3f} ± {e:.3f}" if np.isfinite(m) else "diverged" for m, e in zip(row, error, strict=True)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(
    scale: Annotated[str, typer.Option(help=f"One of {', '.join(SCALES)}.")] = "quick",
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of data, start and noise.")] = 3,
    out: Annotated[Path | None, typer.Option(help="JSON file for the tables.")] = None,
) -> None:
    """Print the table."""
    tables = [make_table(scale, seed) for seed in range(seeds)]
    typer.echo(markdown(tables))
    if out is not None and scale in SCALES:
        about: dict[str, Any] = {"scale": scale, "clients": SCALES[scale][0], "rounds": SCALES[scale][1]}
        about |= {"epsilon": PRIVACY.epsilon, "delta": PRIVACY.delta, "clip": PRIVACY.clip}
        numbers = [json.loads(table.round(4).to_json(orient="index")) for table in tables]
        out.write_text(json.dumps(about | {"accuracy by seed": numbers}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
