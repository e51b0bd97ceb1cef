"""Werner, Figure 2.6: MNIST with private labels, half of every cluster malicious; accuracy of the good clients' own models.

Malicious clients send a hundred times their gradient (A-1), its negative (A-2) or, in our own addition, huge noise. Half of
all clients are malicious and a cluster's good ones are an eighth: outside the theorem (β ≤ δ), so the radius must be at most
the 12.5th percentile, and far attacks are harmless as they leave the ball (erratum EC-13). A linear model, full batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from coterie.aggregation.radius import Percentile
from coterie.algorithms import FedAvg, FederatedClustering, Local, Oracle
from coterie.errors import Diverged
from coterie.exchange.channels import attacks
from coterie.learning.models import linear
from coterie.learning.task import Task
from reproductions.claims import Claim
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.pictures import federation
from reproductions.training import begin, follow

ATTACKS: dict[str, Callable[[Any], Any]] = {
    "large gradient (A-1)": lambda bad: attacks.LargeGradient(bad, factor=100.0),
    "sign flip (A-2)": lambda bad: attacks.SignFlip(bad),
    "huge noise": lambda bad: attacks.GaussianNoise.huge(bad),
}
NONE, GOOD = "none", "good clients alone"


class Size(NamedTuple):
    clients: int
    samples: int
    by: int
    groups: int
    percentile: float
    rounds: int
    every: int


SIZES: dict[Scale, Size] = {
    "quick": Size(32, 60, 2, 1, 10.0, 9, 3),
    "paper": Size(400, 150, 2, 8, 8.0, 20, 2),
}


def attacked(scale: Scale) -> list[str]:
    """The paper's two attacks; at paper scale also noise."""
    return list(ATTACKS)[: 2 if scale == "quick" else 3]


def cells(scale: Scale) -> Cells:
    cases = [NONE, *attacked(scale)] + ([GOOD] if scale == "paper" else [])
    attacked_cells = {f"{m}, {a}": (m, a) for a in cases for m in ("FC", "Global")}
    return attacked_cells | {"Local": ("Local", NONE), "GT": ("GT", NONE)}


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """Client i is in cluster i mod 4; every second client of a cluster is malicious."""
    method, attack = cell
    size = SIZES[scale]
    options = {"clusters": 4, "clients": size.clients, "samples": size.samples, "by": size.by, "disjoint": True}
    data = federation("mnist", "shift_labels", seed=seed, test_samples=100, **options)
    good = (np.arange(size.clients) // 4) % 2 == 0
    bad = data.clients[~good].tolist()
    clustering = FederatedClustering(lr=0.5, radius=Percentile(size.percentile), subsets=size.groups, inner=30)
    if attack == GOOD:
        data, good = data.subset(data.clients[good]), np.ones(int(good.sum()), bool)
        radius = Percentile(min(2 * size.percentile, 20.0))
        clustering = replace(clustering, subsets=max(size.groups // 2, 1), radius=radius)
    step = clustering.local
    algorithm: Any = {"FC": clustering, "Global": FedAvg(step), "Local": Local(step), "GT": Oracle(step)}[method]
    channels = [ATTACKS[attack](bad)] if attack in ATTACKS else []
    run = begin(algorithm, data, Task(linear((28 // size.by) ** 2, 10)), seed, channels=channels)
    try:
        kept = follow(run, size.rounds, size.every, good)
    except Diverged:
        return {"round": [], "accuracy": [], "last": 10.0, "diverged": True}
    return {**kept, "last": 100 * kept["accuracy"][-1]}


def rows(found: Records) -> list[Row]:
    return [Row(cell, None, found.numbers(cell, "last"), digits=1) for cell in cells(found.scale)]


def claims(found: Records) -> list[Claim]:
    lies = attacked(found.scale)
    fc, all_ = ({a: found.mean(f"{m}, {a}", "last") for a in (NONE, *lies)} for m in ("FC", "Global"))
    return [
        Claim(
            "Federated-Clustering keeps its accuracy under both attacks.",
            [found.above(f"FC, {a}", f"FC, {NONE}", "last", -5) for a in lies],
            f"{fc[NONE]:.1f} without, {', '.join(f'{fc[a]:.1f} ({a})' for a in lies)}.",
        ),
        Claim(
            "It stays better than training alone.",
            [found.above(f"FC, {a}", "Local", "last") for a in lies],
            f"Local models have {found.mean('Local', 'last'):.1f}, the true clusters {found.mean('GT', 'last'):.1f}.",
        ),
        Claim(
            "One global model collapses.",
            [found.margin(f"15 less Global, {a}", lambda of, a=a: 15 - of(f"Global, {a}")["last"]) for a in lies]
            + [found.above(f"Global, {NONE}", f"Global, {a}", "last", 3) for a in lies],
            f"{all_[NONE]:.1f} without attack (the clusters contradict one another), "
            + ", ".join(f"{all_[a]:.1f} ({a})" for a in lies)
            + ".",
        ),
    ]


def draw(found: Records) -> Figure:
    figure, axes = panels(2, columns=2)
    for ax, attack in zip(axes, ATTACKS, strict=False):
        lines = {}
        for method in ("FC", "Global"):
            runs = [one for one in found.of(f"{method}, {attack}") if one["round"]]
            if runs:
                lines[method] = [one["accuracy"] for one in runs]
        lines["Local, no attack"] = [one["accuracy"] for one in found.of("Local")]
        curves(ax, found.of("Local")[0]["round"], lines, attack, "round")
        ax.set_ylim(0, 1)
    axes[0].set_ylabel("accuracy of the good clients")
    axes[0].legend(fontsize=8, frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="byzantine",
    work="Werner, chapter 2",
    shows="Figure 2.6: half of the clients malicious",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    needs=("mnist",),
    seeds={"quick": 1, "paper": 3},
    size="all clients, 1/4 of the pixels",
    setting=lambda scale: (
        f"{SIZES[scale].clients} clients of {SIZES[scale].samples} pictures of {28 // SIZES[scale].by} × "
        f"{28 // SIZES[scale].by} pixels, {SIZES[scale].rounds} rounds, {SIZES[scale].percentile:g}th percentile; the paper "
        "has 4 × (50 + 50) clients and prints neither model nor step nor the sizes of attacks."
    ),
)
