"""How often IFCA finds groups of very different sizes, from its two starts.

Forty clients in four groups, on MNIST pictures of 14 × 14 pixels: the groups see turned pictures ("turned") or have their
labels permuted ("relabelled"). A run is right when the adjusted Rand index of the clusters found exceeds 0.95. Two more
counts look at some clients only: `right_large` at those with at least eight training rows, since a client with three rows
can fit several models, and `right_others` at those that are not odd. Seed s of the experiment is 300 + s: the start was
designed on seeds below 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.algorithms import IFCA
from coterie.data.federation import Federation
from coterie.datasets.files import load_arrays
from coterie.exchange.channels import Dropout
from coterie.learning.cluster_metrics import adjusted_rand
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.models import mlp
from coterie.learning.task import Task
from coterie.training.run import fit
from reproductions.claims import Claim, Share
from reproductions.drawing import panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale

CLIENTS, TRUE_GROUPS, FIRST_SEED = 40, 4, 300
STARTS = ("updates", "random")


@dataclass(frozen=True)
class World:
    """`shares` of the clients per group; `rows` per client, or the two ends of log-uniform sizes; `odd` clients see one
    class only."""

    shares: tuple[float, ...]
    rows: int | tuple[int, int] = 60
    relabelled: bool = False
    odd: int = 0
    cohort: float | None = None
    dropout: float = 0.0
    clusters: int = TRUE_GROUPS
    clients: int = CLIENTS


EQUAL = (0.25, 0.25, 0.25, 0.25)
WORLDS: dict[str, World] = {
    "equal, 60 rows": World(EQUAL),
    "equal, 20 rows": World(EQUAL, 20),
    ".7/.1/.1/.1": World((0.7, 0.1, 0.1, 0.1)),
    ".85/.05×3": World((0.85, 0.05, 0.05, 0.05)),
    ".85/.05×3 relabelled": World((0.85, 0.05, 0.05, 0.05), relabelled=True),
    ".7/.1/.1/.1, two odd clients": World((0.7, 0.1, 0.1, 0.1), odd=2),
    "equal, 4–400 rows": World(EQUAL, (4, 400)),
    ".7/.1/.1/.1, 10 % cohorts": World((0.7, 0.1, 0.1, 0.1), cohort=0.1),
    ".7/.1/.1/.1, 30 % lost": World((0.7, 0.1, 0.1, 0.1), dropout=0.3),
    ".7/.1/.1/.1, k = 6": World((0.7, 0.1, 0.1, 0.1), clusters=6),
    ".7/.1/.1/.1, k = 3": World((0.7, 0.1, 0.1, 0.1), clusters=3),
}


def federation(world: World, seed: int) -> Federation:
    """The clients of one world."""
    pictures, labels = load_arrays("mnist.npz", "x_train", "y_train")
    rng = np.random.default_rng([seed, 41])
    order = rng.permutation(len(pictures))
    counts = np.round(np.array(world.shares) * world.clients).astype(int)
    counts[0] += world.clients - counts.sum()
    truth = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    relabel = [np.arange(10), *(rng.permutation(10) for _ in counts[1:])]
    if isinstance(world.rows, int):
        sizes = np.full(world.clients, world.rows)
    else:
        low, high = np.log(world.rows)
        sizes = np.exp(rng.uniform(low, high, world.clients)).astype(int)
    data, at = {}, 0
    for i, (group, n) in enumerate(zip(truth, sizes, strict=True)):
        rows, at = order[at : at + n], at + n
        x, y = pictures[rows][:, ::2, ::2], labels[rows].astype(np.int64)
        if i < world.odd:
            x, y = (np.resize(a[y == y[0]], a.shape) for a in (x, y))
        x, y = (x, relabel[group][y]) if world.relabelled else (np.rot90(x, int(group), axes=(1, 2)), y)
        data[f"c{i}"] = ((x.reshape(n, -1) / 255.0).astype(np.float32), y)
    clusters = {f"c{i}": int(g) for i, g in enumerate(truth)}
    return Federation.from_arrays(data, clusters=clusters, kind="classification", seed=seed, one_class="allow")


def one(world: World, start: str, seed: int, rounds: int = 12) -> dict[str, Any]:
    """One run: the agreement with the true groups, over all clients, those with eight rows or more and those not odd."""
    data = federation(world, seed)
    local = LocalSGD(steps=10, lr=0.1, batch_size=None)
    algorithm = IFCA(clusters=world.clusters, local=local, start=start)  # type: ignore[arg-type]
    task = Task(model=mlp(196, 32, 10), loss="cross_entropy", metric="accuracy")
    result = fit(
        algorithm,
        data,
        task,
        rounds=rounds if world.cohort is None else 4 * rounds,
        seed=seed,
        cohort=world.cohort,
        channels=[Dropout(world.dropout)] if world.dropout else [],
        alone=False,
        progress=False,
    )
    truth, large = np.asarray(data.clusters), data.n_train >= 8
    found = result.clusters.to_numpy()
    return {
        "ari": float(adjusted_rand(found, truth)),
        "ari_large": float(adjusted_rand(found[large], truth[large])),
        "ari_others": float(adjusted_rand(found[world.odd :], truth[world.odd :])),
        "accuracy": float(result.evaluate()["accuracy"].mean()),
    }


def cells(scale: Scale) -> Cells:
    """Both starts, but in the worlds after "equal, 4–400 rows" (and there) the start from updates alone."""
    names = list(WORLDS) if scale == "paper" else ["equal, 20 rows", ".85/.05×3"]
    both = names[: names.index("equal, 4–400 rows")] if scale == "paper" else names
    return {
        f"{name}/{start}": (name, start) for name in names for start in STARTS if start == "updates" or name in both
    }


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    name, start = cell
    return one(WORLDS[name], start, FIRST_SEED + seed, rounds=12 if scale == "paper" else 6)


def table(found: Records) -> pd.DataFrame:
    """Runs that were right, of all, per world and start."""
    lines = []
    for name in WORLDS:
        line: dict[str, str] = {"groups": name}
        for start, title in zip(STARTS, ("from updates", "random"), strict=True):
            runs = found.of(f"{name}/{start}")
            index = np.array([run["ari"] for run in runs])
            line[f"{title}: right"] = _right(runs) if runs else ""
            line[f"{title}: index ± s.e."] = Row("", None, index.tolist(), digits=2).shown if runs else ""
        if line["from updates: right"]:
            lines.append(line)
    return pd.DataFrame(lines)


def _right(runs: list[Measured]) -> str:
    """Of how many runs the index exceeds 0.95; also for the large and the ordinary clients where that is another number."""
    all_, large, others = (sum(run[name] > 0.95 for run in runs) for name in ("ari", "ari_large", "ari_others"))
    also = f" ({large} among clients with eight rows or more)" if large != all_ else ""
    also += f" ({others} without the odd clients)" if others != all_ else ""
    return f"{all_} of {len(runs)}{also}"


def rows(found: Records) -> list[Row]:
    return [Row(cell, None, found.numbers(cell, "ari"), digits=2) for cell in found.values]


def claims(found: Records) -> list[Claim]:
    names = [cell.rsplit("/", 1)[0] for cell in found.values if cell.endswith("/random")]
    pairs = {n: tuple(found.mean(f"{n}/{start}", "ari") for start in STARTS) for n in names}
    right = [run["ari"] > 0.95 for n in names for run in found.of(f"{n}/updates") if "odd" not in n]
    return [
        Claim(
            "The start from updates finds groups of very different sizes.",
            [Share("share of runs that are right less 0.9", right, 0.9)],
            f"{sum(right)} of {len(right)} runs without odd clients are right.",
        ),
        Claim(
            "It finds them better than random models in every world.",
            [found.above(f"{n}/updates", f"{n}/random", "ari") for n in names],
            "; ".join(f"{n}: {a:.2f} and {b:.2f}" for n, (a, b) in pairs.items()) + ".",
        ),
    ]


def draw(found: Records) -> Figure:
    figure, (ax,) = panels(1, width=7.5, height=4)
    names = [name for name in WORLDS if found.of(f"{name}/updates")]
    places = np.arange(len(names))[::-1]
    for shift, start, colour in ((0.2, "updates", "#2a7f62"), (-0.2, "random", "0.65")):
        has = [found.of(f"{n}/{start}") for n in names]
        values = [np.mean([run["ari"] for run in runs]) if runs else np.nan for runs in has]
        ax.barh(places + shift, values, height=0.38, color=colour, label=f"start: {start}")
    ax.set_yticks(places, names, fontsize=8)
    ax.set_xlabel("adjusted Rand index with the true groups")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="lopsided",
    work="Beyond the papers",
    shows="IFCA's starts and groups of very different sizes",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    needs=("mnist",),
    seeds={"quick": 2, "paper": 10},
    setting=lambda scale: (
        "40 clients in four groups, MNIST of 14 × 14 pixels, 32 hidden units, "
        + ("12 rounds (48 with cohorts of 10 %)." if scale == "paper" else "two worlds, 6 rounds.")
        + " Right: an index above 0.95."
    ),
    size="not in the paper",
    wide=table,
    ragged=True,
)
