"""Werner, Figure 2.7: how far the centres of Threshold-Clustering are from the true ones after l inner rounds.

90 points in 10 dimensions around 10 centres, σ = 0.5, 1, 2, 4, the radius the 10th percentile of the distances, every point
the start of its own centre. The text reads the elbows as l ≳ log σ; the bound of Theorem 1 is log(Δ/σ)/|log(1 − δ/2)|, which
falls in σ (erratum EC-16). The elbow is the first l at which 95 % of the way are made; the printed score has no threshold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.aggregation.radius import Percentile
from coterie.aggregation.threshold import threshold_clustering
from coterie.datasets.synthetic import blobs
from reproductions.claims import Claim
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale

NOISES, INNER, DELTA = (0.5, 1.0, 2.0, 4.0), 80, 0.1


def cells(scale: Scale) -> Cells:
    return {f"σ = {sigma:g}": sigma for sigma in NOISES}


def measure(sigma: Any, seed: int, scale: Scale) -> Measured:
    """The mean distance of the centres to the true ones before and after every inner round."""
    _, world = blobs(noise_variance=sigma**2, seed=seed)
    centres, truth, distance = world.points, world.centres[world.clusters], []
    for _ in range(INNER + 1):
        distance.append(float(np.linalg.norm(centres - truth, axis=1).mean()))
        centres = threshold_clustering_step(world.points, centres)
    gap = np.linalg.norm(world.centres[:, None] - world.centres[None], axis=2)[~np.eye(10, dtype=bool)].min()
    bound = np.log(gap / (sigma * np.sqrt(10))) / -np.log(1 - DELTA / 2)
    way = np.array(distance) - min(distance)
    return {
        "distance": np.round(distance, 4).tolist(),
        "elbow": int(np.argmax(way <= 0.05 * way[0])),
        "bound": round(float(bound), 2),
    }


def threshold_clustering_step(points: Any, centres: Any) -> Any:
    """One inner round for every centre."""
    return threshold_clustering(points, centres, Percentile(100 * DELTA), 1, history=False).centers


def rows(found: Records) -> list[Row]:
    lines = [
        (f"σ = {s:g}: {text}", found.numbers(f"σ = {s:g}", name) if name else _end(found, s), digits)
        for s in NOISES
        for text, name, digits in (
            ("elbow", "elbow", 1),
            ("bound of Theorem 1 on l", "bound", 1),
            ("distance to the true centre at the end, in units of σ√10", "", 2),
        )
    ]
    return [Row(what, None, values, digits=digits) for what, values, digits in lines]


def _end(found: Records, sigma: float) -> list[float]:
    return [one["distance"][-1] / (sigma * np.sqrt(10)) for one in found.of(f"σ = {sigma:g}")]


def _way(one: Measured, start: int, end: int) -> float:
    return float(one["distance"][start] - one["distance"][end])


def claims(found: Records) -> list[Claim]:
    curve = {s: found.curve(f"σ = {s:g}", "distance") for s in NOISES}
    elbow = [found.mean(f"σ = {s:g}", "elbow") for s in NOISES]
    first, last = (np.array(found.numbers(f"σ = {s:g}", "elbow")) for s in (NOISES[0], NOISES[-1]))
    growth = Row("", None, (last - first).tolist())
    rise, unsure = growth.mean, growth.error
    share = [(c[0] - c[30]) / (c[0] - c.min()) for c in curve.values()]
    return [
        Claim(
            "Distances fall fast at first and are flat later.",
            [
                found.margin(
                    f"way of rounds 0 to 20 less 4 times that of 40 to 60, σ = {s:g}",
                    lambda of, s=s: _way(of(f"σ = {s:g}"), 0, 20) - 4 * abs(_way(of(f"σ = {s:g}"), 40, 60)),
                )
                for s in NOISES
            ],
            "Of the whole way "
            + ", ".join(f"{100 * v:.0f} %" for v in share)
            + f" are made in 30 rounds (σ = {', '.join(f'{s:g}' for s in NOISES)}).",
        ),
        Claim(
            "The number of rounds needed grows with σ, l ≳ log σ (EC-16: the bound falls in σ).",
            [found.above(f"σ = {NOISES[-1]:g}", f"σ = {NOISES[0]:g}", "elbow")],
            "Elbows at "
            + ", ".join(f"{e:.1f}" for e in elbow)
            + f", from first to last {rise:+.1f} ± {unsure:.1f}; bounds "
            + ", ".join(f"{found.mean(f'σ = {s:g}', 'bound'):.0f}" for s in NOISES)
            + ".",
            unlike="Our elbows cannot tell; the bound, which the text says grows with σ, falls (EC-16).",
        ),
    ]


def draw(found: Records) -> Figure:
    figure, axes = panels(4, columns=4, width=2.8, height=2.8)
    for ax, sigma in zip(axes, NOISES, strict=True):
        cell = f"σ = {sigma:g}"
        curves(ax, range(INNER + 1), {"distance": [one["distance"] for one in found.of(cell)]}, cell, "inner round l")
        ax.axvline(found.mean(cell, "elbow"), color="0.5", ls="--", lw=1, label="elbow")
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel("mean distance to the true centre")
    axes[0].legend(fontsize=8, frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="inner-rounds",
    work="Werner, chapter 2",
    shows="Figure 2.7: inner rounds of Threshold-Clustering",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="as printed",
    seeds={"quick": 10, "paper": 10},
    setting=lambda scale: "90 points, 10 clusters, 10 dimensions, 10 repeats, as printed; every point starts a centre.",
)
