"""County elections (Ozkara et al., section 4): rates of 3111 counties from who won five elections, judged on the sixth.

The paper does not say what of the sixth election is compared with a rate: the share of votes, or who won (1 or 0). Both
readings are measured; only the first gives the printed gain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.datasets import tabular
from reproductions.bernoulli import gains
from reproductions.claims import Claim
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale

ELECTIONS = len(tabular.ELECTION_YEARS)
SHARE, WINNER = "vote share", "winner"
PAPER = (10.7, 1.9)


def cells(scale: Scale) -> Cells:
    return {SHARE: SHARE, WINNER: WINNER}


def measure(target: Any, seed: int, scale: Scale) -> Measured:
    """A seed is the election held out."""
    year = tabular.ELECTION_YEARS[seed % ELECTIONS]
    data = tabular.elections(held_out=year)
    truth = data.table[f"share{year}"].to_numpy() if target == SHARE else np.asarray(data.held_out)
    return gains(data.successes, data.trials, truth)


def rows(found: Records) -> list[Row]:
    return [
        Row(
            f"judged on the {target}, {text}",
            PAPER[0] if form == "printed" else None,
            found.numbers(target, form),
            PAPER[1] if form == "printed" else 0.0,
            digits=1,
        )
        for target in (SHARE, WINNER)
        for form, text in (("printed", "weights as printed"), ("corrected", "corrected weights"))
    ]


def claims(found: Records) -> list[Claim]:
    out = []
    for target in (SHARE, WINNER):
        folds = ", ".join(f"{gain:.1f}" for gain in found.numbers(target, "printed"))
        out.append(
            Claim(
                f"Shrunk rates predict the {target} of a new election better, in the mean over six.",
                [found.margin("mean gain (%)", lambda of, target=target: of(target)["printed"])],
                f"Gains of the six elections: {folds} %.",
            )
        )
    return out


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
    size="all counties",
    seeds={"quick": ELECTIONS, "paper": ELECTIONS},
    why={
        f"judged on the {WINNER}, weights as printed": "A winner is 0 or 1, so that most of the error is p(1 − p), which no "
        "estimate of p can lower (E24)."
    },
    setting=lambda scale: (
        "All counties; a seed is the election held out (erratum E24: six folds, not one; any two share four of their five "
        "training elections, so that the interval is a little too narrow)."
    ),
)
