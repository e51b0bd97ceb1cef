"""The table of personal methods: ``python -m coterie.reproduce.personalisation mnist|femnist --seeds 3 --out FILE.json``.

mnist    50 clients with three shards of one digit each; a tenth of them takes part in a round
femnist  66 clients, each the digits of three writers; a third takes part in a round

Both use the five-layer network of section 4 of "A Statistical Framework for Personalized Federated Learning and
Estimation: Theory, Algorithms, and Privacy" (Kaan Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023,
https://arxiv.org/abs/2207.01771), EX-4, with τ = 10 steps a round and 60 batches an epoch. Every method's learning
rate is chosen from the same grid on validation rows of the training data, with half the rounds; all else is as
published. The file is written after every run, and a second call goes on where it ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import coterie as ct
from coterie.datasets.files import load_arrays
from coterie.datasets.partition import label_shards
from coterie.errors import ConfigError, Diverged
from coterie.settings import with_setting

app = typer.Typer(add_completion=False)
RATES = (0.05, 0.15)
ROUNDS = {"mnist": {"full": 300, "quick": 60}, "femnist": {"full": 240, "quick": 20}}
SHARE = {"mnist": 0.1, "femnist": 1 / 3}
WRITERS = 3  # of every client

METHODS: dict[str, Callable[[], Any]] = {
    "Local": ct.Local,
    "FedAvg": ct.FedAvg,
    "FedAvg + fine-tuning": ct.FineTuned,
    "AdaPeD": ct.AdaPeD,
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
    return _federation(x[rows], y[rows], sizes, seed, 1 / 6)


def femnist(seed: int) -> ct.Federation:
    """The digits of 198 writers, three writers to each of 66 clients; a tenth of a client's rows are test rows."""
    x, y, writer, complete = load_arrays("femnist.npz", "x", "y", "writer", "writer_complete")
    digits = np.flatnonzero(y < 10)
    count = np.bincount(writer[digits], minlength=len(complete))
    known = np.flatnonzero(complete.astype(bool) & (count >= 60))
    chosen = np.random.default_rng(seed).permutation(known)[: 66 * WRITERS].reshape(66, WRITERS)
    parts = [digits[np.isin(writer[digits], group)] for group in chosen]
    rows = np.concatenate(parts)
    return _federation(255 - x[rows], y[rows], np.array([len(p) for p in parts]), seed, 0.1)


def _federation(x: Any, y: Any, sizes: Any, seed: int, test: float) -> ct.Federation:
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


def score(name: str, federation: ct.Federation, share: float, rounds: int, rate: float, seed: int) -> float:
    """Mean over clients of the accuracy of their own models; NaN if the run diverges."""
    batch = max(int(np.median(federation.n_train)) // 60, 1)
    steps = ct.LocalSGD(steps=10, lr=rate, batch_size=batch, weight_decay=1e-4)
    algorithm = with_setting(METHODS[name](), "local", steps)
    cohort = max(round(share * len(federation)), 1)
    task = ct.Task(ct.models.small_cnn())
    engine = ct.LocalEngine(chunk=11)  # batches are small: convolutions of several clients at once pay
    options: dict[str, Any] = {"cohort": cohort, "engine": engine, "alone": False, "progress": False}
    try:
        run = ct.fit(algorithm, federation, task, rounds=rounds, seed=seed, **options)
    except Diverged:
        return float("nan")
    return float(run.scores()["accuracy"].mean())


def _best_rate(tuning: dict[str, float]) -> float:
    """The learning rate with the best validation score; a run that diverged has none."""
    return max(RATES, key=lambda rate: float(np.nan_to_num(tuning[str(rate)], nan=-1.0)))


def study(setting: str, seeds: int, rounds: int, out: Path, only: list[str]) -> dict[str, Any]:
    """All runs of a setting; those that the file already has are not made again."""
    found: dict[str, Any] = (
        json.loads(out.read_text()) if out.exists() else {"setting": setting, "rounds": rounds, "methods": {}}
    )
    if (found["setting"], found["rounds"]) != (setting, rounds):
        raise ConfigError(f"{out} holds {found['rounds']} rounds of {found['setting']}. Choose another file.")
    make: Callable[[int], ct.Federation] = {"mnist": mnist, "femnist": femnist}[setting]
    part = make(1000).holdout(0.2, 0)
    for name in only or METHODS:
        kept = found["methods"].setdefault(name, {"tuning": {}, "runs": {}})
        for rate in RATES:
            if str(rate) not in kept["tuning"]:
                kept["tuning"][str(rate)] = score(name, part, SHARE[setting], -(-rounds // 2), rate, 1000)
                _write(out, found)
    for seed in range(seeds):
        federation = make(seed)
        for name in only or METHODS:
            kept = found["methods"][name]
            if str(seed) in kept["runs"]:
                continue
            rate = _best_rate(kept["tuning"])
            began = time.perf_counter()
            accuracy = score(name, federation, SHARE[setting], rounds, rate, seed)
            seconds = time.perf_counter() - began
            kept["runs"][str(seed)] = {"accuracy": accuracy, "rate": rate, "seconds": round(seconds, 1)}
            _write(out, found)
            typer.echo(f"seed {seed}: {name} {accuracy:.4f} ({seconds:.0f} s)", err=True)
    return found


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
    setting: Annotated[str, typer.Argument(help="mnist or femnist")],
    out: Annotated[Path, typer.Option(help="JSON file of all runs; an old one is continued.")],
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    scale: Annotated[str, typer.Option(help="full or quick")] = "full",
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of the scale's number.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="One method; may be repeated.")] = None,
) -> None:
    """Run the study and print its table."""
    for name, value, known in (("setting", setting, ROUNDS), ("scale", scale, ROUNDS["mnist"])):
        if value not in known:
            raise typer.BadParameter(f"{name} is one of {', '.join(known)}; got {value!r}.")
    for name in only or []:
        if name not in METHODS:
            raise typer.BadParameter(f"There is no method {name!r}. Use one of {', '.join(METHODS)}.")
    typer.echo(markdown(study(setting, seeds, rounds or ROUNDS[setting][scale], out, only or [])))


if __name__ == "__main__":
    app()
