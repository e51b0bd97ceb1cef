"""The tables of personal methods: ``python -m coterie.reproduce.personalisation SETTING --seeds 3 --out FILE.json``.

mnist    50 clients with three shards of one digit each; a tenth of them takes part in a round
femnist  66 clients, each the digits of three writers; a third takes part in a round (femnist-15: 0.15 of them)
labels, features, concept, sizes
         20 clients with scikit-learn's small digits, of which half take part in a round, that differ in which digits they
         have, in how pictures are turned, in what labels mean, or only in how many rows they have; one hidden layer of 50

The first two use the five-layer network of section 4 of "A Statistical Framework for Personalized Federated Learning and
Estimation: Theory, Algorithms, and Privacy" (Kaan Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023,
https://arxiv.org/abs/2207.01771), EX-4, with τ = 10 steps a round and 60 batches an epoch. Every method's learning
rate is chosen from the same grid on validation rows of the training data, with a third of the rounds; the
grid grows while the best rate is at its edge. All else is as published. "every client" marks the two methods whose
clients also train in rounds they are not sampled in. The file is written after every run, and a second call goes on
where it ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.datasets import load_digits

import coterie as ct
from coterie.datasets.files import load_arrays
from coterie.datasets.partition import label_shards
from coterie.errors import ConfigError, Diverged
from coterie.settings import with_setting

app = typer.Typer(add_completion=False)
RATES = (0.02, 0.05, 0.15, 0.4)
WIDER = 2.7  # the grid's next rate
MOST_RATES = 7
FIVE_LAYERS = ct.models.small_cnn()
WRITERS = 3  # of every client

METHODS: dict[str, Callable[[], Any]] = {
    "Local": ct.Local,
    "FedAvg": ct.FedAvg,
    "FedAvg + fine-tuning": ct.FineTuned,
    "Local, every client": ct.Local,
    "AdaPeD": lambda: ct.AdaPeD(catch_up=0),
    "AdaPeD, every client": ct.AdaPeD,
    "pFedMe": ct.PFedMe,
    "Per-FedAvg": lambda: ct.PerFedAvg(alpha=0.01),
    "QuPeD": ct.QuPeD,
    "Mutual learning": ct.MutualLearning,
    "FedEM": ct.FedEM,
    "FedRep": ct.FedRep,
    "APFL": ct.APFL,
    "Ditto": ct.Ditto,
    "Gaussian prior": ct.GaussianPrior,
    "Laplace prior": ct.LaplacePrior,
    "Mixture prior": lambda: ct.MixturePrior(clusters=3),
    "Discrete prior": lambda: ct.DiscretePrior(models=3),
    "FedProx": ct.FedProx,
    "SCAFFOLD": ct.Scaffold,
}


def mnist(seed: int) -> ct.Federation:
    """60,000 digits in 150 shards of one label, three to each of 50 clients; a sixth of a client's rows are test rows."""
    x, y = load_arrays("mnist.npz", "x_train", "y_train")
    rows, sizes = label_shards(y, clients=50, shards=3, seed=seed)
    return as_federation(x[rows], y[rows], sizes, seed, 1 / 6)


def femnist(seed: int) -> ct.Federation:
    """The digits of 198 writers, three writers to each of 66 clients; a tenth of a client's rows are test rows."""
    x, y, writer, complete = load_arrays("femnist.npz", "x", "y", "writer", "writer_complete")
    digits = np.flatnonzero(y < 10)
    count = np.bincount(writer[digits], minlength=len(complete))
    known = np.flatnonzero(complete.astype(bool) & (count >= 60))
    chosen = np.random.default_rng(seed).permutation(known)[: 66 * WRITERS].reshape(66, WRITERS)
    parts = [digits[np.isin(writer[digits], group)] for group in chosen]
    rows = np.concatenate(parts)
    return as_federation(255 - x[rows], y[rows], np.array([len(p) for p in parts]), seed, 0.1)


def as_federation(x: Any, y: Any, sizes: Any, seed: int, test: float) -> ct.Federation:
    return ct.Federation.from_flat(
        x[:, None],
        y,
        sizes=sizes,
        clients=range(len(sizes)),
        test_fraction=test,
        seed=seed,
        kind="classification",
        classes=range(10),
        one_class="allow",
    )


def digits(seed: int, kind: str) -> ct.Federation:
    """1,797 digits of 8×8 pixels on 20 clients that differ in one respect."""
    if kind in ("features", "concept"):
        transform: Any = "rotate" if kind == "features" else "shift_labels"
        return ct.datasets.digits(transform=transform, clients=20, seed=seed)
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    if kind == "labels":
        rows, sizes = label_shards(y, clients=20, shards=3, seed=seed)
    else:
        share = rng.dirichlet(np.full(20, 1.0))
        sizes = np.maximum((share * (len(y) - 20 * 12)).astype(np.int64) + 12, 12)
        rows = rng.permutation(len(y))[: sizes.sum()]
    return as_federation(x[rows].reshape(-1, 8, 8) / 16, y[rows], sizes, seed, 0.25)


@dataclass(frozen=True)
class Setting:
    make: Callable[[int], ct.Federation]
    share: float  # of the clients in a round
    full: int
    quick: int
    model: Callable[[], Any] = FIVE_LAYERS
    batch: int | None = None  # None: 60 batches an epoch
    rates: tuple[float, ...] = RATES


def small(kind: str) -> Setting:
    return Setting(partial(digits, kind=kind), 0.5, 30, 20, ct.models.mlp(64, 50, 10), 8)


SETTINGS = {
    "mnist": Setting(mnist, 0.1, 300, 60),
    "femnist": Setting(femnist, 1 / 3, 240, 24, rates=RATES[1:]),
    "femnist-15": Setting(femnist, 0.15, 480, 24, rates=RATES[1:]),
    **{kind: small(kind) for kind in ("labels", "features", "concept", "sizes")},
}


def score(name: str, setting: Setting, federation: ct.Federation, rounds: int, rate: float, seed: int) -> float:
    """Mean over clients of the accuracy of their own models; NaN if the run diverges."""
    batch = setting.batch or max(int(np.median(federation.n_train)) // 60, 1)
    steps = ct.LocalSGD(steps=10, lr=rate, batch_size=batch, weight_decay=1e-4)
    algorithm = with_setting(METHODS[name](), "local", steps)
    task = ct.Task(setting.model)
    cohort = max(round(setting.share * len(federation)), 1)
    if name == "Local, every client":
        cohort = len(federation)
    if name == "AdaPeD, every client":
        algorithm = with_setting(
            algorithm, "catch_up", round(len(federation) / cohort) - 1
        )  # rounds missed, on average
    options: dict[str, Any] = {"cohort": cohort, "alone": False, "progress": False}
    try:
        run = ct.fit(algorithm, federation, task, rounds=rounds, seed=seed, **options)
    except Diverged:
        return float("nan")
    return float(run.scores()["accuracy"].mean())


def study(setting: str, seeds: int, rounds: int, out: Path, only: list[str]) -> dict[str, Any]:
    """All runs of a setting; those that the file already has are not made again."""
    found: dict[str, Any] = {"setting": setting, "rounds": rounds, "methods": {}}
    if out.exists():
        found = json.loads(out.read_text())
    if (found["setting"], found["rounds"]) != (setting, rounds):
        raise ConfigError(f"{out} holds {found['rounds']} rounds of {found['setting']}. Choose another file.")
    how = SETTINGS[setting]
    part = how.make(1000).holdout(0.2, 0)
    for name in only or METHODS:
        kept = found["methods"].setdefault(name, {"tuning": {}, "runs": {}})
        while (rate := next_rate(kept["tuning"], how.rates)) is not None:
            kept["tuning"][str(rate)] = score(name, how, part, -(-rounds // 3), rate, 1000)
            _write(out, found)
    for seed in range(seeds):
        federation = how.make(seed)
        for name in only or METHODS:
            kept = found["methods"][name]
            if str(seed) in kept["runs"]:
                continue
            rate = best_rate(kept["tuning"])
            began = time.perf_counter()
            accuracy = score(name, how, federation, rounds, rate, seed)
            seconds = time.perf_counter() - began
            kept["runs"][str(seed)] = {"accuracy": accuracy, "rate": rate, "seconds": round(seconds, 1)}
            _write(out, found)
            typer.echo(f"seed {seed}: {name} {accuracy:.4f} ({seconds:.0f} s)", err=True)
    return found


def best_rate(tuning: dict[str, float]) -> float:
    """The rate of the highest validation accuracy; one that diverged has none."""
    return float(max(tuning, key=lambda rate: float(np.nan_to_num(tuning[rate], nan=-1.0))))


def next_rate(tuning: dict[str, float], grid: tuple[float, ...] = RATES) -> float | None:
    """The grid's rates, then wider ones while the best is the smallest or largest; None when the best lies inside."""
    for rate in grid:
        if str(rate) not in tuning:
            return rate
    tried, best = sorted(float(rate) for rate in tuning), best_rate(tuning)
    if len(tried) == MOST_RATES or best not in (tried[0], tried[-1]):
        return None
    return round(best * WIDER if best == tried[-1] else best / WIDER, 4)


def _write(out: Path, found: dict[str, Any]) -> None:
    """All or nothing: an interrupted run leaves the old file."""
    half = out.with_suffix(".part")
    half.write_text(json.dumps(found, indent=1))
    half.replace(out)


def markdown(found: dict[str, Any]) -> str:
    """The table of a study: mean ± deviation over seeds, best first; a method within two standard errors of the best
    method's runs with the same seeds is called tied."""
    runs = {
        name: {seed: 100 * r["accuracy"] for seed, r in kept["runs"].items()}
        for name, kept in found["methods"].items()
        if kept["runs"]
    }
    order = sorted(runs, key=lambda name: -np.nan_to_num(np.mean(list(runs[name].values())), nan=-1.0))
    best = runs[order[0]]
    lines = ["| method | accuracy (%) | behind the best | seeds | rate |", "|---|---|---|---|---|"]
    for name in order:
        values = list(runs[name].values())
        gaps = [best[s] - v for s, v in runs[name].items() if s in best]
        error = np.std(gaps, ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else float("nan")
        behind = (
            "best" if name == order[0] else f"{np.mean(gaps):.2f}" + (" (tied)" if np.mean(gaps) <= 2 * error else "")
        )
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        rate = next(iter(found["methods"][name]["runs"].values()))["rate"]
        lines.append(f"| {name} | {np.mean(values):.2f}{spread} | {behind} | {len(values)} | {rate} |")
    return "\n".join(lines)


@app.command()
def main(
    setting: Annotated[str, typer.Argument(help="mnist, femnist, femnist-15, labels, features, concept or sizes")],
    out: Annotated[Path, typer.Option(help="JSON file of all runs; an old one is continued.")],
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    scale: Annotated[str, typer.Option(help="full or quick")] = "full",
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of the scale's number.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="One method; may be repeated.")] = None,
) -> None:
    """Run the study and print its table."""
    if setting not in SETTINGS:
        raise typer.BadParameter(f"There is no setting {setting!r}. Use one of {', '.join(SETTINGS)}.")
    if scale not in ("full", "quick"):
        raise typer.BadParameter(f"The scale is full or quick; got {scale!r}.")
    for name in only or []:
        if name not in METHODS:
            raise typer.BadParameter(f"There is no method {name!r}. Use one of {', '.join(METHODS)}.")
    typer.echo(markdown(study(setting, seeds, rounds or getattr(SETTINGS[setting], scale), out, only or [])))


if __name__ == "__main__":
    app()
