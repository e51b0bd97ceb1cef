"""Personalisation × privacy × robustness in one table: ``python -m coterie.reproduce.private --scale quick``.

Clients of two groups with opposite labels; each has a few rows. Every method runs plainly, privately (ε = 3, δ = 1e-6, by
simulation), attacked (one client in twenty sends its update reversed, many times as long), and both. The numbers are mean
test accuracies of the honest clients' own models. Clipping bounds how far one liar
can move a sum. Only one loud attack is tried here; lies that stay within the clip are not.
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

from coterie.algorithms import IFCA, Ditto, FedAvg, FineTuned, HypCluster, Local, Oracle
from coterie.data.federation import Federation
from coterie.errors import ConfigError, CoterieWarning, Diverged
from coterie.exchange.channels.attacks import SignFlip
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.training.run import fit

SCALES = {"quick": (2_000, 20), "full": (10_000, 40)}  # clients, rounds
FEATURES, ROWS, TEST_ROWS = 8, 12, 8
LIARS, LOUDER = 0.05, 50.0
PRIVACY = Privacy(3.0, 1e-6, clip=0.5, noise="simulation")
CONDITIONS = ("none", "private", "attacked", "private + attacked")


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
    table = pd.DataFrame(index=pd.Index(methods(), name="method"), columns=list(CONDITIONS), dtype=float)
    for name, algorithm in methods().items():
        for condition in CONDITIONS:
            options: dict[str, Any] = {"channels": [SignFlip(liars, LOUDER)] if "attacked" in condition else []}
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


def main(
    scale: Annotated[str, typer.Option(help=f"One of {', '.join(SCALES)}.")] = "quick",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file for the table.")] = None,
) -> None:
    """Print the table."""
    table = make_table(scale, seed)
    typer.echo(table.round(3).to_string())
    if out is not None:
        about = {"scale": scale, "seed": seed, "clients": SCALES[scale][0], "rounds": SCALES[scale][1]}
        about |= {"epsilon": PRIVACY.epsilon, "delta": PRIVACY.delta, "clip": PRIVACY.clip}
        numbers = json.loads(table.round(4).to_json(orient="index"))
        out.write_text(json.dumps(about | {"accuracy": numbers}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
