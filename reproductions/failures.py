"""Werner, Figure 2.1: worlds of one number in which Myopic-Clustering, IFCA, HypCluster and CFL fail, and
Federated-Clustering does not.

The paths are exact. What differs from the text: in the first world client 2 oscillates with the figure's η = 0.5 (erratum
EC-11), and in the third the common optimum is 1/3 and CFL's wrong split {1, 3}, {2} (EC-10).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.algorithms import IFCA, FedAvg, FederatedClustering, HypCluster, MyopicClustering
from coterie.learning.local_sgd import LocalSGD
from coterie.training.run import fit
from reproductions.claims import Claim, Margin, Share, sure
from reproductions.drawing import COLOURS, curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.failing_worlds import (
    ETA,
    noisy,
    own_models,
    positions,
    splitting,
    start,
    stuck,
    two_models,
    vanishing,
)

FC = "Federated-Clustering"
TITLES = {
    "a: myopic": "(a) today's gradients grouped",
    f"a: {FC}": f"(a) {FC}",
    "b: IFCA": "(b) IFCA",
    f"b: {FC}": f"(b) {FC}",
    "c: CFL": "(c) CFL",
    f"c: {FC}": f"(c) {FC}",
}
STUCK: dict[str, Any] = {  # IFCA's options I and II, and HypCluster
    "IFCA": IFCA(clusters=2, local=LocalSGD(steps=1, lr=0.2), option="gradient"),
    "IFCA, option II": IFCA(clusters=2, local=LocalSGD(steps=5, lr=0.2, batch_size=None)),
    "HypCluster": HypCluster(clusters=2, local=LocalSGD(steps=5, lr=0.2, batch_size=None)),
}
SHOWN = 20  # seeds whose paths are kept
GOALS = {"a": (0.0, 0.0, 2.0), "b": (-0.5, 0.5), "c": (0.0, 0.5, 0.5)}


def cells(scale: Scale) -> Cells:
    return {
        cell: cell for cell in (*TITLES, f"a: {FC}, η = 0.5", "b: IFCA, option II", "b: HypCluster", "c: one model")
    }


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """Every client's number after every round; for CFL also whether the split parts clients 2 and 3."""
    world, name = cell.split(": ")
    path, also = _noisy(name, seed) if world == "c" else (_exact(world, name), {})
    tail = path[len(path) // 2 :]
    shown = {"path": path.round(5).tolist()} if seed < SHOWN else {}
    return {**shown, "end": tail.mean(0).round(5).tolist(), **also}


@cache
def _exact(world: str, name: str) -> Any:
    """The paths in (a) and (b), which no seed changes."""
    algorithm: Any
    if world == "a":
        eta = 0.5 if "0.5" in name else ETA
        algorithm = (
            MyopicClustering(clusters=2, lr=eta)
            if name == "myopic"
            else FederatedClustering(lr=eta, radius=1 / (2 * eta))
        )
        return positions(algorithm, *vanishing(eta), start(1.5), 40).numpy()
    if name in STUCK:
        algorithm = STUCK[name]
        return positions(algorithm, *stuck(), two_models(algorithm, -1.5, 0.0), 40).numpy()
    algorithm = FederatedClustering(lr=0.1, radius=1.9)
    return positions(algorithm, *stuck(), own_models(algorithm, -1.5, 0.0), 60).numpy()


def _noisy(name: str, seed: int) -> tuple[Any, Measured]:
    if name == "one model":
        return positions(FedAvg(LocalSGD(steps=1, lr=0.1, batch_size=None)), *noisy(), start(0.4), 80).numpy(), {}
    if name != "CFL":
        clustering = FederatedClustering(lr=0.1, radius=0.3, batch_size=1)
        return positions(clustering, *noisy(), start(1 / 3), 80, seed).numpy(), {}
    fed, task = noisy()
    split = fit(splitting(), fed, task, rounds=1, seed=seed, start=start(1 / 3), alone=False, progress=False).clusters
    together = {f"{a}{b}": float(split[a] == split[b]) for a, b in ((1, 2), (1, 3), (2, 3))}
    return positions(splitting(), fed, task, start(1 / 3), 80, seed).numpy(), {
        "parted": 1 - together["23"],
        **together,
    }


def rows(found: Records) -> list[Row]:
    def ends(cell: str, client: int) -> list[float]:
        return [one["end"][client - 1] for one in found.of(cell)]

    sharp: dict[str, Any] = {"tolerance": 1e-3, "exact": True}
    return [
        Row("(a) today's gradients grouped: client 2 stays at", 1.0, ends("a: myopic", 2), **sharp),
        Row(f"(a) {FC}: client 2 ends at", 0.0, ends(f"a: {FC}", 2), **sharp),
        Row(f"(a) {FC} with the figure's η = 0.5: client 2 around", 0.0, ends(f"a: {FC}, η = 0.5", 2), **sharp),
        *(Row(f"(b) {name}: both clients stay at", 0.0, ends(f"b: {name}", 1), **sharp) for name in STUCK),
        Row(f"(b) {FC}: client 1 ends at", -0.5, ends(f"b: {FC}", 1), **sharp),
        Row("(c) optimum of one model for all", 0.25, ends("c: one model", 1), **sharp),
        Row(
            "(c) CFL parts clients 2 and 3 with probability",
            0.5,
            found.numbers("c: CFL", "parted"),
            digits=2,
            tolerance=0.1,
        ),
        Row(f"(c) {FC}: client 3, average over time", 0.5, ends(f"c: {FC}", 3), tolerance=0.03),
    ]


def claims(found: Records) -> list[Claim]:
    def off(cell: str) -> float:
        goals = GOALS[cell[0]]
        return float(max(abs(e - g) for one in found.of(cell) for e, g in zip(one["end"], goals, strict=True)))

    def mean_off(cell: str) -> float:
        """Of the mean over seeds: with noise a single run goes around its optimum."""
        ends = np.mean([one["end"] for one in found.of(cell)], axis=0)
        return float(np.abs(ends - np.array(GOALS[cell[0]])).max())

    right = {world: off(f"{world}: {FC}") for world in "ab"} | {"c": mean_off(f"c: {FC}")}
    parted = [bool(one["parted"]) for one in found.of("c: CFL")]
    noisy = [
        Margin(
            f"0.05 less {sign:+d} × (client {i + 1}'s end less its optimum)", [0.05 - sign * (e - goal) for e in ends]
        )
        for i, goal in enumerate(GOALS["c"])
        for ends in [[one["end"][i] for one in found.of(f"c: {FC}")]]
        for sign in (1, -1)
    ]
    wild = max(np.abs(np.array(one["path"])[20:, 1]).max() for one in found.of(f"a: {FC}, η = 0.5")[:SHOWN])
    printed = sum(one["12"] for one in found.of("c: CFL"))
    return [
        Claim(
            "Grouping today's gradients leaves client 2 on its saddle for ever (a).",
            [sure("so", off("a: myopic") > 0.99)],
            f"It ends {off('a: myopic'):.2f} away from its optimum.",
        ),
        Claim(
            "IFCA, by option I or II, and HypCluster are stuck (b).",
            [sure("so", min(off(f"b: {name}") for name in STUCK) > 0.49)],
            "Their clients end " + ", ".join(f"{off(f'b: {name}'):.2f}" for name in STUCK) + " from their optima.",
        ),
        Claim(
            "A split by CFL parts clients 2 and 3 for ever, half of the time (c).",
            [
                Share("share of seeds less 1/4", parted, 0.25),
                Share("share of the other seeds less 1/4", [not one for one in parted], 0.25),
            ],
            f"Share of seeds: {found.mean('c: CFL', 'parted'):.2f}.",
        ),
        Claim(
            "Federated-Clustering brings every client to its optimum in all three.",
            [sure("in (a) and (b)", max(right["a"], right["b"]) < 1e-3), *noisy],
            "It ends at most "
            + ", ".join(f"{v:.3f}" for v in right.values())
            + " away, in (c) in the mean over time and "
            f"seeds; a single noisy run goes around its optimum, at most {off(f'c: {FC}'):.2f} away in the mean over time.",
        ),
        Claim(
            "It does so in (a) with the figure's η = 0.5 (EC-11 says no).",
            [sure("so", bool(wild < 0.1))],
            f"As f₂''(0) = 12, client 2 keeps jumping as far as {wild:.2f}; η = {ETA} works.",
            paper_is_wrong=True,
        ),
        Claim(
            "CFL's wrong split is {1, 2}, {3} (EC-10 says {1, 3}, {2}).",
            [Share("share of seeds less 1/5", [bool(one["12"]) for one in found.of("c: CFL")], 0.2)],
            f"{printed:.0f} of {len(found.of('c: CFL'))} seeds.",
            paper_is_wrong=True,
        ),
    ]


def draw(found: Records) -> Figure:
    figure, axes = panels(6, columns=6, width=2.5, height=2.9)
    seed = next((i for i, one in enumerate(found.of("c: CFL")[:SHOWN]) if one["parted"]), 0)
    for ax, (cell, title) in zip(axes, TITLES.items(), strict=True):
        path = np.array(found.of(cell)[seed]["path"])
        for goal in set(GOALS[cell[0]]):
            ax.axhline(goal, color="0.7", lw=1, ls=":")
        for i in range(path.shape[1]):  # thinner lines later: where two coincide both are seen
            ax.plot(path[:, i], color=COLOURS[i], lw=(4.0, 2.4, 1.2)[i], label=f"client {i + 1}")
        curves(ax, [], {}, "", "round")
        ax.set_title(title, fontsize=9)
    axes[0].legend(fontsize=7, frameon=False, loc="upper right", bbox_to_anchor=(1, 0.9))
    return figure


EXPERIMENT = Experiment(
    name="failures",
    work="Werner, chapter 2",
    shows="Figure 2.1: where other ways to find clusters fail",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="as printed",
    seeds={"quick": 4, "paper": 150},
    setting=lambda scale: (
        f"The three worlds as printed, with η = {ETA} in (a). Seeds matter only for the noise in (c)."
    ),
    why={
        f"(a) {FC} with the figure's η = 0.5: client 2 around": "EC-11: η must be at most 1/12, or client 2 jumps about its "
        "optimum for ever; with 0.05 it gets there (row above).",
        "(c) optimum of one model for all": "EC-10: the three gradients add up to 3x − 1, so the optimum is 1/3; 1/4 is the "
        "optimum of clients 1 and 2 alone.",
    },
)
