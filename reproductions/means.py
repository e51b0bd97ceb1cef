"""Gaussian clients (Ozkara et al., Theorem 1): the risk of shrunk means against its closed form (E-1, erratum E01)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.estimation.means import GaussianMeans, least_risk
from reproductions.claims import Claim
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.generate import gaussian_clients

CLIENTS, SAMPLES, DIMENSION = 10, 5, 3
DRAWS = 200  # data sets of one seed
KNOWN, LEARNED = "known variances", "estimated variances"


def cells(scale: Scale) -> Cells:
    return {"ten clients": None}


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    rng = np.random.default_rng(seed)
    errors: dict[str, list[float]] = {KNOWN: [], LEARNED: [], "local": []}
    for _ in range(DRAWS):
        data = gaussian_clients(CLIENTS, SAMPLES, DIMENSION, prior_variance=1.0, noise_variance=1.0, rng=rng)
        for name, model in ((KNOWN, GaussianMeans(1.0, 1.0)), (LEARNED, GaussianMeans())):
            errors[name].append(_error(model.fit(data.samples).estimates_, data.truth))
        errors["local"].append(_error(np.stack([s.mean(0) for s in data.samples]), data.truth))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def _error(estimates: Any, truth: Any) -> float:
    return float(np.square(estimates - truth).sum(1).mean())


def rows(found: Records) -> list[Row]:
    bound = least_risk(samples=SAMPLES, dimension=DIMENSION, prior_variance=1.0, noise_variance=1.0, clients=CLIENTS)
    return [
        Row(KNOWN, bound, found.numbers("ten clients", KNOWN), tolerance=0.005, digits=4, reference="Theorem 1"),
        Row(LEARNED, None, found.numbers("ten clients", LEARNED), digits=4),
        Row(
            "local", DIMENSION / SAMPLES, found.numbers("ten clients", "local"), 0.0, 0.005, 4, reference="closed form"
        ),
    ]


def claims(found: Records) -> list[Claim]:
    mean = {name: found.mean("ten clients", name) for name in (KNOWN, LEARNED, "local")}
    return [
        Claim(
            "Shrunk means are better than the clients' own, also with estimated variances.",
            [
                found.margin(
                    f"local less {form}", lambda of, form=form: of("ten clients")["local"] - of("ten clients")[form]
                )
                for form in (KNOWN, LEARNED)
            ],
            f"{mean[KNOWN]:.3f} and {mean[LEARNED]:.3f} against {mean['local']:.3f}.",
        )
    ]


def draw(found: Records) -> Figure:
    return beside(rows(found), "squared error of a client's mean")


EXPERIMENT = Experiment(
    name="means",
    work="Ozkara et al.",
    shows="Gaussian clients, Theorem 1",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    seeds={"quick": 5, "paper": 160},
    size="no experiment of the paper",
    setting=lambda scale: f"10 clients with 5 samples in 3 dimensions, unit variances; {DRAWS} data sets a seed.",
)
