"""Liars against clustered learning: every attack, some shares of liars, robust and plain methods.

Thirty clients in three groups of ten that number the digits differently, on MNIST pictures of 14 × 14 pixels, 60 rows per
client. The liars are spread evenly over the groups, or are six of the ten in the first one. The table shows the accuracy of
the honest clients' own models on their test rows.
Seed s of the experiment is 300 + s.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.aggregation import GeometricMedian, Median, MultiKrum, NearestNeighbourMixing, TrimmedMean
from coterie.aggregation.radius import Percentile
from coterie.algorithms import IFCA, FedAvg, FederatedClustering, Local
from coterie.data.federation import Federation
from coterie.errors import CoterieWarning, Diverged
from coterie.exchange.channels import attacks
from coterie.learning.cluster_metrics import adjusted_rand
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.models import mlp
from coterie.learning.task import Task
from coterie.training.guarded import fit_guarded
from coterie.training.run import fit
from reproductions.claims import Claim
from reproductions.drawing import panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.lopsided import FIRST_SEED, World, federation

GROUPS, MEMBERS, ROUNDS = 3, 10, 8
WORLD = World((1 / 3, 1 / 3, 1 / 3), relabelled=True, clusters=GROUPS, clients=GROUPS * MEMBERS)
SHARES: dict[str, tuple[int, ...]] = {"30 %": (3, 3, 3), "10 %": (1, 1, 1), "6 of one group's 10": (6, 0, 0)}
"""Liars per group."""
GUARDED = ", guarded"
SLOW, CAPTURED = "Federated-Clustering", "6 of one group's 10"
STEPS = LocalSGD(steps=10, lr=0.1, batch_size=None)
BALL = Percentile(20)

ATTACKS: dict[str, Callable[[list[str]], list[attacks.Attack]]] = {
    "sign flip ×3": lambda liars: [attacks.SignFlip(liars, scale=3.0)],
    "large ×100": lambda liars: [attacks.LargeGradient(liars)],
    "noise": lambda liars: [attacks.GaussianNoise(liars)],
    "label flip": lambda liars: [attacks.LabelFlip(liars)],
    "inner product": lambda liars: [attacks.InnerProduct(liars)],
    "ALIE, z = 1": lambda liars: [attacks.ALIE(liars, z=1.0)],
    "edge of the ball": lambda liars: [attacks.EdgeAttack(liars, radius=BALL)],
    "false claims, sign flip": lambda liars: [attacks.FalseClaims(liars), attacks.SignFlip(liars, scale=3.0)],
}


def methods(liars: int) -> dict[str, tuple[Any, int]]:
    """Algorithm and rounds; rules that need the number of liars get the right one."""

    def ifca(rule: Any) -> tuple[Any, int]:
        return IFCA(clusters=GROUPS, local=STEPS, aggregate=rule), ROUNDS

    return {
        "FedAvg": (FedAvg(STEPS), ROUNDS),
        "FedAvg, median": (FedAvg(STEPS, aggregate=Median()), ROUNDS),
        "FedAvg, trimmed mean": (FedAvg(STEPS, aggregate=TrimmedMean(liars)), ROUNDS),
        "IFCA": (IFCA(clusters=GROUPS, local=STEPS), ROUNDS),
        "IFCA, geometric median": ifca(GeometricMedian()),
        "IFCA, multi-Krum": ifca(MultiKrum(liars)),
        "IFCA, mixing and median": ifca(NearestNeighbourMixing(liars)),
        SLOW: (FederatedClustering(lr=1.0, radius=BALL), 2 * ROUNDS),
        "IFCA" + GUARDED: (IFCA(clusters=GROUPS, local=STEPS), ROUNDS),
        SLOW + GUARDED: (FederatedClustering(lr=1.0, radius=BALL), 2 * ROUNDS),
        "Local": (Local(STEPS), ROUNDS),
    }


def chosen_liars(data: Federation, share: str) -> list[str]:
    """The first clients of every group."""
    truth = np.asarray(data.clusters)
    groups = [np.flatnonzero(truth == g)[:count] for g, count in enumerate(SHARES[share])]
    return [str(data.clients[i]) for i in np.concatenate(groups)]


def one(attack: str, share: str, method: str, seed: int) -> dict[str, Any]:
    """The honest clients' accuracy and the agreement of their clusters with the truth; 0 for a run that diverged."""
    data = federation(WORLD, seed)
    liars = chosen_liars(data, share)
    honest = ~np.isin(data.clients, liars)
    algorithm, rounds = methods(len(liars))[method]
    channels = [] if attack == "none" else ATTACKS[attack](liars)
    task = Task(model=mlp(196, 32, 10), loss="cross_entropy", metric="accuracy")
    if method.endswith(GUARDED):
        told: dict[str, Any] = {"channels": channels, "progress": False}
        kept = fit_guarded(
            algorithm, data, task, rounds=rounds, alone=Local(STEPS), alone_rounds=ROUNDS, seed=seed, **told
        )
        shares = (kept.table["uses"] == "shared").to_numpy()[honest].mean()
        return {"accuracy": float(kept.scores()["accuracy"].to_numpy()[honest].mean()), "shared": float(shares)}
    try:
        result = fit(algorithm, data, task, rounds=rounds, seed=seed, channels=channels, alone=False, progress=False)
    except Diverged:
        return {"accuracy": 0.0, "ari": 0.0, "diverged": True}
    found, truth = result.clusters.to_numpy()[honest], np.asarray(data.clusters)[honest]
    return {
        "accuracy": float(result.evaluate()["accuracy"].to_numpy()[honest].mean()),
        "ari": float(adjusted_rand(found, truth)),
    }


def planned(attack: str, share: str, method: str) -> bool:
    """Local models hear nobody, so no attack reaches them. Federated-Clustering, ten times as slow as the rest, is attacked
    by 30 % only, and so are guarded methods. A captured group meets three attacks."""
    if method == "Local" and attack != "none":
        return False
    if share == CAPTURED and attack not in ("none", "sign flip ×3", "large ×100", "label flip"):
        return False
    if method == SLOW + GUARDED and attack not in ("none", "inner product", "edge of the ball"):
        return False
    return share == "30 %" or (not method.startswith(SLOW) and GUARDED not in method)


def cells(scale: Scale) -> Cells:
    if scale == "quick":
        few = [("none", m) for m in ("IFCA", "IFCA, geometric median", "Local")]
        few += [("sign flip ×3", m) for m in ("IFCA", "IFCA, geometric median")]
        return {f"{attack}/30 %/{method}": (attack, "30 %", method) for attack, method in few}
    return {
        f"{attack}/{share}/{method}": (attack, share, method)
        for share, spread in SHARES.items()
        for attack in ("none", *ATTACKS)
        for method in methods(sum(spread))
        if planned(attack, share, method)
    }


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        attack, share, method = cell
        return one(attack, share, method, FIRST_SEED + seed)


def table(found: Records) -> pd.DataFrame:
    """Mean accuracy per share and method (rows) and attack (columns)."""
    order = [a for a in ("none", *ATTACKS) if any(cell.startswith(f"{a}/") for cell in found.values)]
    lines = []
    for share, spread in SHARES.items():
        for method in methods(sum(spread)):
            runs = {a: found.of(f"{a}/{share}/{method}") for a in order}
            means = {a: f"{np.mean([r['accuracy'] for r in by]):.2f}" if by else "" for a, by in runs.items()}
            if any(means.values()):
                lines.append({"share of liars": share, "method": method, **means})
    return pd.DataFrame(lines)


def rows(found: Records) -> list[Row]:
    return [Row(cell, None, found.numbers(cell, "accuracy"), digits=2) for cell in found.values]


def claims(found: Records) -> list[Claim]:
    plain, robust = (found.mean(f"sign flip ×3/30 %/{m}", "accuracy") for m in ("IFCA", "IFCA, geometric median"))
    kept = [cell for cell in found.values if cell.endswith(GUARDED)] or ["none/30 %/IFCA"]
    before, alone = (found.mean(f"none/30 %/{m}", "accuracy") for m in ("IFCA", "Local"))
    return [
        Claim(
            "A third of liars breaks plain IFCA.",
            [found.above("none/30 %/Local", "sign flip ×3/30 %/IFCA", "accuracy")],
            f"{before:.2f} without, {plain:.2f} with them.",
        ),
        Claim(
            "A geometric median keeps it above training alone.",
            [found.above("sign flip ×3/30 %/IFCA, geometric median", "none/30 %/Local", "accuracy")],
            f"{robust:.2f} under a sign flip by 30 %, {alone:.2f} alone.",
        ),
        Claim(
            "No attack leaves clients that may fall back on their own models two points below training alone, in the mean.",
            [found.above(cell, "none/30 %/Local", "accuracy", -0.02) for cell in kept],
            f"The lowest of {len(kept)} means is {min((found.mean(cell, 'accuracy') for cell in kept), default=0):.3f}; "
            f"training alone has {found.mean('none/30 %/Local', 'accuracy'):.3f}.",
        ),
    ]


def draw(found: Records) -> Figure:
    """The shares as panels: methods down, attacks across, accuracy as shade."""
    frame = table(found)
    shares = frame["share of liars"].unique()
    figure, axes = panels(len(shares), columns=1, width=8, height=3)
    for ax, share in zip(axes, shares, strict=True):
        part = frame[frame["share of liars"] == share].set_index("method").drop(columns="share of liars")
        values = part.replace("", np.nan).astype(float)
        ax.imshow(values, vmin=0, vmax=0.9, cmap="YlGn", aspect="auto")
        ax.set_xticks(range(values.shape[1]), values.columns, fontsize=7)
        ax.set_yticks(range(len(values)), values.index, fontsize=7)
        for (i, j), value in np.ndenumerate(values.to_numpy()):
            if np.isfinite(value):
                ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7)
        ax.set_title(f"liars: {share}", fontsize=9)
    return figure


EXPERIMENT = Experiment(
    name="attacks",
    work="Beyond the papers",
    shows="Attacks, shares of liars and methods",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    needs=("mnist",),
    seeds={"quick": 1, "paper": 3},
    setting=lambda scale: (
        "Thirty clients in three groups that number the digits differently, MNIST of 14 × 14 pixels, 60 rows per client, "
        "8 rounds of ten full-batch steps (Federated-Clustering: 16 steps of 1, 20th percentile). Accuracy of the honest "
        "clients' own models; rules that need the number of liars get the right one."
    ),
    size="not in the paper",
    wide=table,
    ragged=True,
)
