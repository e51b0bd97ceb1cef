"""How often IFCA finds all four rotations of MNIST: our start from updates, the paper's random models, and the better of two
runs from random models with half the rounds each (chosen by training loss, all that a server knows).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.algorithms import IFCA
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.metrics import cluster_accuracy
from coterie.learning.models import mlp
from coterie.learning.task import Task
from coterie.training.tuning import best_of
from reproductions.claims import Claim, Share
from reproductions.drawing import panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.pictures import federation
from reproductions.training import begin

STEPS = LocalSGD(steps=10, lr=0.1, batch_size=None)
STARTS = {
    "updates": "from updates (default)",
    "random": "random, as in the paper",
    "best of 2": "random, better of two",
}
SETTLED = 3  # rounds in a row with all clusters right, after which a run ends


class Size(NamedTuple):
    clients: int
    samples: int
    by: int
    rounds: int


SIZES: dict[Scale, Size] = {"quick": Size(24, 40, 2, 8), "paper": Size(240, 100, 2, 20)}


def cells(scale: Scale) -> Cells:
    return {start: start for start in STARTS}


def measure(start: Any, seed: int, scale: Scale) -> Measured:
    """The last cluster accuracy (M-2) and the round from which on it was 1 (−1: never; restarts: not watched)."""
    size = SIZES[scale]
    options = {"clusters": 4, "clients": size.clients, "samples": size.samples, "test_samples": 1, "by": size.by}
    data = federation("mnist", "rotate", seed=seed, **options)
    task = Task(mlp((28 // size.by) ** 2, 200 if scale == "paper" else 64, 10))
    plain = IFCA(clusters=4, local=STEPS, start="updates" if start == "updates" else "random")
    if start == "best of 2":
        how: dict[str, Any] = {"rounds": size.rounds // 2, "alone": False, "progress": False}
        best = best_of(2, plain, data, task, seed=1000 * (seed + 1), **how)
        return {"accuracy": cluster_accuracy(best.clusters.to_numpy(), data.clusters), "since": -1}
    run, since, accuracy = begin(plain, data, task, seed), -1, 0.0
    for t in range(1, size.rounds + 1):
        run.one_round()
        accuracy = cluster_accuracy(run.evaluation().clusters(), data.clusters)
        since = -1 if accuracy < 1 else t if since < 0 else since
        if 0 < since <= t - SETTLED + 1:
            break
    return {"accuracy": accuracy, "since": since}


def table(found: Records) -> pd.DataFrame:
    lines = []
    for start, title in STARTS.items():
        accuracy, since = np.array(found.numbers(start, "accuracy")), np.array(found.numbers(start, "since"))
        known = since[since > 0]
        lines.append(
            {
                "start": title,
                "all right": f"{(accuracy == 1).sum()} of {len(accuracy)}",
                "worst cluster accuracy": f"{accuracy.min():.2f}",
                "median round": f"{np.median(known):g}" if len(known) else "",
                "last round": f"{known.max():g}" if len(known) else "",
            }
        )
    return pd.DataFrame(lines)


def rows(found: Records) -> list[Row]:
    return [Row(title, None, found.numbers(start, "accuracy"), digits=2) for start, title in STARTS.items()]


def claims(found: Records) -> list[Claim]:
    right = {s: float(np.mean([v == 1 for v in found.numbers(s, "accuracy")])) for s in STARTS}
    return [
        Claim(
            "The start from updates finds all rotations in most runs, and no less often than random models.",
            [
                Share("share of such runs less 0.8", [v == 1 for v in found.numbers("updates", "accuracy")], 0.8),
                found.margin(
                    "share of runs from updates less that from random models, plus 0.05",
                    lambda of: float(of("updates")["accuracy"] == 1) - float(of("random")["accuracy"] == 1) + 0.05,
                ),
            ],
            "All right on a share of seeds: " + ", ".join(f"{v:.2f} ({s})" for s, v in right.items()) + ".",
        )
    ]


def draw(found: Records) -> Figure:
    figure, (ax,) = panels(1, width=4.5)
    for place, start in enumerate(STARTS):
        values = found.numbers(start, "accuracy")
        ax.plot(np.full(len(values), place) + np.linspace(-0.15, 0.15, len(values)), values, "o", ms=4, alpha=0.7)
    ax.set_xticks(range(len(STARTS)), STARTS)
    ax.set_ylabel("clients in their cluster at the end")
    ax.set_ylim(0, 1.05)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


EXPERIMENT = Experiment(
    name="ifca-starts",
    work="Beyond the papers",
    shows="Starts of IFCA on rotated MNIST",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    needs=("mnist",),
    seeds={"quick": 4, "paper": 20},
    setting=lambda scale: (
        f"{SIZES[scale].clients} clients of {SIZES[scale].samples} pictures of {28 // SIZES[scale].by} × "
        f"{28 // SIZES[scale].by} pixels, {SIZES[scale].rounds} rounds."
    ),
    size="not in the paper",
    wide=table,
)
