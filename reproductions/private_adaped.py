"""Figures 1 and 2 of Ozkara et al.: DP-AdaPeD on FEMNIST against ε, beside training alone.

"As printed": every step clips and noises the two derivatives, with the noise that Theorem 7 asks for. The theorem is wrong
(erratum E17); a row says what its noise buys against a server that sees the messages, as in the printed algorithm.
"Corrected": one clipped and noised message a round for [μ, ψ] together, by an exact accountant (`AdaPeD` with `privacy=`),
which is also Figure 2's concatenation. "Fine-tuning" is Figure 2: clients that are not sampled go on by themselves. The
paper prints neither clips nor noises nor any accuracy of these figures.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq
from sklearn.datasets import load_digits

import coterie as ct
from coterie.errors import CoterieWarning
from coterie.privacy import adaped_epsilon, noise_multiplier
from reproductions.claims import Claim, sure
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.personalisation import as_federation, femnist
from reproductions.printed.adaped import PrintedAdaPeD

DELTA, CLIP, STEPS, SHARE = 1e-4, 1.0, 10, 1 / 3
EPSILONS: dict[Scale, tuple[float, ...]] = {"quick": (2.0, 32.0), "paper": (2.0, 8.0, 32.0)}
ROUNDS: dict[Scale, int] = {"quick": 40, "paper": 240}
FORMS = {"printed": "as printed", "corrected": "corrected", "tuned": "corrected, fine-tuning"}
ALONE, EVERY, OPEN = "training alone", "training alone in every round", "AdaPeD without privacy"


def small_digits(seed: int, clients: int = 60) -> ct.Federation:
    """30 or 29 small pictures to each client, at random; half of them are test rows."""
    x, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(seed).permutation(len(y))
    sizes = np.diff(np.linspace(0, len(y), clients + 1).astype(np.int64))
    return as_federation(x[rows].reshape(-1, 8, 8) / 16, y[rows], sizes, seed, 0.5)


@lru_cache(maxsize=1)
def world(scale: Scale, seed: int) -> tuple[ct.Federation, ct.Task, ct.LocalSGD]:
    """The clients, the network, and ten steps of a sixtieth of a client's rows."""
    federation = femnist(seed) if scale == "paper" else small_digits(seed)
    task = ct.Task(ct.models.small_cnn() if scale == "paper" else ct.models.mlp(64, 50, 10))
    batch = max(int(np.median(federation.n_train)) // 60, 4)
    return (
        federation,
        task,
        ct.LocalSGD(steps=STEPS, lr=0.1 if scale == "paper" else 0.4, batch_size=batch, weight_decay=1e-4),
    )


def cells(scale: Scale) -> Cells:
    private = {f"{form}, ε = {e:g}": (form, e) for form in FORMS for e in EPSILONS[scale]}
    return {name: (name, math.inf) for name in (ALONE, EVERY, OPEN)} | private


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    """Accuracy of the clients' own models; of AdaPeD also ψ after every round."""
    form, epsilon = cell
    federation, task, local = world(scale, seed)
    clients = round(SHARE * len(federation))
    options: dict[str, Any] = {}
    algorithm: Any = ct.AdaPeD(local=local, catch_up=2 if form == "tuned" else 0)
    cohort: int | float = len(federation) if form == EVERY else clients
    if form in (ALONE, EVERY):
        algorithm = ct.Local(local)
    elif form == "printed":
        noise = printed_noise(epsilon, ROUNDS[scale], clients, len(federation))
        algorithm = PrintedAdaPeD(local=local, catch_up=0, clips=(CLIP, CLIP), noises=(noise, noise))
    elif form != OPEN:
        options["privacy"] = ct.Privacy(epsilon, DELTA, clip=CLIP, noise="simulation")
        cohort = SHARE
    options |= {"rounds": ROUNDS[scale], "seed": seed, "cohort": cohort, "alone": False, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)  # that the noise is loud is what is measured
        run = ct.fit(algorithm, federation, task, **options)
    psi = run.history["psi"].dropna().round(3).tolist() if "psi" in run.history else []
    return {"accuracy": round(float(run.scores()["accuracy"].mean()), 5), "psi": psi}


def both_epsilons(noise: float, rounds: int, cohort: int, clients: int) -> tuple[float, float]:
    """ε by Theorem 7 as read, and ε that holds against a server that sees single messages."""
    return adaped_epsilon(noise, CLIP, DELTA, rounds=rounds, cohort=cohort, clients=clients, steps=STEPS)


def printed_noise(epsilon: float, rounds: int, cohort: int, clients: int) -> float:
    """The deviation per step that Theorem 7 asks for."""

    def gap(log_noise: float) -> float:
        return math.log(both_epsilons(math.exp(log_noise), rounds, cohort, clients)[0] / epsilon)

    return math.exp(brentq(gap, math.log(1e-3), math.log(1e4)))


def bought(epsilon: float, rounds: int, cohort: int, clients: int) -> float:
    """ε of that noise against a server that sees single messages."""
    return both_epsilons(printed_noise(epsilon, rounds, cohort, clients), rounds, cohort, clients)[1]


def percent(found: Records, cell: str) -> list[float]:
    return [100 * accuracy for accuracy in found.numbers(cell, "accuracy")]


def size(scale: Scale) -> tuple[int, int, int]:
    """Rounds, clients in a round, clients."""
    return (ROUNDS[scale], 22, 66) if scale == "paper" else (ROUNDS[scale], 20, 60)


def rows(found: Records) -> list[Row]:
    accuracies = [Row(f"{_label(name)}, accuracy (%)", None, percent(found, name), digits=2) for name in found.values]
    claimed = EPSILONS[found.scale]
    return accuracies + [
        Row(
            f"ε of the noise of Theorem 7 for ε = {e:g}, server sees messages",
            e,
            [bought(e, *size(found.scale))],
            digits=1,
            exact=True,
        )
        for e in claimed
    ]


def _label(cell: str) -> str:
    form, _, rest = cell.partition(", ε")
    return f"{FORMS[form]}, ε{rest}" if rest else cell


def claims(found: Records) -> list[Claim]:
    mean = {name: float(np.mean(percent(found, name))) for name in found.values}
    epsilons = EPSILONS[found.scale]
    low, high = epsilons[0], epsilons[-1]
    at = {form: [mean[f"{form}, ε = {e:g}"] for e in epsilons] for form in FORMS}
    psi, drift = found.curve(f"corrected, ε = {low:g}", "psi"), drifted(low, found.scale)
    turn, still = int(np.argmin(psi)), found.curve(OPEN, "psi")
    truth, noisy = bought(low, *size(found.scale)), f"corrected, ε = {low:g}"
    return [
        Claim(
            "DP-AdaPeD is better than training alone even at a small ε (Figure 1).",
            [found.above(f"corrected, ε = {low:g}", ALONE, "accuracy", scale=100)],
            f"Corrected {at['corrected'][0]:.1f} % at ε = {low:g} and {at['corrected'][-1]:.1f} % at ε = {high:g}, as "
            f"printed {at['printed'][0]:.1f} and {at['printed'][-1]:.1f} %; training alone {mean[ALONE]:.1f} %, AdaPeD "
            f"without privacy {mean[OPEN]:.1f} %.",
            unlike=f"At ε = {low:g} the noise of one round is {loudness(low, found.scale):.0f} times the clip: the common "
            "model is mostly noise.",
        ),
        Claim(
            "Fine-tuning by clients that are not sampled helps where privacy is strict (Figure 2).",
            [found.above(f"tuned, ε = {low:g}", f"corrected, ε = {low:g}", "accuracy", scale=100)],
            f"At ε = {low:g} {at['corrected'][0]:.1f} and {at['tuned'][0]:.1f} %; training alone in every round "
            f"{mean[EVERY]:.1f} %.",
            unlike=f"From ε = {low:g} to {high:g} it changes {at['corrected'][0]:.1f} to {at['tuned'][0]:.1f} and "
            f"{at['corrected'][-1]:.1f} to {at['tuned'][-1]:.1f} %: more steps beside a teacher that is mostly noise cost, "
            "beside a good one they gain.",
        ),
        Claim(
            "ψ first falls, then rises as noise builds up in the common model.",
            [
                found.margin(
                    "rise of ψ after its least value less what noise on ψ itself moves it",
                    lambda of: of(noisy)["psi"][-1] - min(of(noisy)["psi"]) - drift,
                )
            ],
            f"Corrected, ε = {low:g}: from {psi[0]:.2f} to {psi[turn]:.2f} in round {turn + 1}, then {psi[-1]:.2f}; noise "
            f"on ψ itself alone would move it by {drift:.2f} in a run.",
            unlike="The rise is less than the noise on ψ itself: it shows no choice of the clients'.",
        ),
        Claim(
            "Without privacy ψ falls as clients come to rely on one another.",
            [
                found.margin(
                    "0.9 of the first ψ less the last", lambda of: 0.9 * of(OPEN)["psi"][0] - of(OPEN)["psi"][-1]
                )
            ],
            f"From {still[0]:.2f} to {still[-1]:.2f}. While the two models still agree it falls whatever they say: ψ² by "
            "η₃ = 0.03 in every step.",
        ),
        Claim(
            "The noise of Theorem 7 is (ε, δ)-private (E17 says no).",
            [sure("its ε is at most the one it promises", truth <= low)],
            f"Against a server that sees the messages its noise for ε = {low:g} buys ε = {truth:.0f}. With secure sums the "
            "noise of a step still steers later ones: an audit certifies ε ≥ 4.75 where the theorem says 1.45.",
            paper_is_wrong=True,
        ),
    ]


def _spread(epsilon: float, scale: Scale) -> float:
    """Deviation of a round's noise in every coordinate of the corrected mean message."""
    rounds, cohort, _ = size(scale)
    return noise_multiplier(epsilon, DELTA, rounds, SHARE) * CLIP / cohort


def loudness(epsilon: float, scale: Scale) -> float:
    """The norm of a round's noise over the clip."""
    return _spread(epsilon, scale) * math.sqrt(44_426 if scale == "paper" else 3_760) / CLIP


def drifted(epsilon: float, scale: Scale) -> float:
    return _spread(epsilon, scale) * math.sqrt(ROUNDS[scale])


def draw(found: Records) -> Figure:
    figure, (left, right) = panels(2, columns=2, width=4.6, height=3.6)
    epsilons = EPSILONS[found.scale]
    lines = {
        label: np.transpose([percent(found, f"{form}, ε = {e:g}") for e in epsilons]) for form, label in FORMS.items()
    }
    curves(left, epsilons, lines, "Figures 1 and 2", "ε", "mean accuracy (%)")
    for name, style in ((ALONE, ":"), (EVERY, "-."), (OPEN, "--")):
        left.axhline(float(np.mean(percent(found, name))), color="0.4", ls=style, lw=1, label=name)
    left.set_xscale("log")
    left.minorticks_off()
    left.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    left.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    _widths(right, found)
    return figure


def _widths(ax: Axes, found: Records) -> None:
    """ψ over the rounds."""
    low, high = EPSILONS[found.scale][0], EPSILONS[found.scale][-1]
    chosen = [(form, e) for e in (low, high) for form in ("printed", "corrected")]
    names = {OPEN: OPEN} | {f"{form}, ε = {e:g}": f"{FORMS[form]}, ε = {e:g}" for form, e in chosen}
    lines = {label: [one["psi"] for one in found.of(name)] for name, label in names.items()}
    shortest = min(len(run) for runs in lines.values() for run in runs)
    cut = {label: [run[:shortest] for run in runs] for label, runs in lines.items()}
    curves(ax, list(range(1, shortest + 1)), cut, "width ψ of the prior", "round", "ψ")
    ax.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


EXPERIMENT = Experiment(
    name="private-adaped",
    work="Ozkara et al.",
    shows="Figures 1 and 2, DP-AdaPeD",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    seeds={"quick": 3, "paper": 2},
    first_seed=10,
    size="all clients and rounds",
    needs=("femnist.npz",),
    setting=lambda scale: (
        (
            "66 clients with the digits of three writers each, the five-layer network, 240 rounds"
            if scale == "paper"
            else "60 clients with 15 of scikit-learn's small digits each instead of FEMNIST, one hidden layer, 40 rounds"
        )
        + "; clips 1 and δ = 1e-4 are ours."
    ),
    why={
        f"ε of the noise of Theorem 7 for ε = {e:g}, server sees messages": "Theorem 7 counts neither what a server "
        "sees nor that a round's clipped derivatives add up (E17)."
        for e in EPSILONS["paper"]
    },
)
