"""Bernoulli clients (Ozkara et al., section 4): how much less squared error than the clients' own rates.

m = 10,000 clients, n = 14 coin flips each. The printed weights rest on a variance that does not converge to the
prior's (E06; how the −1 of E05 enters changes nothing here); the corrected weights gain more on every population.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.estimation.conventions import Array
from coterie.estimation.rates import BernoulliRates
from reproductions.claims import Claim
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.generate import bernoulli_clients
from reproductions.printed.rates import printed_rates

PAPER = {"normal": (37.1, 3.9), "uniform": (12.0, 1.6), "spikes": (24.3, 2.8), "beta": (34.0, 3.7)}
BY_SPREAD = ("normal", "beta", "spikes", "uniform")  # least spread out first


def gains(successes: Any, trials: Any, truth: Any) -> Measured:
    """Gain over the clients' own rates in percent, by both forms of the weights."""

    def error(rates: Array) -> float:
        return float(np.square(rates - truth).mean())

    local = error(successes / trials)
    forms = {
        "printed": printed_rates(successes, trials).rates,
        "corrected": BernoulliRates().fit(successes, trials).rates_,
    }
    return {name: 100 * (1 - error(rates) / local) for name, rates in forms.items()}


def cells(scale: Scale) -> Cells:
    return {population: population for population in PAPER}


def measure(population: Any, seed: int, scale: Scale) -> Measured:
    data = bernoulli_clients(10_000, 14, population, rng=np.random.default_rng(seed))
    return gains(data.successes, data.trials, data.truth)


def rows(found: Records) -> list[Row]:
    printed = [
        Row(f"{name}, weights as printed", value, found.numbers(name, "printed"), error, digits=1, among="populations")
        for name, (value, error) in PAPER.items()
    ]
    return printed + [Row(f"{name}, corrected", None, found.numbers(name, "corrected"), digits=1) for name in PAPER]


def claims(found: Records) -> list[Claim]:
    lowest = min(found.mean(name, "printed") for name in PAPER)
    return [
        Claim(
            "Shrunk rates beat the clients' own on every population.",
            [found.margin(f"gain on {name}", lambda of, name=name: of(name)["printed"]) for name in PAPER],
            f"The least gain is {lowest:.1f} %.",
        ),
        Claim(
            "The less spread out the clients are, the larger the gain.",
            [found.above(a, b, "printed") for a, b in pairwise(BY_SPREAD)],
            ", ".join(f"{name} {found.mean(name, 'printed'):.1f}" for name in BY_SPREAD) + " %.",
        ),
        Claim(
            "The printed weights are the posterior mean's (E05, E06 say no).",
            [
                found.margin(
                    f"gain of the printed less that of the corrected weights on {name}",
                    lambda of, name=name: of(name)["printed"] - of(name)["corrected"],
                )
                for name in PAPER
            ],
            "The corrected weights gain more: "
            + ", ".join(f"{name} {found.mean(name, 'corrected'):.1f}" for name in BY_SPREAD)
            + " %.",
            paper_is_wrong=True,
        ),
    ]


def draw(found: Records) -> Figure:
    return beside(rows(found), "less squared error than the clients' own rates (%)")


EXPERIMENT = Experiment(
    name="bernoulli",
    work="Ozkara et al.",
    shows="Bernoulli clients, section 4",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="as printed",
    seeds={"quick": 20, "paper": 40},
    setting=lambda scale: (
        "10,000 clients with 14 trials each, as in the paper; the normal population and Beta(4, 4) have parameters of ours, "
        "as the paper prints none."
    ),
)
