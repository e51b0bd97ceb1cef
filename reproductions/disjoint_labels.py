"""Werner, Figure 2.5: clusters with labels of their own; one global model and Federated-Clustering.

The paper has CIFAR-100 in 10 clusters of 10 labels and 10 clients with a VGG-8. Here CIFAR-10 in 5 clusters of 2 labels, and
a network of one hidden layer on pictures of 8 × 8 pixels: the order is compared, not the values. Federated-Clustering
averages in every step, Global once in twenty as usual, and `EVERY` in every step, with the same momentum at the server.
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
from reproductions.claims import Claim
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.pictures import split
from reproductions.training import begin, follow

CLUSTERS = 5
EVERY = "Global, averaged in every step"


class Size(NamedTuple):
    by: int
    members: int
    samples: int
    steps: int
    looks: int
    rate: float


SIZES: dict[Scale, Size] = {"quick": Size(4, 3, 100, 30, 5, 0.1), "paper": Size(4, 4, 150, 80, 4, 0.1)}


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
    return {method: method for method in ("FC", "Global", EVERY, "Local", "GT")}


def measure(method: Any, seed: int, scale: Scale) -> Measured:
    size = SIZES[scale]
    each = size.steps // size.looks
    local = LocalSGD(steps=each, lr=size.rate, batch_size=None, momentum=0.9)
    named: dict[str, Any] = {"Global": FedAvg(local), "Local": Local(local), "GT": Oracle(local)}
    named[EVERY] = FedAvg(LocalSGD(steps=1, lr=size.rate, batch_size=None), server_momentum=0.9)
    clustering = FederatedClustering(lr=size.rate, momentum=0.9, radius=Percentile(15))
    data = federation(size, seed)
    task = Task(mlp(3 * (32 // size.by) ** 2, 32, 10))
    run = begin(named.get(method, clustering), data, task, seed)
    kept = follow(run, *((size.steps, each) if method in ("FC", EVERY) else (size.looks, 1)))
    return {**kept, "last": 100 * kept["accuracy"][-1]}


def rows(found: Records) -> list[Row]:
    return [Row(cell, None, found.numbers(cell, "last"), digits=1) for cell in cells(found.scale)]


def claims(found: Records) -> list[Claim]:
    mean = {cell: found.mean(cell, "last") for cell in cells(found.scale)}
    curve = {cell: 100 * found.curve(cell, "accuracy") for cell in ("FC", "Global", EVERY)}
    looks = "; ".join(f"{cell} {c[0]:.1f} and {c[-1]:.1f}" for cell, c in curve.items())
    middle = len(curve["FC"]) // 2
    return [
        Claim(
            "One global model stays at a low level, FC far above it.",
            [found.above("FC", one, "last", 15) for one in ("Global", EVERY)],
            f"FC {mean['FC']:.1f}, Global {mean['Global']:.1f}, averaged in every step {mean[EVERY]:.1f}, "
            f"Local {mean['Local']:.1f}, GT {mean['GT']:.1f}.",
        ),
        Claim(
            "FC goes on improving.",
            [
                found.margin(
                    "last look less the first and 2",
                    lambda of: 100 * (of("FC")["accuracy"][-1] - of("FC")["accuracy"][0]) - 2,
                )
            ],
            f"First and last look: {looks}.",
        ),
        Claim(
            "One global model stands still.",
            [
                found.margin(
                    f"2 points less what {one} gains from the first look to the last",
                    lambda of, one=one: 2 - 100 * (of(one)["accuracy"][-1] - of(one)["accuracy"][0]),
                )
                for one in ("Global", EVERY)
            ],
            f"First and last look: {looks}. In the second half Global gains "
            f"{curve['Global'][-1] - curve['Global'][middle]:+.1f}, averaged in every step "
            f"{curve[EVERY][-1] - curve[EVERY][middle]:+.1f} points.",
            unlike="Twenty steps with momentum between averages undo one another; a model averaged in every step, as FC's "
            "are, goes on learning.",
        ),
        Claim(
            "FC gains from collaboration.",
            [found.above("FC", "Local", "last")],
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
    seeds={"quick": 1, "paper": 3},
    size="1/2 of the clusters, 2/5 of their clients, 1/16 of the pixels, a small network",
    setting=lambda scale: (
        f"5 clusters of 2 labels and {SIZES[scale].members} clients of {SIZES[scale].samples} pictures of "
        f"{32 // SIZES[scale].by} × {32 // SIZES[scale].by} pixels, one hidden layer of 32 units instead of VGG-8, "
        f"{SIZES[scale].steps} full-batch steps of {SIZES[scale].rate:g}."
    ),
)
