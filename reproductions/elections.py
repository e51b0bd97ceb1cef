"""County elections (Ozkara et al., section 5.1): rates of 3112 counties from five elections, judged on the sixth."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.datasets import tabular
from coterie.estimation.checks import Array
from reproductions.bernoulli import gains
from reproductions.drawing import beside
from reproductions.experiment import Cells, Claim, Experiment, Measured, Records, Row, Scale

ELECTIONS = len(tabular.ELECTION_YEARS)


def cells(scale: Scale) -> Cells:
    return {"all counties": None}


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """A seed is the election held out."""
    data = tabular.elections(held_out=tabular.ELECTION_YEARS[seed % ELECTIONS])
    return gains(data.successes, data.trials, data.held_out) | best(data.successes / data.trials, data.held_out)


def best(rates: Array, truth: Any) -> Measured:
    """What shrinkage towards the mean could gain at most (%): its weight is the truth's own least-squares one."""
    away, missing = rates.mean() - rates, truth - rates
    weight = float(np.clip(away @ missing / (away @ away), 0, 1))
    error = np.square(missing - weight * away).mean()
    return {"best": 100 * float(1 - error / np.square(missing).mean())}


def rows(found: Records) -> list[Row]:
    return [
        Row("weights as printed", 10.7, found.numbers("all counties", "printed"), 1.9, digits=1),
        Row("corrected", None, found.numbers("all counties", "corrected"), digits=1),
        Row("best weight, by the election held out", None, found.numbers("all counties", "best"), digits=1),
    ]


def claims(found: Records) -> list[Claim]:
    gains = found.numbers("all counties", "printed")
    mean, lowest, most = float(np.mean(gains)), min(gains), found.numbers("all counties", "best")
    return [
        Claim(
            "Shrunk rates predict a new election clearly better, in the mean over six.",
            mean > 2 * Row("", None, gains).error,
            f"The mean gain is {mean:.1f} %, the least {lowest:.1f} %.",
            unlike=f"The weight that the election held out itself would choose gains {min(most):.1f} to {max(most):.1f} %.",
        )
    ]


def draw(found: Records) -> Figure:
    return beside(rows(found), "less squared error on the election held out (%)")


EXPERIMENT = Experiment(
    name="elections",
    work="Ozkara et al.",
    shows="County elections 2000–2020, section 4",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    seeds={"quick": ELECTIONS, "paper": ELECTIONS},
    why={
        "weights as printed": "No shrinkage towards the mean of all counties gains as much, whatever its weight (last row): "
        "most counties vote the same way every time. The paper does not say how its counties were chosen."
    },
    setting=lambda scale: "All counties; a seed is the election held out (erratum E24: six folds, not one).",
)
