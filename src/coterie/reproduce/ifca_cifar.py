"""IFCA, Table 1 (CIFAR column) and Figure 4 (right): CIFAR-10 upright and upside down, on a subset of 10,000 pictures.

k = 2, a tenth of the clients a round, five local steps of 50 pictures, the step 0.25 (the authors' code) times 0.99 a round.
The paper has 200 clients and augments its pictures; here 40 clients of 500 pictures, no augmentation and,
at quick scale, a network of one hidden layer on pictures of 8 × 8 pixels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from coterie.algorithms import IFCA, FedAvg, Local
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.models import mlp, two_conv
from coterie.learning.task import Task
from coterie.reproduce.drawing import curves, panels
from coterie.reproduce.experiment import Cells, Claim, Experiment, Measured, Records, Row, Scale
from coterie.reproduce.pictures import federation
from coterie.reproduce.training import begin, follow, worker_accuracy

PAPER = {"IFCA": (81.51, 1.37), "global": (77.87, 0.39), "local": (33.97, 1.19)}
METHODS = ("IFCA", "IFCA from updates", "global", "local")
EARLY = (5, 10)  # rounds after which Figure 4 is looked at, besides evenly spaced ones


class Size(NamedTuple):
    clients: int
    by: int
    rounds: int
    looks: int


SIZES: dict[Scale, Size] = {"quick": Size(40, 4, 200, 5), "paper": Size(40, 2, 300, 10)}


def cells(scale: Scale) -> Cells:
    return {method: method for method in METHODS}


def measure(method: Any, seed: int, scale: Scale) -> Measured:
    """Accuracy by M-3. Everybody trains alone in every fifth round, twice as often as the others ask a client."""
    size = SIZES[scale]
    options = {"clusters": 2, "clients": size.clients, "samples": 500, "test_samples": 100, "by": size.by, "angle": 180}
    data = federation("cifar10", "rotate", seed=seed, **options)
    task = Task(mlp(192, 64, 10) if scale == "quick" else two_conv(10, 3, 16, width=16, hidden=64))
    local = LocalSGD(steps=5, lr=0.25, batch_size=50, decay=0.99)
    algorithm: Any = {
        "IFCA": IFCA(2, local=local, start="random"),
        "IFCA from updates": IFCA(2, local=local),
        "global": FedAvg(local),
        "local": Local(local),
    }[method]
    rounds = size.rounds // 5 if method == "local" else size.rounds
    run = begin(algorithm, data, task, seed, cohort=None if method == "local" else size.clients // 10)
    early = [t // 5 if method == "local" else t for t in EARLY]
    kept = follow(run, rounds, rounds // size.looks, clusters="IFCA" in method, also=early)
    kept["last"] = 100 * kept["accuracy"][-1]
    if method != "local":
        models = run.state.models if "IFCA" in method else {k: t[None] for k, t in run.state.model.items()}
        kept["last"] = 100 * worker_accuracy(models, data, task, 500)
    return kept


def rows(found: Records) -> list[Row]:
    return [
        Row(m, value, found.numbers(m, "last"), deviation, digits=2, runs=5, among="accuracy")
        for m, (value, deviation) in PAPER.items()
    ] + [Row("IFCA, our start", None, found.numbers("IFCA from updates", "last"), digits=2)]


def claims(found: Records) -> list[Claim]:
    mean = {m: found.mean(m, "last") for m in METHODS}
    at_ten = {m: [one["clusters"][one["round"].index(EARLY[-1])] for one in found.of(m)] for m in METHODS[:2]}
    ends = {m: [one["clusters"][-1] for one in found.of(m)] for m in METHODS[:2]}
    mixed = (
        f"Random models parted the two groups in {sum(v == 1 for v in ends['IFCA'])} of {len(ends['IFCA'])} runs; the "
    )
    mixed += "authors' code draws them anew until each attracts 35 % of the clients. "
    mixed += f"With our start IFCA has {mean['IFCA from updates']:.1f}."
    return [
        Claim(
            "IFCA is better than one global model.",
            mean["IFCA"] > mean["global"],
            f"IFCA {mean['IFCA']:.1f} (our start {mean['IFCA from updates']:.1f}), global {mean['global']:.1f}.",
            unlike=mixed,
        ),
        Claim(
            "IFCA is better than local models.", mean["IFCA"] > mean["local"], f"Local models have {mean['local']:.1f}."
        ),
        Claim(
            "The clusters are found within about ten rounds (Figure 4).",
            min(at_ten["IFCA"]) == 1,
            f"Clients in their cluster after {EARLY[-1]} rounds: {100 * np.mean(at_ten['IFCA']):.0f} % from random models, "
            f"{100 * np.mean(at_ten['IFCA from updates']):.0f} % from updates; at the end "
            f"{100 * np.mean(ends['IFCA']):.0f} and {100 * np.mean(ends['IFCA from updates']):.0f} %.",
            unlike=mixed,
        ),
    ]


def draw(found: Records) -> Figure:
    figure, (left, right) = panels(2, columns=2)
    x = found.of("global")[0]["round"]
    curves(left, x, {m: [one["accuracy"] for one in found.of(m)] for m in METHODS}, "", "round", "test accuracy")
    lines = {m: [one["clusters"] for one in found.of(m)] for m in METHODS[:2]}
    curves(right, x, lines, "clusters found (Figure 4)", "round")
    right.set_ylim(0, 1.05)
    left.legend(fontsize=8, frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="ifca-cifar",
    work="Ghosh et al. (IFCA)",
    shows="Table 1 (CIFAR column) and Figure 4, on a subset of 10,000 pictures",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    needs=("cifar10",),
    seeds={"quick": 1, "paper": 3},
    first_seed=10,
    setting=lambda scale: (
        f"40 clients of 500 pictures of {32 // SIZES[scale].by} × {32 // SIZES[scale].by} pixels (the paper: 200, 32 × 32), "
        f"no augmentation, {SIZES[scale].rounds} rounds, "
        + (
            "one hidden layer of 64 units."
            if scale == "quick"
            else "two convolutions (16 and 32 channels) and two fully connected layers."
        )
    ),
    why={
        "": "A fifth of the paper's clients, small pictures without augmentation and a small network: all values are lower. "
        "Where random models leave both groups with one model, IFCA is but one global model; started from updates it is "
        "better than that."
    },
)
