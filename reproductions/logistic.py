"""Logistic models with a learned prior (Ozkara et al., Algorithm 3, by EM): what is learned, and whether intervals cover."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.estimation.regression.logistic import LogisticModels
from reproductions.claims import Claim
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.generate import regression_clients

SIZES = (  # clients, rows, features, σ_θ², deviation of each μ_j
    (1000, 30, 10, 0.3, 0.1),
    (1000, 10, 10, 0.3, 0.1),
    (1000, 6, 10, 1.0, 1.0),
    (200, 100, 100, 0.05, 0.1),
    (10_000, 10, 100, 0.05, 0.1),
    (10_000, 10, 100, 0.2, 0.1),
    (10_000, 10, 100, 0.2, 1.0),
)
SMALL = 3  # so many of them when quick


def cells(scale: Scale) -> Cells:
    chosen = SIZES[:SMALL] if scale == "quick" else SIZES
    return {
        f"{m:,} clients, {n} rows, {d} features, σ_θ² = {v:g}, μ_j ~ {s:g}": (m, n, d, v, s) for m, n, d, v, s in chosen
    }


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """The learned σ_θ² over the true one, and the share of coefficients inside their 90 % intervals."""
    m, n, d, variance, spread = cell
    rng = np.random.default_rng(seed)
    data = regression_clients(m, n, d, prior_variance=variance, noise_variance=None, mean_scale=spread, rng=rng)
    model = LogisticModels(fit_intercept=False, covariance_type="spherical").fit(data.X, data.y, data.groups)
    low, high = model.interval(0.9)
    covered = float(((low < data.truth) & (data.truth < high)).mean())
    return {"learned": float(np.mean(model.prior_variance_)) / variance, "covered": covered}


def rows(found: Records) -> list[Row]:
    return [
        row
        for cell in found.values
        for row in (
            Row(f"{cell}: learned σ_θ² over the true one", None, found.numbers(cell, "learned"), digits=2),
            Row(f"{cell}: coverage of 90 % intervals", None, found.numbers(cell, "covered")),
        )
    ]


def claims(found: Records) -> list[Claim]:
    covered = {cell: found.mean(cell, "covered") for cell in found.values}
    worst = min(covered, key=lambda cell: covered[cell])
    return [
        Claim(
            "The 90 % intervals cover within three points of their level.",
            [
                found.margin(
                    f"0.03 less {sign:+d} × (coverage less 0.9), {cell}",
                    lambda of, cell=cell, sign=sign: 0.03 - sign * (of(cell)["covered"] - 0.9),
                )
                for cell in found.values
                for sign in (1, -1)
            ],
            f"From {min(covered.values()):.3f} ({worst}) to {max(covered.values()):.3f}.",
            unlike="Where rows are fewer than features and the means are as large as the deviations, labels tell both only "
            "up to a common factor, which all intervals of a data set share.",
        )
    ]


def draw(found: Records) -> Figure:
    return beside([row for row in rows(found) if "coverage" in row.what], "coverage of 90 % intervals", zero=False)


EXPERIMENT = Experiment(
    name="logistic",
    work="Beyond the papers",
    shows="Logistic models with a learned prior",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    seeds={"quick": 3, "paper": 10},
    size="not in the paper",
    setting=lambda scale: (
        "One variance for all coefficients. With fewer rows than features, labels tell μ and σ_θ only up to a "
        "common factor, which all intervals of a data set share."
    ),
)
