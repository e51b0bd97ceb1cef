"""Private histograms on synthetic users: what each design costs in KL, against Table 1's methods and the true centres.

1/(rank + 2) over 1,000 tokens (Zipf and Mandelbrot), ten centres perturbed log-normally with deviation 0.5 (0.25: harder),
α = 300, 500 tokens per user; mean KL against the true histogram of the first 10,000 users. Noise is a simulation with a
seed, so that the table can be made again; the noise of a real release has the same law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from matplotlib.figure import Figure

from coterie.estimation.histograms.baselines import FedAvgHistogram, IFCAHistograms, LocalHistograms
from coterie.estimation.histograms.counts import Counts, Floats
from coterie.estimation.histograms.mixture import HistogramMixture
from coterie.estimation.histograms.model import sample_histograms
from coterie.estimation.histograms.personal import CenterModel
from coterie.privacy import Privacy
from reproductions.claims import Claim, Margin
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.printed.histograms import PrintedHistogramMixture

BUDGETS = ((15.0, 1e-10), (3.0, 1e-6))
CLUSTERS, TOKENS, JUDGED = 10, 1000, 10_000
LOCAL_SMOOTHING = (0.03, 0.1, 0.3, 1.0)
WORLDS: dict[Scale, tuple[tuple[int, float], ...]] = {  # users, deviation of the centres
    "quick": ((5_000, 0.5),),
    "paper": ((20_000, 0.5), (100_000, 0.5), (20_000, 0.25)),
}
OPEN = ("Local", "FedAvg", "Alg. 1 + 2", "oracle centres")
PRIVATE = ("private FedAvg", "Alg. 3, non-private start", "A+", "B+", "private IFCA")


@dataclass(frozen=True)
class Data:
    """Training counts, and what the models of the first users are judged by (true histograms or test counts)."""

    train: Counts
    truth: Any
    centers: Floats | None = None

    def risk(self, model: CenterModel, *, tuned: bool) -> float:
        """Mean KL(truth‖model), with λ = 1 or the model's own."""
        kept = model.lam
        model.lam = None if tuned else 1.0
        size = self.truth.shape[0]
        spans = [slice(start, min(start + 4096, size)) for start in range(0, size, 4096)]
        parts = [_divergence(self.truth[s], model.personalise(self.train[s])) for s in spans]
        model.lam = kept
        return float(np.concatenate(parts).mean())


def _divergence(truth: Any, models: Floats) -> Floats:
    """KL of each row; true histograms are positive everywhere."""
    return np.asarray(np.einsum("ij,ij->i", truth, np.log(truth) - np.log(models)))


@lru_cache(maxsize=1)
def synthetic(users: int, deviation: float, seed: int, tokens: int = TOKENS) -> Data:
    """The mixture of the module, drawn in blocks."""
    rng = np.random.default_rng([seed, 77])
    base = 1 / (np.arange(tokens) + 3)
    centers = base * np.exp(deviation * rng.normal(size=(CLUSTERS, tokens)))
    centers /= centers.sum(axis=1, keepdims=True)
    counts, truth, left = [], [], min(users, JUDGED)
    for start in range(0, users, 5000):
        size = min(5000, users - start)
        block = sample_histograms(centers, users=size, tokens=500, concentration=300, rng=rng)
        counts.append(block.counts)
        truth.append(block.histograms[: max(left, 0)])
        left -= size
    return Data(sp.csr_array(sp.vstack(counts, format="csr")), np.concatenate(truth), centers)


def _oracle(data: Data) -> CenterModel:
    model = FedAvgHistogram(concentration=300.0).fit(data.train[:2])
    model.centers_, model.weights_ = np.asarray(data.centers), np.full(CLUSTERS, 1 / CLUSTERS)
    return model


def methods(epsilon: float | None, delta: float, seed: int) -> dict[str, Callable[[Data], CenterModel]]:
    """Without privacy (ε None), or at ε."""
    if epsilon is None:
        return {
            "FedAvg": lambda data: FedAvgHistogram(lam=None).fit(data.train),
            "Alg. 1 + 2": lambda data: HistogramMixture(CLUSTERS, random_state=seed).fit(data.train),
            "oracle centres": _oracle,
        }
    privacy = Privacy(epsilon, delta, clip=1.0, noise="simulation")
    return {
        "private FedAvg": lambda data: FedAvgHistogram(lam=None, privacy=privacy, random_state=seed).fit(data.train),
        "Alg. 3, non-private start": lambda data: PrintedHistogramMixture(
            CLUSTERS, privacy=privacy, rounds=10, random_state=seed
        ).fit(data.train),
        "A+": lambda data: _mixture(privacy, "A+", seed, data),
        "B+": lambda data: _mixture(privacy, "B+", seed, data),
        "private IFCA": lambda data: IFCAHistograms(CLUSTERS, 20, 100.0, seed, privacy=privacy).fit(data.train),
    }


def _mixture(privacy: Privacy, method: Any, seed: int, data: Data) -> HistogramMixture:
    return HistogramMixture(CLUSTERS, privacy=privacy, method=method, random_state=seed).fit(data.train)


def _judge(data: Data, make: Callable[[Data], CenterModel]) -> dict[str, Any]:
    model = make(data)
    found: dict[str, Any] = {
        "plain": round(data.risk(model, tuned=False), 5),
        "tuned": round(data.risk(model, tuned=True), 5),
        "concentration": round(float(model.concentration_), 1),
    }
    if hasattr(model, "receipt_"):
        found |= {"epsilon": model.receipt_.epsilon, "advice": getattr(model, "advice_", "")}
    return found


def _local(data: Data) -> dict[str, Any]:
    """The best of a few smoothings, by the truth: a favour to Local."""
    found = {}
    for smoothing in LOCAL_SMOOTHING:
        model = LocalHistograms(smoothing=smoothing).fit(data.train[:2])
        spans = [slice(start, start + 4096) for start in range(0, data.truth.shape[0], 4096)]
        size = data.truth.shape[0]
        parts = [_divergence(data.truth[s], model.personalise(data.train[s.start : min(s.stop, size)])) for s in spans]
        found[smoothing] = float(np.concatenate(parts).mean())
    best = min(found, key=lambda s: found[s])
    return {"plain": round(found[best], 5), "tuned": round(found[best], 5), "smoothing": best}


def cells(scale: Scale) -> Cells:
    out: dict[str, Any] = {}
    for users, deviation in WORLDS[scale]:
        where = f"{users:,} users, deviation {deviation}"
        out |= {f"{where} | {name} | none": (users, deviation, name, None, 1.0) for name in OPEN}
        for epsilon, delta in BUDGETS:
            names = [n for n in PRIVATE if users <= 20_000 or n != "private IFCA"]
            if deviation < 0.5:
                names = ["private FedAvg", "A+", "B+"]
            out |= {f"{where} | {name} | {epsilon:g}": (users, deviation, name, epsilon, delta) for name in names}
    return out


def measure(cell: Any, seed: int, scale: Scale) -> Measured:
    users, deviation, name, epsilon, delta = cell
    data = synthetic(users, deviation, seed)
    return _local(data) if name == "Local" else _judge(data, methods(epsilon, delta, seed)[name])


def rows(found: Records) -> list[Row]:
    out = []
    for cell in found.values:
        where, name, budget = cell.split(" | ")
        label = f"{name}, {where}" + ("" if budget == "none" else f", ε = {budget}")
        out.append(Row(label, None, found.numbers(cell, "plain")))
        if name != "Local":
            out.append(Row(f"{label}, fine-tuned", None, found.numbers(cell, "tuned")))
    return out


def claims(found: Records) -> list[Claim]:
    users, deviation = WORLDS[found.scale][0]
    where = f"{users:,} users, deviation {deviation}"

    def at(name: str, budget: str) -> str:
        return f"{where} | {name} | {budget}"

    def kl(name: str, budget: str, kind: str = "tuned") -> float:
        return found.mean(at(name, budget), kind)

    def less(name: str, other: str, budget: str, other_budget: str) -> Margin:
        """By how much the first has a smaller KL, fine-tuned."""
        first, second = at(name, budget), at(other, other_budget)
        return found.margin(f"{other} less {name}", lambda of: of(second)["tuned"] - of(first)["tuned"])

    paper, ours, one = (kl(name, "15") for name in ("Alg. 3, non-private start", "A+", "private FedAvg"))
    cost = kl("private FedAvg", "15", "plain") - kl("FedAvg", "none", "plain")
    return [
        Claim(
            "Algorithm 3 keeps what clustering gains over private FedAvg (H17 doubts the printed FedAvg).",
            [less("Alg. 3, non-private start", "private FedAvg", "15", "15")],
            f"Fine-tuned at ε = 15: Algorithm 3 {paper:.3f}, private FedAvg {one:.3f}, A+ {ours:.3f}, "
            f"the true centres {kl('oracle centres', 'none'):.3f}.",
            paper_is_wrong=True,
        ),
        Claim(
            "Private FedAvg costs 0.06 nats at ε = 15 (H17 says no).",
            [
                found.margin(
                    "cost of privacy less 0.03",
                    lambda of: of(at("private FedAvg", "15"))["plain"] - of(at("FedAvg", "none"))["plain"] - 0.03,
                )
            ],
            f"It costs {cost:.4f}.",
            paper_is_wrong=True,
        ),
        Claim(
            "A+ keeps what clustering gains.",
            [less("A+", "private FedAvg", "15", "15")],
            f"Fine-tuned {ours:.3f} against {one:.3f}.",
        ),
    ]


def draw(found: Records) -> Figure:
    users, deviation = WORLDS[found.scale][0]
    first = [row for row in rows(found) if f"{users:,} users, deviation {deviation}" in row.what]
    return beside(first, "mean KL to the true histogram (nats)")


def wide(found: Records) -> pd.DataFrame:
    """Alone / fine-tuned: a line a method, a column a world and budget."""
    table: dict[str, dict[str, str]] = {}
    for cell in found.values:
        where, name, budget = cell.split(" | ")
        alone, tuned = found.mean(cell, "plain"), found.mean(cell, "tuned")
        shown = f"{alone:.3f}" if name == "Local" else f"{alone:.3f} / {tuned:.3f}"
        column = where.replace(", deviation 0.5", "") + (", not private" if budget == "none" else f", ε = {budget}")
        table.setdefault(name, {})[column] = shown
    return pd.DataFrame.from_dict(table, orient="index").fillna("").rename_axis("method").reset_index()


EXPERIMENT = Experiment(
    name="histograms-synthetic",
    work="Setlur et al.",
    shows="Private designs on synthetic users, not in the paper",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    wide=wide,
    seeds={"quick": 1, "paper": 5},
    size="not in the paper",
    setting=lambda scale: (
        "Users: " + "; ".join(f"{users:,} (deviation {deviation})" for users, deviation in WORLDS[scale]) + ". "
        "The smoothing of Local is chosen by the truth, a favour to it."
    ),
)
