"""Discrete populations (Ozkara et al., Theorem 5 and Algorithm 1): the published rounds collapse, EM does not (E11)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.estimation.mixtures import MixtureMeans
from reproductions.claims import Claim
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.generate import mixture_clients
from reproductions.printed.mixtures import PrintedMixtureMeans

CENTERS = np.array([[-1.0], [0.0], [1.0]])
ROUNDS = (1, 2, 5, 10)
CLIENTS, SAMPLES = 3000, 4


def models() -> dict[str, MixtureMeans]:
    published: dict[str, MixtureMeans] = {
        f"Algorithm 1, {t} rounds": PrintedMixtureMeans(3, noise_variance=1.0, max_iter=t) for t in ROUNDS
    }
    known = MixtureMeans(prior=(np.full(3, 1 / 3), CENTERS), noise_variance=1.0)
    return published | {"EM": MixtureMeans(3, noise_variance=1.0), "known centres": known}


def cells(scale: Scale) -> Cells:
    return {"three centres": None}


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """Squared error, and half the distance of the outer centres (in truth 1)."""
    data = mixture_clients(CLIENTS, SAMPLES, CENTERS, noise_variance=1.0, rng=np.random.default_rng(seed))
    found = {"local": float(np.square(np.stack([s.mean(0) for s in data.samples]) - data.truth).sum(1).mean())}
    for name, model in models().items():
        model.fit(data.samples)
        found[name] = float(np.square(model.estimates_ - data.truth).sum(1).mean())
        found[f"{name}, half width"] = float(np.ptp(model.centers_)) / 2
    return found


def rows(found: Records) -> list[Row]:
    names = ("local", *models())
    errors = [Row(f"{name}: squared error", None, found.numbers("three centres", name), digits=4) for name in names]
    return errors + [
        Row(f"{name}: half width of the centres", None, found.numbers("three centres", f"{name}, half width"), digits=2)
        for name in names[1:]
    ]


def claims(found: Records) -> list[Claim]:
    mean = {name: found.mean("three centres", name) for name in ("local", *models())}
    last = f"Algorithm 1, {ROUNDS[-1]} rounds"
    return [
        Claim(
            "Personal means are better than local ones (Theorem 5).",
            [found.margin("local less EM", lambda of: of("three centres")["local"] - of("three centres")["EM"])],
            f"EM {mean['EM']:.3f}, local {mean['local']:.3f}, with the centres known {mean['known centres']:.3f}.",
        ),
        Claim(
            "Algorithm 1 improves from round to round (E11 says no).",
            [
                found.margin(
                    f"error after 1 round less that after {ROUNDS[-1]}",
                    lambda of: of("three centres")[f"Algorithm 1, {ROUNDS[0]} rounds"] - of("three centres")[last],
                )
            ],
            f"After {ROUNDS[-1]} rounds its error is {mean[last]:.3f}: the centres have moved to one point.",
            paper_is_wrong=True,
        ),
    ]


def draw(found: Records) -> Figure:
    return beside(rows(found)[: 1 + len(models())], "squared error of a client's mean")


EXPERIMENT = Experiment(
    name="mixtures",
    work="Ozkara et al.",
    shows="Discrete populations, Algorithm 1",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    seeds={"quick": 3, "paper": 10},
    size="no experiment of the paper",
    setting=lambda scale: "Centres −1, 0 and 1; 3,000 clients with 4 samples, unit noise (no experiment of the paper).",
)
