"""Werner, Figures 2.2 and 2.3: linear regressions of four clusters, what the assumptions' constants are and how methods do.

Client i of cluster k has f_i(x) = ‖A_iᵀ(x − x*_k)‖²/(2n) with n = 9 rows in d = 10 dimensions, entries ~ N(k, 1): alone it
is *under*determined (erratum EC-15). As losses are quadratic, a method is a few lines on the clients' Hessians; the tests
hold them against the algorithms of the package. Every step is 1/L of what is averaged, so nothing is tuned: curvature grows
like k², and one step size for all clusters would stop the flat ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.figure import Figure

from coterie.aggregation.radius import Percentile
from coterie.aggregation.threshold import threshold_centers
from coterie.datasets.synthetic import cluster_quadratics
from reproductions.claims import Claim, Margin
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Of, Records, Row, Scale

Array = npt.NDArray[np.float64]
SETTINGS = {"(4, 4)": (4, 4), "(4, 16)": (4, 16), "(16, 4)": (16, 4)}  # (K, n_i)
ROUNDS: dict[Scale, int] = {"quick": 150, "paper": 1000}
EARLY, LOOKS = 100, 40
NEAR = ("(4, 4)", "(4, 16)")  # also started where the author's code does, at x* + N(0, 0.1²)
COMPARED = ("Local", "IFCA", "FC", "GT")
CLOSE = 0.75  # of what GT gains over Local


class World:
    """The clients' Hessians H_i, their gradients' constants b_i = H_i x*, the optima, and where methods start: 0 (IFCA:
    normal models), or `near` the optima, as in the author's code."""

    def __init__(self, clusters: int, members: int, seed: int, near: bool = False) -> None:
        data, truth = cluster_quadratics(clusters=clusters, clients_per_cluster=members, seed=seed, dtype="float64")
        x = data.x.double().numpy().reshape(clusters * members, 9, 10)
        self.hessian: Array = np.einsum("isd,ise->ide", x, x) / 9
        self.clusters, self.k = truth.clusters, clusters
        self.optimum: Array = truth.parameters[truth.clusters]
        self.constant: Array = np.einsum("ide,ie->id", self.hessian, self.optimum)
        self.start: Array = np.random.default_rng([seed, 3]).standard_normal((clusters, 10))
        if near:
            self.start = truth.parameters + 0.1 * self.start
        off = 0.1 * np.random.default_rng([seed, 5]).standard_normal(self.optimum.shape)
        self.origin: Array = self.optimum + off if near else np.zeros_like(off)

    def averaged(self, groups: Any) -> tuple[Array, Array]:
        """Every client's group's mean Hessian and constant."""
        means = {g: (self.hessian[groups == g].mean(0), self.constant[groups == g].mean(0)) for g in np.unique(groups)}
        return np.stack([means[g][0] for g in groups]), np.stack([means[g][1] for g in groups])


def descents(x: Array, hessian: Array, constant: Array) -> Iterator[Array]:
    """Gradient steps of 1/L for every row."""
    step = 1 / np.linalg.eigvalsh(hessian)[:, -1:]
    while True:
        x = np.asarray(x - step * (np.einsum("ide,ie->id", hessian, x) - constant))
        yield x


def inside_groups(world: World, groups: Any) -> Iterator[Array]:
    """Local, Global and GT: everybody descends the mean loss of its group."""
    return descents(world.origin, *world.averaged(groups))


def ifca(world: World) -> Iterator[Array]:
    """Option I with steps by cluster, from normal random models."""
    models = world.start.copy()
    while True:
        off = models[None] - world.optimum[:, None]
        label = np.einsum("nkd,nde,nke->nk", off, world.hessian, off).argmin(1)
        for k in np.unique(label):
            mine = label == k
            mean = world.hessian[mine].mean(0)[None], world.constant[mine].mean(0)[None]
            models[k] = next(descents(models[k : k + 1], *mean))[0]
        yield models[label]


def federated_clustering(world: World, inside: list[Any] | None = None) -> Iterator[Array]:
    """Algorithm 2; the radius is a percentile, half of a cluster's share. `inside` gets who was in the balls."""
    x = world.origin
    step = 1 / np.linalg.eigvalsh(world.hessian)[:, -1:]
    while True:
        at = torch.from_numpy(np.einsum("jde,ie->ijd", world.hessian, x) - world.constant[None])
        centres = threshold_centers([(at[i], at[i, i]) for i in range(len(x))], Percentile(50 / world.k), 10)
        if inside is not None:
            inside[:] = [torch.stack([ball for _, ball in centres]).numpy()]
        x = np.asarray(x - step * torch.stack([centre for centre, _ in centres]).numpy())
        yield x


METHODS: dict[str, Callable[[World], Iterator[Array]]] = {
    "Local": lambda world: inside_groups(world, np.arange(len(world.clusters))),
    "Global": lambda world: inside_groups(world, np.zeros(len(world.clusters), int)),
    "IFCA": ifca,
    "FC": federated_clustering,
    "GT": lambda world: inside_groups(world, world.clusters),
}


def cells(scale: Scale) -> Cells:
    methods = {f"{name}, {method}": (name, method) for name in SETTINGS for method in METHODS}
    near = {f"{name}, {method}, near": (name, method, "near") for name in NEAR for method in COMPARED}
    return {"constants": None, **methods, **near}


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    if cell is None:
        return _constants(World(4, 75, seed))
    name, method, *near = cell
    world, balls = World(*SETTINGS[name], seed, bool(near)), list[Any]()
    steps = federated_clustering(world, balls) if method == "FC" else METHODS[method](world)
    error = [float(np.square(next(steps) - world.optimum).sum(1).mean()) for _ in range(ROUNDS[scale])]
    looks = looked(ROUNDS[scale])
    found = {"error": np.round(np.array(error)[looks - 1], 5).tolist(), "early": error[EARLY - 1], "last": error[-1]}
    if balls:
        same = world.clusters[:, None] == world.clusters[None]
        found["precision"] = float((balls[0] & same).sum() / balls[0].sum())
    return found


def looked(rounds: int) -> npt.NDArray[np.int64]:
    return np.unique(np.geomspace(1, rounds, LOOKS).astype(int))


def _constants(world: World) -> Measured:
    """The ratio (2.7), largest of a cluster's clients, and the gap (2.8), least of its pairs, along GT's path."""
    kept: Measured = {"ratio": [], "mean ratio": [], "gap": []}
    hessian, _ = world.averaged(world.clusters)
    for t, x in zip(range(1, 301), METHODS["GT"](world), strict=False):
        if t not in looked(300):
            continue
        off = x - world.optimum
        own = np.einsum("ide,ie->id", world.hessian, off)
        mean = np.einsum("ide,ie->id", hessian, off)
        ratio = np.square(own - mean).sum(1) / np.square(mean).sum(1)
        first = [int(np.argmax(world.clusters == k)) for k in range(world.k)]
        others = np.einsum("jde,ie->ijd", world.hessian, x[first]) - world.constant[None]
        gaps = np.square(own[first][:, None] - others).sum(2)
        apart = world.clusters[first][:, None] != world.clusters[None]
        kept["ratio"].append([round(float(ratio[world.clusters == k].max()), 3) for k in range(world.k)])
        kept["mean ratio"].append([round(float(ratio[world.clusters == k].mean()), 3) for k in range(world.k)])
        kept["gap"].append([round(float(g[a].min()), 4) for g, a in zip(gaps, apart, strict=True)])
    return kept


def rows(found: Records) -> list[Row]:
    spread = [
        Row(
            "A² (2.7): largest ratio on the path",
            None,
            [np.max(one["ratio"]) for one in found.of("constants")],
            digits=1,
        ),
        Row("Δ² (2.8): least gap on the path", None, [np.min(one["gap"]) for one in found.of("constants")], digits=2),
    ]
    return spread + [
        Row(f"(K, n_i) = {cell}: mean ‖x − x*‖² {when}", None, found.numbers(cell, name), digits=3)
        for cell in cells(found.scale)
        if cell != "constants" and "near" not in cell
        for name, when in (("early", f"after {EARLY} rounds"), ("last", f"after {ROUNDS[found.scale]}"))
    ]


def claims(found: Records) -> list[Claim]:
    looks = {"early": f"after {EARLY} rounds", "last": f"after {ROUNDS[found.scale]}"}
    mean = {look: {m: {s: found.mean(f"{s}, {m}", look) for s in SETTINGS} for m in METHODS} for look in looks}
    ratio = [np.array(one["ratio"]) for one in found.of("constants")]
    gap = [np.array(one["gap"]) for one in found.of("constants")]
    late = max(float(r[-1].max() / r[: len(r) // 2].max()) for r in ratio)
    least, largest = min(float(g.min()) for g in gap), max(float(r.max()) for r in ratio)
    precise = {s: found.mean(f"{s}, FC", "precision") for s in SETTINGS}

    def nearer(one: str, other: str, setting: str, look: str, where: str = "") -> Margin:
        """By how much the first is nearer to the optima."""
        return found.above(f"{setting}, {other}{where}", f"{setting}, {one}{where}", look)

    def close(setting: str, where: str = "") -> Margin:
        """What FC gains over Local less three quarters of what GT gains."""

        def value(of: Of) -> float:
            local, fc, gt = (float(of(f"{setting}, {m}{where}")["early"]) for m in ("Local", "FC", "GT"))
            return (local - fc) - CLOSE * (local - gt)

        return found.margin(f"FC's gain over Local less {CLOSE:g} of GT's", value)

    def says(*methods: str) -> str:
        parts = {
            when: "; ".join(f"{s} " + ", ".join(f"{m} {mean[look][m][s]:.2f}" for m in methods) for s in SETTINGS)
            for look, when in looks.items()
        }
        return "‖x − x*‖² " + ". ".join(f"{when}: {text}" for when, text in parts.items()) + "."

    starts = {"": SETTINGS, ", near": NEAR}
    after = {w: {s: {m: found.mean(f"{s}, {m}{w}", "early") for m in COMPARED} for s in of} for w, of in starts.items()}
    share = {
        where: {s: (one["Local"] - one["FC"]) / (one["Local"] - one["GT"]) for s, one in of.items()}
        for where, of in after.items()
    }
    balls = "Of the members of a ball " + ", ".join(f"{100 * v:.0f} %" for v in precise.values())
    balls += " belong to the client's cluster at the end: gradients inside a cluster differ by up to "
    balls += f"{largest:.0f} times their mean (A²), and Theorem 3 asks for Δ ≳ A⁴σ/δ."
    return [
        Claim(
            "The ratio (2.7) does not grow with time (Figure 2.2).",
            [
                found.margin(
                    "1.5 less the last ratio over the early maximum",
                    lambda of: (
                        1.5
                        - max(of("constants")["ratio"][-1])
                        / np.max(of("constants")["ratio"][: len(of("constants")["ratio"]) // 2])
                    ),
                )
            ],
            f"It ends at {late:.2f} of its early maximum; A², the largest of all, is {largest:.0f}.",
        ),
        Claim(
            "The gap (2.8) is bounded from below.",
            [found.margin("least gap less 0.01", lambda of: np.min(of("constants")["gap"]) - 0.01)],
            f"The least gap, Δ², is {least:.2f}.",
        ),
        Claim(
            "Federated-Clustering beats Local and Global in all three (Figure 2.3).",
            [nearer("FC", other, s, look) for look in looks for s in SETTINGS for other in ("Local", "Global")],
            says("FC", "Local", "Global"),
        ),
        Claim(
            "It beats IFCA in all three.",
            [nearer("FC", "IFCA", s, look) for look in looks for s in SETTINGS],
            says("FC", "IFCA"),
            unlike=balls,
        ),
        Claim(
            "It is close to GT for n_i = 16.",
            [close("(4, 16)")],
            f"Of what GT gains over Local in {EARLY} rounds it has {100 * share['']['(4, 16)']:.0f} %. {says('FC', 'GT')}",
            unlike=balls,
        ),
        Claim(
            "It is close to GT for n_i = 16 if everybody starts near its optimum, as in the author's code.",
            [close("(4, 16)", ", near")],
            f"Off by N(0, 0.1²) at the start, it has {100 * share[', near']['(4, 4)']:.0f} % of what GT gains in (4, 4) and "
            f"{100 * share[', near']['(4, 16)']:.0f} % in (4, 16); of the members of a ball "
            + " and ".join(f"{100 * found.mean(f'{s}, FC, near', 'precision'):.0f} %" for s in NEAR)
            + " belong to the client's cluster. IFCA, started there too, is at least as good: "
            + "; ".join(f"{s} " + ", ".join(f"{m} {v:.4f}" for m, v in of.items()) for s, of in after[", near"].items())
            + ".",
        ),
    ]


def wide(found: Records) -> pd.DataFrame:
    """Mean ‖x − x*‖² early and at the end; a line a method."""
    when = {"early": f"after {EARLY} rounds", "last": f"after {ROUNDS[found.scale]}"}
    return pd.DataFrame(
        {"mean ‖x − x*‖²": method}
        | {
            f"(K, n_i) = {setting} {text}": row.shown
            for setting in SETTINGS
            for name, text in when.items()
            for row in [Row("", None, found.numbers(f"{setting}, {method}", name))]
        }
        for method in METHODS
    )


def draw(found: Records) -> Figure:
    figure, axes = panels(5, columns=5, width=2.8)
    x = looked(300)
    one = found.of("constants")[0]
    for ax, name, title in ((axes[0], "mean ratio", "ratio (2.7)"), (axes[1], "gap", "gap (2.8)")):
        values = np.array(one[name])
        curves(ax, list(x), {f"cluster {k + 1}": values[:, k] for k in range(4)}, title, "round")
        ax.set(yscale="log", xscale="log")
    axes[1].axhline(np.min(one["gap"]), color="red", ls="--", lw=1)
    axes[0].axhline(np.max(one["ratio"]), color="red", ls="--", lw=1, label="largest of a client")
    axes[0].legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1, 0.55))
    for ax, name in zip(axes[2:], SETTINGS, strict=True):
        lines = {m: [one["error"] for one in found.of(f"{name}, {m}")] for m in METHODS}
        curves(ax, list(looked(ROUNDS[found.scale])), lines, f"(K, n_i) = {name}", "round")
        ax.set(yscale="log", xscale="log")
    axes[2].set_ylabel("mean ‖x − x*‖²")
    axes[2].legend(fontsize=7, frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="quadratics",
    work="Werner, chapter 2",
    shows="Figures 2.2 and 2.3: synthetic regressions",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="as printed; rounds are not printed",
    wide=wide,
    seeds={"quick": 2, "paper": 10},
    first_seed=10,
    setting=lambda scale: (
        f"Sizes as printed, {ROUNDS[scale]} rounds. Horizon, optima, radius and starts are not printed: x* ~ N(0, I), half "
        "of a cluster's share as percentile, start 0 (IFCA: normal models)."
    ),
    why={
        "": "How the methods order depends on the horizon and the start, which are not printed. The author's code starts at "
        "the optima, off by N(0, 0.1²), and plots ‖x − x*‖."
    },
)
