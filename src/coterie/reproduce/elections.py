"""County elections (Ozkara et al., section 5.1): rates of 3112 counties from five elections, judged on the sixth."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.datasets import tabular
from coterie.reproduce.bernoulli import gains
from coterie.reproduce.drawing import beside
from coterie.reproduce.experiment import Cells, Claim, Experiment, Measured, Records, Row, Scale

ELECTIONS = len(tabular.ELECTION_YEARS)


def cells(scale: Scale) -> Cells:
    return {"all counties": None}


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """A seed is the election held out."""
    data = tabular.elections(held_out=tabular.ELECTION_YEARS[seed % ELECTIONS])
    return gains(data.successes, data.trials, data.held_out)


def rows(found: Records) -> list[Row]:
    return [
        Row("weights as printed", 10.7, found.numbers("all counties", "printed"), 1.9, digits=1),
        Row("corrected", None, found.numbers("all counties", "corrected"), digits=1),
    ]


def claims(found: Records) -> list[Claim]:
    gains = found.numbers("all counties", "printed")
    mean, lowest = float(np.mean(gains)), min(gains)
    return [
        Claim(
            "Shrunk rates predict a new election clearly better, in the mean over six.",
            mean > 2 * Row("", None, gains).error,
            f"The mean gain is {mean:.1f} %, the least {lowest:.1f} %.",
            unlike="78 % of the counties voted for the same party six times, so there is little to gain.",
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
        "weights as printed": "Winner bits of the 3111 counties in the six elections leave little to gain: 78 % voted the "
        "same way every time, and the gain scatters around zero from election to election. The paper does not say "
        "how its counties were chosen."
    },
    setting=lambda scale: "All counties; a seed is the election held out (erratum E24: six folds, not one).",
)
