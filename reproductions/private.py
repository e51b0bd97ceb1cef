"""Personalisation × privacy × robustness in one table.

Clients of two groups with opposite labels; each has a few rows. Every method runs plainly, privately (ε = 3, δ = 1e-6, by
simulation), attacked, and both. One client in twenty lies: *loud* liars send their update reversed and fifty times as long,
*sly* ones send twenty times the reversed mean of the honest updates, which they know. The numbers are mean test accuracies
of the honest clients' own models, with standard errors over seeds (data, start and noise are drawn anew for each).
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import nn

from coterie.aggregation import CentredClipping
from coterie.algorithms import IFCA, Ditto, FedAvg, FineTuned, HypCluster, Local, Oracle
from coterie.data.federation import Federation
from coterie.errors import CoterieWarning, Diverged
from coterie.exchange.channels.attacks import InnerProduct, SignFlip
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.training.run import fit
from reproductions.claims import Claim, Margin
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale

SIZES: dict[Scale, tuple[int, int]] = {"quick": (600, 12), "paper": (2_000, 20)}  # clients, rounds
FEATURES, ROWS, TEST_ROWS = 8, 12, 8
LIARS, LOUDER, SLYER = 0.05, 50.0, 20.0
PRIVACY = Privacy(3.0, 1e-6, clip=0.5, noise="simulation")
CONDITIONS = ("none", "private", "loud", "private + loud", "sly", "private + sly")


@lru_cache(maxsize=1)
def world(clients: int, seed: int = 0) -> Federation:
    """Two equal groups: the same features, opposite labels, one label in ten wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=FEATURES)
    group = np.arange(clients) % 2
    x = rng.normal(size=(clients, ROWS + TEST_ROWS, FEATURES)).astype(np.float32)
    y = ((x @ truth > 0) ^ (group[:, None] == 1) ^ (rng.random(x.shape[:2]) < 0.1)).astype(np.int64)
    return Federation.from_flat(
        x.reshape(-1, FEATURES),
        y.reshape(-1),
        sizes=np.full(clients, ROWS + TEST_ROWS),
        clients=range(clients),
        clusters=group,
        n_test=np.full(clients, TEST_ROWS),
        one_class="allow",
    )


def methods() -> dict[str, Any]:
    local = LocalSGD(steps=5, lr=0.3, batch_size=None)
    return {
        "local": Local(local),
        "fedavg": FedAvg(local),
        "fedavg, centred clipping": FedAvg(local, aggregate=CentredClipping(PRIVACY.clip, 1)),
        "finetuned": FineTuned(base=FedAvg(local)),
        "ditto": Ditto(local=local),
        "hypcluster": HypCluster(clusters=2, local=local),
        "ifca": IFCA(clusters=2, local=local, start="random"),
        "finetuned ifca": FineTuned(base=IFCA(clusters=2, local=local, start="random")),
        "oracle": Oracle(local),
    }


def cells(scale: Scale) -> Cells:
    return {f"{name} | {condition}": (name, condition) for name in methods() for condition in CONDITIONS}


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """Mean accuracy of the honest clients' own models; None where the run diverged."""
    name, condition = cell
    clients, rounds = SIZES[scale]
    liars = list(range(0, clients, round(1 / LIARS)))
    attacks: dict[str, Any] = {"loud": SignFlip(liars, LOUDER), "sly": InnerProduct(liars, SLYER)}
    options: dict[str, Any] = {"channels": [attack for word, attack in attacks.items() if word in condition]}
    if "private" in condition:
        options["privacy"] = PRIVACY
    options |= {"rounds": rounds, "seed": seed, "alone": False, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        try:
            result = fit(methods()[name], world(clients, seed), Task(lambda: nn.Linear(FEATURES, 2)), **options)
        except Diverged:
            return {"accuracy": None}
    return {"accuracy": round(float(result.scores()["accuracy"].drop(liars).mean()), 5)}


def _accuracies(found: Records, cell: str) -> list[float]:
    return [np.nan if one["accuracy"] is None else one["accuracy"] for one in found.of(cell)]


def rows(found: Records) -> list[Row]:
    return [Row(cell.replace(" | ", ", "), None, _accuracies(found, cell)) for cell in found.values]


def claims(found: Records) -> list[Claim]:
    mean = {cell: float(np.mean(_accuracies(found, cell))) for cell in found.values}

    def accuracy(one: str, other: str, by: float) -> Margin:
        """A run that diverged has none."""
        return found.margin(
            f"{one} less {other} and {by:g}", lambda of: (of(one)["accuracy"] or 0) - (of(other)["accuracy"] or 0) - by
        )

    private, ruined, defended = (mean[f"ifca | {c}"] for c in ("private", "loud", "private + loud"))
    return [
        Claim(
            "With many clients and few parameters privacy costs groups next to nothing.",
            [accuracy("ifca | private", "ifca | none", -0.03)],
            f"IFCA {mean['ifca | none']:.3f}, private {private:.3f}.",
        ),
        Claim(
            "The clip of a private run is also a defence against loud liars.",
            [accuracy("ifca | private + loud", "ifca | loud", 0.1)],
            f"IFCA under attack {ruined:.3f}, private {defended:.3f}.",
        ),
    ]


def draw(found: Records) -> Figure:
    shown = [row for row in rows(found) if row.what.startswith(("ifca", "local", "fedavg,", "finetuned,"))]
    return beside([row for row in shown if np.isfinite(row.mean)], "mean accuracy of honest clients", zero=False)


def wide(found: Records) -> pd.DataFrame:
    """A line a method, a column a condition."""
    lines = [
        {"method": name} | {c: row.shown for c, row in by}
        for name in methods()
        for by in [[(c, Row("", None, _accuracies(found, f"{name} | {c}"))) for c in CONDITIONS]]
    ]
    return pd.DataFrame(lines)


EXPERIMENT = Experiment(
    name="private-composition",
    work="Beyond the papers",
    shows="Personalisation, privacy and liars together",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="not in the paper",
    wide=wide,
    seeds={"quick": 1, "paper": 3},
    setting=lambda scale: (
        f"{SIZES[scale][0]:,} clients in two groups with opposite labels, {SIZES[scale][1]} rounds, ε = 3, "
        "δ = 1e-6, clip 0.5; one client in twenty lies."
    ),
)
