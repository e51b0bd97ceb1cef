"""Werner, Figure 2.5: clusters with labels of their own; one global model stands still where Federated-Clustering goes on.

The paper has CIFAR-100 in 10 clusters of 10 labels and 10 clients with a VGG-8. Here CIFAR-10 in 5 clusters of 2 labels, and
a network of one hidden layer on pictures of 8 × 8 pixels (16 × 16 at paper scale): the order is compared, not the values.
The step of paper scale has the least training loss of 0.1, 0.03 and 0.01, alone and in the true clusters (seed 100).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from coterie.aggregation.radius import Percentile
from coterie.algorithms import FedAvg, FederatedClustering, Local, Oracle
from coterie.data.federation import Federation
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.models import mlp
from coterie.learning.task import Task
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Claim, Experiment, Measured, Records, Row, Scale
from reproductions.pictures import split
from reproductions.training import begin, follow

CLUSTERS = 5


class Size(NamedTuple):
    by: int
    members: int
    samples: int
    steps: int
    looks: int
    rate: float


SIZES: dict[Scale, Size] = {"quick": Size(4, 3, 100, 30, 5, 0.1), "paper": Size(2, 10, 190, 200, 10, 0.03)}


def federation(size: Size, seed: int) -> Federation:
    """Client i is in cluster i mod 5, which has labels 2k and 2k + 1; pictures are dealt evenly."""
    x, y, x_test, y_test = split("cifar10", size.by)
    rng = np.random.default_rng([seed, 5])
    clusters = np.arange(CLUSTERS * size.members) % CLUSTERS
    rows, tests = np.empty((len(clusters), size.samples), int), np.empty((len(clusters), 80), int)
    for k in range(CLUSTERS):
        own, own_test = (rng.permutation(np.flatnonzero(labels // 2 == k)) for labels in (y, y_test))
        rows[clusters == k] = own[: size.members * size.samples].reshape(size.members, -1)
        tests[clusters == k] = np.resize(own_test, (size.members, 80))
    return Federation.from_flat(
        np.concatenate([x[rows], x_test[tests]], 1).reshape(-1, *x.shape[1:]),
        np.concatenate([y[rows], y_test[tests]], 1).astype(np.int64).ravel(),
        sizes=np.full(len(clusters), size.samples + 80),
        clients=range(len(clusters)),
        n_test=np.full(len(clusters), 80),
        clusters=clusters,
        kind="classification",
        classes=range(10),
        scale_bytes=True,
    )


def cells(scale: Scale) -> Cells:
    return {method: method for method in ("FC", "Global", "Local", "GT")}


def measure(method: Any, seed: int, scale: Scale) -> Measured:
    size = SIZES[scale]
    each = size.steps // size.looks
    local = LocalSGD(steps=each, lr=size.rate, batch_size=None, momentum=0.9)
    named: dict[str, Any] = {"Global": FedAvg(local), "Local": Local(local), "GT": Oracle(local)}
    clustering = FederatedClustering(lr=size.rate, momentum=0.9, radius=Percentile(15))
    data = federation(size, seed)
    task = Task(mlp(3 * (32 // size.by) ** 2, 32, 10))
    run = begin(named.get(method, clustering), data, task, seed)
    kept = follow(run, *((size.steps, each) if method == "FC" else (size.looks, 1)))
    return {**kept, "last": 100 * kept["accuracy"][-1]}


def rows(found: Records) -> list[Row]:
    return [Row(cell, None, found.numbers(cell, "last"), digits=1) for cell in cells(found.scale)]


def claims(found: Records) -> list[Claim]:
    mean = {cell: found.mean(cell, "last") for cell in cells(found.scale)}
    fc, one = 100 * found.curve("FC", "accuracy"), 100 * found.curve("Global", "accuracy")
    middle = len(fc) // 2
    late = {"FC": fc[-1] - fc[middle], "Global": one[-1] - one[middle]}
    return [
        Claim(
            "One global model stays at a low level, FC far above it.",
            mean["FC"] > mean["Global"] + 15,
            f"FC {mean['FC']:.1f}, Global {mean['Global']:.1f}, Local {mean['Local']:.1f}, GT {mean['GT']:.1f}.",
        ),
        Claim(
            "FC goes on improving.",
            bool(fc[-1] > fc[0] + 2),
            f"First and last look: FC {fc[0]:.1f} and {fc[-1]:.1f}, Global {one[0]:.1f} and {one[-1]:.1f}.",
        ),
        Claim(
            "One global model stands still.",
            late["Global"] < 1.0,
            f"From the middle to the end Global moves by {late['Global']:+.1f} points, FC by {late['FC']:+.1f}.",
            unlike="It still moves: the steps are few for pictures of this size.",
        ),
        Claim(
            "FC gains from collaboration.",
            mean["FC"] > mean["Local"],
            f"FC {mean['FC']:.1f}, Local {mean['Local']:.1f}.",
            unlike="With two labels and a small network a client needs the others little.",
        ),
    ]


def draw(found: Records) -> Figure:
    figure, (ax,) = panels(1, width=4.6)
    size = SIZES[found.scale]
    x = np.linspace(0, size.steps, size.looks + 1)[1:]
    lines = {c: [one["accuracy"] for one in found.of(c)] for c in cells(found.scale)}
    curves(ax, list(x), lines, "clusters with labels of their own", "steps", "test accuracy")
    ax.legend(fontsize=8, frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="disjoint-labels",
    work="Werner, chapter 2",
    shows="Figure 2.5: clusters with labels of their own (CIFAR-10 for CIFAR-100)",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    needs=("cifar10",),
    seeds={"quick": 1, "paper": 2},
    setting=lambda scale: (
        f"5 clusters of 2 labels and {SIZES[scale].members} clients of {SIZES[scale].samples} pictures of "
        f"{32 // SIZES[scale].by} × {32 // SIZES[scale].by} pixels, one hidden layer of 32 units instead of VGG-8, "
        f"{SIZES[scale].steps} full-batch steps of {SIZES[scale].rate:g}."
    ),
)
