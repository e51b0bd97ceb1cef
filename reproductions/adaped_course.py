"""Why AdaPeD stays below Table 1 of Ozkara et al. on FEMNIST: the course of its personal models, common model and ψ.

The clients, network and sampling of `reproductions.personalisation`, with the rates chosen there on validation rows (a ψ
that is kept has Local's). "ψ kept at 4" has its floor where ψ starts, so that distillation weighs an eighth for ever;
"common model kept" has η2 = 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import coterie as ct
from reproductions.claims import Claim, Margin
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.personalisation import SETTINGS, steps_of
from reproductions.training import begin, worker_accuracy

ROUNDS: dict[Scale, int] = {"quick": 80, "paper": 480}
TABLE = SETTINGS["femnist"].full  # rounds of Table 1
LOOK = 20  # rounds
SAME, KEPT, STILL = "AdaPeD, rate 0.1", "AdaPeD, ψ kept at 4", "AdaPeD, common model kept"
METHODS: dict[str, tuple[Any, float]] = {
    "Local": (ct.Local, 0.1),
    "AdaPeD": (lambda local: ct.AdaPeD(local=local, catch_up=0), 0.05),
    SAME: (lambda local: ct.AdaPeD(local=local, catch_up=0), 0.1),
    KEPT: (lambda local: ct.AdaPeD(local=local, catch_up=0, psi_floor=4.0), 0.1),
    STILL: (lambda local: ct.AdaPeD(local=local, catch_up=0, shared_lr=0.0), 0.1),
}


def cells(scale: Scale) -> Cells:
    return {name: name for name in METHODS if scale == "paper" or name in ("Local", "AdaPeD")}


def measure(name: Any, seed: int, scale: Scale) -> Measured:
    """Every twenty rounds: mean accuracy of the clients' own models, accuracy of the common one, and ψ."""
    setting, (make, rate) = SETTINGS["femnist"], METHODS[name]
    data, task = setting.make(seed), ct.Task(setting.model)
    run = begin(make(steps_of(setting, data, rate)), data, task, seed, cohort=round(setting.share * len(data)))
    kept: Measured = {"round": [], "personal": []} | ({} if name == "Local" else {"common": [], "psi": []})
    for t in range(1, ROUNDS[scale] + 1):
        run.one_round()
        if t % LOOK:
            continue
        kept["round"].append(t)
        kept["personal"].append(round(float(run.evaluation().scores()["accuracy"].mean()), 5))
        if name != "Local":
            model = {key: value[None] for key, value in run.state.model.items()}
            kept["common"].append(round(worker_accuracy(model, data, task, 1), 5))
            kept["psi"].append(round(float(run.state.psi), 4))
    return kept


def at(found: Records, name: str, what: str, t: int) -> list[float]:
    """A percentage, or ψ, after round t, for every seed."""
    return [(1 if what == "psi" else 100) * one[what][one["round"].index(t)] for one in found.of(name)]


def ahead(found: Records, one: tuple[str, str, int], other: tuple[str, str, int], by: float = 0.0) -> Margin:
    """By how many points: what of a method, after which round."""
    more, less = np.array(at(found, *one)), np.array(at(found, *other))
    what = f"{one[0]}, {one[1]}, less {other[0]}, {other[1]}" + (f" and {by:g}" if by else "")
    return Margin(what, (more - less - by).tolist())


def times(found: Records) -> list[int]:
    rounds = found.of("AdaPeD")[0]["round"]
    return [t for t in (80, 160, TABLE, 480) if t in rounds]


def lines(found: Records) -> list[tuple[str, str, str]]:
    """Cell, what of it, and how to call that."""
    calls = {"personal": "own models (%)", "common": "the common model (%)", "psi": "ψ"}
    return [(n, what, f"{n}: {call}") for n in found.values for what, call in calls.items() if what in found.of(n)[0]]


def rows(found: Records) -> list[Row]:
    return [
        Row(f"{label}, after {t} rounds", None, at(found, name, what, t), digits=2)
        for name, what, label in lines(found)
        for t in times(found)
    ]


def wide(found: Records) -> pd.DataFrame:
    """A line for a method's own models, common model and ψ, a column for a number of rounds."""
    looks = {t: {label: Row("", None, at(found, n, what, t)) for n, what, label in lines(found)} for t in times(found)}

    return pd.DataFrame(
        {"after": label}
        | {f"{t} rounds": replace(of[label], digits=2 if what == "psi" else 1).shown for t, of in looks.items()}
        for _, what, label in lines(found)
    )


def claims(found: Records) -> list[Claim]:
    end = times(found)[-1]
    means = {name: float(np.mean(at(found, name, "personal", end))) for name in found.values}
    common, psi = (max(at(found, "AdaPeD", what, 80)) for what in ("common", "psi"))
    out = [
        Claim(
            "ψ reaches its floor while the common model is still at chance.",
            [
                Margin("0.6 less ψ after 80 rounds", [0.6 - value for value in at(found, "AdaPeD", "psi", 80)]),
                Margin(
                    "20 % less the common model's accuracy", [20 - value for value in at(found, "AdaPeD", "common", 80)]
                ),
            ],
            f"After 80 rounds, a third of them with a given client, ψ is {psi:.2f}, so that to imitate a common model "
            f"with an accuracy of {common:.0f} % weighs as much as the client's own data.",
        ),
    ]
    if found.scale == "paper":
        taught = float(np.mean(at(found, SAME, "common", end)))
        later, then = (float(np.mean(at(found, "AdaPeD", "personal", t))) for t in (end, TABLE))
        out += [
            Claim(
                "At the same rate and floor the clients' own models are better if the common one never learns.",
                [ahead(found, (STILL, "personal", end), (SAME, "personal", end))],
                f"After {end} rounds they have {means[SAME]:.1f} %, with the common model kept as drawn {means[STILL]:.1f} "
                f"%, with ψ kept at 4 {means[KEPT]:.1f} %, alone {means['Local']:.1f} %.",
            ),
            Claim(
                f"The table's {TABLE} rounds end before AdaPeD does.",
                [ahead(found, ("AdaPeD", "personal", end), ("AdaPeD", "personal", TABLE), 2)],
                f"It has {then:.1f} % after {TABLE} rounds and {later:.1f} % after {end}.",
            ),
            Claim(
                "In the end its common model is better than the clients' own.",
                [ahead(found, (SAME, "common", end), (SAME, "personal", end))],
                f"{taught:.1f} and {means[SAME]:.1f} % at the rate 0.1.",
            ),
        ]
    return out


def draw(found: Records) -> Figure:
    figure, (left, middle, right) = panels(3)
    x = found.of("AdaPeD")[0]["round"]
    own = {name: [one["personal"] for one in found.of(name)] for name in found.values}
    curves(left, x, own, "own models", "round", "test accuracy")
    adaptive = [name for name in found.values if name != "Local"]
    for ax, what, title in ((middle, "common", "the common model"), (right, "psi", "ψ")):
        nothing = {"": np.full(len(x), np.nan)}  # Local's colour
        curves(ax, x, nothing | {n: [one[what] for one in found.of(n)] for n in adaptive}, title, "round")
    left.legend(fontsize=8, frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="adaped-course",
    work="Ozkara et al.",
    shows="Why AdaPeD differs on FEMNIST, not in the paper",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="not in the paper",
    wide=wide,
    needs=("femnist.npz",),
    seeds={"quick": 1, "paper": 2},
    setting=lambda scale: (
        f"66 clients with the digits of three writers each, a third of them in each of {ROUNDS[scale]} rounds (Table 1: "
        f"{TABLE}); rates by validation rows: 0.05 for AdaPeD, 0.1 for Local."
    ),
)
