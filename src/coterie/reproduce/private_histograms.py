"""Private histograms on synthetic users: what each design costs in KL, against Table 1's methods and the oracle.

    python -m coterie.reproduce.private_histograms --scale quick|paper [--seeds 1] --out results.json [--table table.md]
    python -m coterie.reproduce.private_histograms --scale blogs|reviews --out results.json

Synthetic users: 1/(rank + 2) over 1,000 tokens (Zipf and Mandelbrot), ten centres perturbed log-normally with deviation
0.5, α = 300, 500 tokens per user; mean KL against the true Q_u of the first 10,000 users. Blogs: the corpus and the
cut of `coterie.reproduce.histograms`, against test tokens. Reviews: 100,000 film reviews, one "user" each, two fifths of
its tokens for testing, judged on the first 10,000 (both need COTERIE_DATA). Noise is a simulation with a seed, so
that the table can be made again; the noise of a real release has the same law. Every number is saved when it is
made: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from coterie.estimation.histograms.baselines import FedAvgHistogram, IFCAHistograms, LocalHistograms
from coterie.estimation.histograms.counts import Counts, Floats, read_counts
from coterie.estimation.histograms.kl import kl_rows
from coterie.estimation.histograms.mixture import HistogramMixture
from coterie.estimation.histograms.model import sample_histograms
from coterie.estimation.histograms.personal import CenterModel
from coterie.privacy import Privacy
from coterie.reproduce.histograms import Corpus, load_counts

BUDGETS = ((15.0, 1e-10), (3.0, 1e-6))
CLUSTERS, JUDGED = 10, 10_000
LOCAL_SMOOTHING = (0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Scale:
    """How many users and tokens, and how strongly centres differ."""

    users: tuple[int, ...]
    tokens: int = 1000
    deviation: float = 0.5


SCALES = {
    "quick": Scale((5_000,)),
    "paper": Scale((20_000, 100_000)),
    "harder": Scale((20_000,), deviation=0.25),
}


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
    """KL of each row; dense true histograms are positive everywhere."""
    if sp.issparse(truth):
        return kl_rows(truth, models, 1e-9)
    return np.asarray(np.einsum("ij,ij->i", truth, np.log(truth) - np.log(models)))


def synthetic(users: int, scale: Scale, seed: int) -> Data:
    """The mixture of the module, drawn in blocks."""
    rng = np.random.default_rng([seed, 77])
    base = 1 / (np.arange(scale.tokens) + 3)
    centers = base * np.exp(scale.deviation * rng.normal(size=(CLUSTERS, scale.tokens)))
    centers /= centers.sum(axis=1, keepdims=True)
    counts, truth, left = [], [], min(users, JUDGED)
    for start in range(0, users, 5000):
        size = min(5000, users - start)
        block = sample_histograms(centers, users=size, tokens=500, concentration=300, rng=rng)
        counts.append(block.counts)
        truth.append(block.histograms[: max(left, 0)])
        left -= size
    return Data(sp.csr_array(sp.vstack(counts, format="csr")), np.concatenate(truth), centers)


def blogs(seed: int) -> Data:
    """One run's cut of the corpus: the users who learn together, judged by their test tokens."""
    counts = load_counts(Path(os.environ["COTERIE_DATA"]) / "user_tokens_blogs.npz")
    split = Corpus.cut(counts, 0).for_run(seed)
    return Data(split.train, split.test)


def reviews(seed: int) -> Data:
    """Every review of the film corpus: three fifths of its tokens to learn from, the others to be judged by."""
    counts = read_counts(Path(os.environ["COTERIE_DATA"]) / "user_tokens_imdb.npz").counts
    split = Corpus.cut(counts, seed)
    return Data(split.pool, split.test[:JUDGED])


CORPORA = {"blogs": blogs, "reviews": reviews}


def _oracle(data: Data) -> CenterModel:
    model = FedAvgHistogram(concentration=300.0).fit(data.train[:2])
    model.centers_, model.weights_ = np.asarray(data.centers), np.full(CLUSTERS, 1 / CLUSTERS)
    return model


def methods(epsilon: float | None, delta: float, seed: int, *, ifca: bool) -> dict[str, Callable[[Data], CenterModel]]:
    """Without privacy (ε None), or at ε."""
    if epsilon is None:
        return {
            "FedAvg": lambda data: FedAvgHistogram(lam=None).fit(data.train),
            "Alg. 1 + 2": lambda data: HistogramMixture(CLUSTERS, seed=seed).fit(data.train),
            "oracle centres": _oracle,
        }
    privacy = Privacy(epsilon, delta, clip=1.0, noise="simulation")
    out: dict[str, Callable[[Data], CenterModel]] = {
        "private FedAvg": lambda data: FedAvgHistogram(lam=None, privacy=privacy, seed=seed).fit(data.train),
        "Alg. 3, non-private start": lambda data: _mixture(privacy, "paper", seed, data),
        "A+": lambda data: _mixture(privacy, "A+", seed, data),
        "B+": lambda data: _mixture(privacy, "B+", seed, data),
    }
    if ifca:
        model = IFCAHistograms(CLUSTERS, 20, 100.0, seed, privacy=privacy)
        out["private IFCA"] = lambda data: model.fit(data.train)
    return out


def _mixture(privacy: Privacy, method: Any, seed: int, data: Data) -> HistogramMixture:
    return HistogramMixture(CLUSTERS, privacy=privacy, method=method, seed=seed).fit(data.train)


class Results:
    """A JSON file of cells; a cell that is there is not made again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def make(self, key: str, work: Callable[[], dict[str, Any]]) -> None:
        """Compute and save, unless it is there."""
        if key in self.cells:
            return
        start = time.perf_counter()
        self.cells[key] = work() | {"seconds": round(time.perf_counter() - start, 1)}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.cells, indent=1, sort_keys=True) + "\n")
        part.replace(self.path)
        print(key, self.cells[key], flush=True)


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


def run(scale: str, seeds: int, results: Results, only: tuple[str, ...] = ()) -> None:
    """All cells of a scale, or those of the methods named: users × seed × budget × method."""
    for users in (0,) if scale in CORPORA else SCALES[scale].users:
        for seed in range(seeds):
            _cells(scale, users, seed, results, only)


def _cells(scale: str, users: int, seed: int, results: Results, only: tuple[str, ...]) -> None:
    """One draw of the data, made when the first cell needs it."""

    @lru_cache(maxsize=1)
    def data() -> Data:
        return CORPORA[scale](seed) if scale in CORPORA else synthetic(users, SCALES[scale], seed)

    where = f"{scale} n={users} seed={seed}"
    if not only or "Local" in only:
        results.make(f"{where} | Local | none", lambda: _local(data()))
    for epsilon, delta in ((None, 1.0), *BUDGETS):
        budget = "none" if epsilon is None else f"{epsilon:g}"
        for name, make in methods(epsilon, delta, seed, ifca=users <= 20_000 and scale != "reviews").items():
            if (scale in CORPORA and name == "oracle centres") or (only and name not in only):
                continue
            results.make(f"{where} | {name} | {budget}", lambda make=make: _judge(data(), make))  # type: ignore[misc]


def markdown(cells: dict[str, dict[str, Any]], scale: str) -> str:
    """Means over seeds, plain / fine-tuned; a row per method, a column per number of users and budget."""
    table: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for key, cell in cells.items():
        where, name, budget = key.split(" | ")
        kind, users, _ = where.split(" ")
        if kind == scale:
            column = f"{users.removeprefix('n=')} users, ε = {budget}"
            table.setdefault(name, {}).setdefault(column, []).append((cell["plain"], cell["tuned"]))
    columns = sorted({column for row in table.values() for column in row})
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in table.items():
        means = {column: np.mean(values, axis=0) for column, values in row.items()}
        texts = [f"{means[c][0]:.3f} / {means[c][1]:.3f}" if c in means else "" for c in columns]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=(*SCALES, *CORPORA), default="quick")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="names of methods; all if left out")
    parser.add_argument("--out", type=Path, required=True, help="JSON; a file that exists is continued")
    parser.add_argument("--table", type=Path, help="write the table as Markdown here")
    options = parser.parse_args()
    if options.scale in CORPORA and not os.environ.get("COTERIE_DATA"):
        parser.error("the corpus is needed; set COTERIE_DATA to the folder with user_tokens_blogs.npz and …_imdb.npz")
    os.nice(10)
    results = Results(options.out)
    run(options.scale, options.seeds, results, tuple(options.only))
    text = markdown(results.cells, options.scale)
    print(text)
    if options.table:
        options.table.write_text(text)


if __name__ == "__main__":
    main()
