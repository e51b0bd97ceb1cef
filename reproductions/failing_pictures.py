"""Three small worlds in which well-known ways to find groups fail, and what Federated-Clustering does there.

    python -m reproductions.failing_pictures pictures/

Every client owns one loss function of a single number x, so a whole training run is a line in a picture. All three come
from chapter 2 of Werner's dissertation; the numbers below are exact and are checked by the tests.

1. *Grouping by today's gradients* (Myopic-Clustering). Clients 1 and 2 belong together: both are best off at 0. They walk
   together for one step and reach 1, where client 2 stands on a flat spot: its gradient is 0 although it has not arrived.
   Client 3 has arrived at 2 and has gradient 0 too. From now on the server puts 2 and 3 together, for ever.
2. *Grouping by loss* (IFCA, HypCluster). Two clients want −½ and +½. The models start at −1.5 and 0, and both clients find
   the second one better. Their pulls on it cancel, so it never moves, and the first model is never used.
3. *Splitting once and never merging* (CFL). Client 3's gradients are noisy: half of the time they look exactly like those
   of client 1, to which it does not belong. A split made at such a moment parts it from client 2 for good.

Federated-Clustering asks everybody for the gradient *at the same point*, anew in every round, so it gets all three right.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from torch import Tensor

import coterie as ct
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
    vanishing_loss,
)

COLOURS = ("#0072B2", "#D55E00", "#009E73")  # clients 1, 2, 3
WIDTHS = (4.2, 2.2, 1.2)


# ---- pictures --------------------------------------------------------------------------------------------------------


def draw(
    title: str,
    curves: list[Any],
    span: tuple[float, float, float],
    panels: list[tuple[str, Tensor]],
    goals: list[float],
    file: Path,
) -> None:
    """The losses, and one panel with every client's path for each algorithm; dotted lines are what the clients want.

    span: the losses are drawn for x from span[0] to span[1] and up to the height span[2]."""
    figure, axes = plt.subplots(1, 1 + len(panels), figsize=(4 + 3.4 * len(panels), 4.1), layout="constrained")
    grid = torch.linspace(span[0], span[1], 400, dtype=torch.float64)
    for i, f in enumerate(curves):
        axes[0].plot(grid, f(grid), color=COLOURS[i], linewidth=WIDTHS[i], label=f"client {i + 1}")
    axes[0].set(xlabel="x", ylabel="loss", title="what each client minimises", ylim=(-0.03 * span[2], span[2]))
    everywhere = torch.cat([torch.tensor(goals, dtype=torch.float64), *(path.flatten() for _, path in panels)])
    low, high = float(everywhere.min()), float(everywhere.max())
    for ax, (name, path) in zip(axes[1:], panels, strict=True):
        for goal in sorted(set(goals)):
            ax.axhline(goal, color="0.6", linewidth=1, linestyle=":")
        for i in range(path.shape[1]):  # thinner lines later: where two coincide both are seen
            ax.plot(path[:, i], color=COLOURS[i], linewidth=WIDTHS[i])
        margin = 0.08 * (high - low)
        ax.set(xlabel="round", ylabel="x", title=name, ylim=(low - margin, high + margin))
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontweight="bold")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def draw_vanishing(folder: Path) -> None:
    fed, task = vanishing()
    clustering = ct.FederatedClustering(lr=ETA, radius=1 / (2 * ETA))
    panels = [
        ("grouping today's gradients", positions(ct.MyopicClustering(clusters=2, lr=ETA), fed, task, start(1.5), 25)),
        ("Federated-Clustering", positions(clustering, fed, task, start(1.5), 25)),
    ]
    curves = [lambda x, c=c: vanishing_loss(x, torch.full_like(x, c)) for c in (1, 2, 3)]
    draw(
        "Client 2 is left behind on its flat spot at 1",
        curves,
        (-0.7, 2.6, 12.0),
        panels,
        [0, 0, 2],
        folder / "vanishing.png",
    )


def draw_stuck(folder: Path) -> None:
    fed, task = stuck()
    ifca = ct.IFCA(clusters=2, local=ct.LocalSGD(steps=1, lr=0.2), option="gradient")
    clustering = ct.FederatedClustering(lr=0.1, radius=1.9)
    panels = [
        ("IFCA, models at −1.5 and 0", positions(ifca, fed, task, two_models(ifca, -1.5, 0.0), 20)),
        ("IFCA, models at −1 and 1", positions(ifca, fed, task, two_models(ifca, -1.0, 1.0), 20)),
        ("Federated-Clustering", positions(clustering, fed, task, own_models(clustering, -1.5, 0.0), 20)),
    ]
    curves = [lambda x: (x + 0.5) ** 2, lambda x: (x - 0.5) ** 2]
    draw(
        "Both clients share one model for ever, unless the start is lucky",
        curves,
        (-2.0, 2.0, 6.5),
        panels,
        [-0.5, 0.5],
        folder / "stuck.png",
    )


def draw_noisy(folder: Path) -> None:
    fed, task = noisy()
    clustering = ct.FederatedClustering(lr=0.1, radius=0.3, batch_size=1)
    panels = []
    for seed in range(20):  # the first seed whose split parts clients 2 and 3
        result = ct.fit(splitting(), fed, task, rounds=1, seed=seed, start=start(1 / 3), alone=False)
        if result.clusters[2] != result.clusters[3]:
            path = positions(splitting(), fed, task, start(1 / 3), 120, seed)
            panels.append(("CFL after an unlucky split", path))
            break
    panels.append(("Federated-Clustering", positions(clustering, fed, task, start(1 / 3), 120)))
    curves = [lambda x: x**2 / 2, lambda x: (x - 0.5) ** 2 / 2, lambda x: (x**2 + (x - 1) ** 2) / 4]
    draw(
        "Clients 2 and 3 both want ½; a split by noise parts them",
        curves,
        (-0.7, 1.3, 1.0),
        panels,
        [0, 0.5, 0.5],
        folder / "noisy.png",
    )


def main(folder: Path) -> None:
    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    for picture in (draw_vanishing, draw_stuck, draw_noisy):
        picture(folder)
    for file in sorted(folder.glob("*.png")):
        print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "pictures"))
