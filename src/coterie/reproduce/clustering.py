"""The clustering tables of the documentation: ``python -m coterie.reproduce.clustering start|rotated|byzantine``.

All need MNIST (COTERIE_DATA). Each prints a table with its seeds, time and machine, and writes it as CSV to ``--out``.

start      how often IFCA finds all rotations: the start from updates, the paper's random start, and restarts at equal cost
rotated    IFCA, one global model and local models on rotated MNIST (IFCA, section 6.2, Table 1 and Figure 4)
byzantine  private labels with half the clients malicious (Werner, section 2.4, Figure 2.6)
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
import typer
from torch import Tensor

import coterie as ct
from coterie.algorithms.oracle import OracleState
from coterie.learning.metrics import cluster_accuracy
from coterie.training.run import Run
from coterie.tree import row

app = typer.Typer(help="The clustering tables of the documentation.", add_completion=False)
Out = Annotated[Path | None, typer.Option(help="Folder for the CSV files.")]
FULL_BATCH = ct.LocalSGD(steps=10, lr=0.1, batch_size=None)  # τ = 10, γ = 0.1, all of a client's pictures in a step
_SETTLED = 3  # rounds in a row with all identities right, after which a run of `start` ends


# ---- start -----------------------------------------------------------------------------------------------------------


def begin(algorithm: Any, federation: ct.Federation, task: ct.Task, seed: int) -> Run:
    """A run whose rounds are taken one by one."""
    run = Run(algorithm, federation, task, seed, ct.Everyone(), (), ct.LocalEngine(), None)
    run.begin(resume=False, overwrite=False)
    return run


def identities(algorithm: Any, federation: ct.Federation, task: ct.Task, seed: int, rounds: int) -> Iterator[float]:
    """Cluster accuracy (M-2) after every round."""
    run = begin(algorithm, federation, task, seed)
    for _ in range(rounds):
        run.one_round()
        yield cluster_accuracy(run.evaluation().clusters(), federation.clusters)


def one_start(algorithm: Any, federation: ct.Federation, task: ct.Task, seed: int, rounds: int) -> tuple[float, float]:
    """The last cluster accuracy and the round from which on it was 1 (NaN: never)."""
    since, accuracy = np.nan, 0.0
    for t, accuracy in enumerate(identities(algorithm, federation, task, seed, rounds), 1):
        since = np.nan if accuracy < 1 else since if since == since else t
        if t - since + 1 >= _SETTLED:
            break
    return accuracy, since


def starts(seeds: int, clients: int, samples: int, rounds: int, restarts: int) -> pd.DataFrame:
    """One row a seed and start; the seed rules data and training. Restarts share the rounds: `rounds / restarts` each."""
    task = mnist_task()
    plain = ct.IFCA(4, local=FULL_BATCH, start="random")
    rows = []
    for seed in range(seeds):
        fed = ct.datasets.mnist(clients=clients, samples=samples, test_samples=1, seed=seed)
        for name, algorithm in {"updates": replace(plain, start="updates"), "random": plain}.items():
            rows.append((name, seed, *one_start(algorithm, fed, task, seed, rounds)))
        options: dict[str, Any] = {"rounds": rounds // restarts, "alone": False, "progress": False}
        best = ct.best_of(restarts, plain, fed, task, seed=1000 * (seed + 1), **options)
        accuracy = cluster_accuracy(best.clusters.to_numpy(), fed.clusters)
        rows.append((f"best of {restarts}", seed, accuracy, float(rounds) if accuracy == 1 else np.nan))
        typer.echo(f"seed {seed}: " + ", ".join(f"{n} {a:.3f}" for n, s, a, _ in rows if s == seed), err=True)
    return pd.DataFrame(rows, columns=["start", "seed", "cluster accuracy", "rounds"])


@app.command()
def start(
    seeds: Annotated[int, typer.Option(min=1)] = 20,
    clients: Annotated[int, typer.Option(min=4)] = 240,
    samples: Annotated[int, typer.Option(min=1)] = 200,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of a run; restarts share them.")] = 30,
    restarts: Annotated[int, typer.Option(min=1)] = 3,
    out: Out = None,
) -> None:
    """Share of seeds on which IFCA finds all four rotations, and the round from which on it has them."""
    began = time.perf_counter()
    table = starts(seeds, clients, samples, rounds, min(restarts, rounds))
    summary = table.groupby("start", sort=False).agg(
        **{
            "all right": ("cluster accuracy", lambda a: float((a == 1).mean())),
            "worst accuracy": ("cluster accuracy", "min"),
            "median round": ("rounds", "median"),
            "last round": ("rounds", "max"),
        }
    )
    about = f"rotated MNIST, {clients} clients × {samples} pictures, {rounds} rounds, seeds 0–{seeds - 1}"
    report("ifca-start", summary.reset_index(), table, about, began, out)


# ---- rotated ---------------------------------------------------------------------------------------------------------


def mnist_task() -> ct.Task:
    """One hidden layer of 200 units."""
    return ct.Task(ct.models.mlp(784, 200, 10))


def worker_accuracy(
    models: dict[str, Tensor],
    federation: ct.Federation,
    task: ct.Task,
    samples: int,
    select: Literal["labels", "split"] = "labels",
) -> float:
    """M-3: test workers of one cluster and `samples` pictures choose among the k stacked models; mean accuracy.

    "labels" chooses by the loss on the very labels it is scored on, as the paper does; "split" chooses on the first half
    and scores on the second (erratum EC-8)."""
    clusters = np.zeros(len(federation), np.int64) if federation.clusters is None else federation.clusters
    half = samples // 2 if select == "split" else 0
    scores = []
    for cluster in np.unique(clusters):
        parts = [federation.test(client) for client in federation.clients[clusters == cluster]]
        x, y = (torch.cat(p) for p in zip(*parts, strict=True))
        workers = max(len(y) // samples, 1)
        y = y[: workers * samples].reshape(workers, -1)
        loss, right = [], []
        for j in range(len(next(iter(models.values())))):
            outputs = task.outputs(row(models, j), x[: y.numel()])
            loss.append(task.sample_losses(outputs, y.flatten()).reshape(y.shape)[:, : half or None].mean(1))
            right.append((outputs.argmax(-1).reshape(y.shape) == y)[:, half:].double().mean(1))
        best = torch.stack(loss).argmin(0)
        scores.append(torch.stack(right)[best, torch.arange(workers)])
    return float(torch.cat(scores).mean())


def follow(algorithm: Any, federation: ct.Federation, task: ct.Task, seed: int, rounds: int, every: int) -> Any:
    """Train; rows of (round, accuracy on the clients' own test pictures, cluster accuracy, seconds per round); the run."""
    run = begin(algorithm, federation, task, seed)
    rows: list[dict[str, Any]] = []
    for t in range(1, rounds + 1):
        seconds = run.one_round()["seconds"]
        if t % every and t != rounds:
            continue
        live, found = run.evaluation(), float("nan")
        if isinstance(algorithm, ct.IFCA):  # the clusters are found once, not once more for the scores
            labels = live.clusters()
            found = cluster_accuracy(labels, federation.clusters)
            live = replace(live, algorithm=ct.Oracle(), state=OracleState(run.state.models, torch.from_numpy(labels)))
        accuracy = live.test_means()["test_accuracy"]
        rows.append({"round": t, "accuracy": accuracy, "cluster accuracy": found, "seconds": seconds})
    return rows, run


@app.command()
def rotated(
    clients: Annotated[int, typer.Option(min=4)] = 1200,
    samples: Annotated[int, typer.Option(min=2)] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 60,
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    every: Annotated[int, typer.Option(min=1, help="Rounds between evaluations.")] = 1,
    out: Out = None,
) -> None:
    """IFCA, global and local accuracy on rotated MNIST."""
    began, task = time.perf_counter(), mnist_task()
    history: list[dict[str, Any]] = []
    summary = []
    methods: dict[str, Any] = {"IFCA": ct.IFCA(4, local=FULL_BATCH), "global": ct.FedAvg(FULL_BATCH)}
    for seed in range(seeds):
        fed = ct.datasets.mnist(clients=clients, samples=samples, seed=seed)
        for name, algorithm in (methods | {"local": ct.Local(FULL_BATCH)}).items():
            rows, run = follow(algorithm, fed, task, seed, rounds, every)
            history += [{"method": name, "seed": seed, **r} for r in rows]
            last = {"method": name, "seed": seed, "own test pictures": rows[-1]["accuracy"]}
            if name in methods:
                models = run.state.models if name == "IFCA" else {k: t[None] for k, t in run.state.model.items()}
                last["M-3"] = worker_accuracy(models, fed, task, samples)
                last["M-3, split"] = worker_accuracy(models, fed, task, samples, "split")
            right = [r["round"] for r in rows if r["cluster accuracy"] == 1]
            last["all identities from round"] = right[0] if right else np.nan
            last["seconds per round"] = float(np.median([r["seconds"] for r in rows]))
            summary.append(last)
            typer.echo(f"seed {seed}: {name} {last['own test pictures']:.4f}", err=True)
    numbers = pd.DataFrame(summary).groupby("method", sort=False).agg(_spread).drop(columns="seed").reset_index()
    about = f"rotated MNIST, {clients} clients × {samples} pictures, {rounds} rounds, seeds 0–{seeds - 1}"
    report("ifca-rotated", numbers, pd.DataFrame(history), about, began, out)


def _spread(values: pd.Series[float]) -> str:
    """mean ± deviation over seeds."""
    known = values.dropna()
    if not len(known):
        return ""
    deviation = f" ± {known.std():.4f}" if len(known) > 1 else ""
    return f"{known.mean():.4f}{deviation}"


# ---- byzantine -------------------------------------------------------------------------------------------------------


ATTACKS: dict[str, Callable[[Any], Any]] = {
    "large gradient (A-1)": lambda bad: ct.attacks.LargeGradient(bad, factor=100.0),
    "sign flip (A-2)": lambda bad: ct.attacks.SignFlip(bad),
    "huge noise": lambda bad: ct.attacks.GaussianNoise.huge(bad),
}


def good_accuracy(
    algorithm: Any, fed: ct.Federation, task: ct.Task, good: Any, seed: int, rounds: int, channels: list[Any]
) -> tuple[float, float]:
    """Mean accuracy of the good clients' own models and seconds per round; of the last finite models if a run diverges."""
    options: dict[str, Any] = {"alone": False, "progress": False, "channels": channels}
    try:
        result = ct.fit(algorithm, fed, task, rounds=rounds, seed=seed, **options)
    except ct.Diverged as end:
        result = end.result
    seconds = float(result.history["seconds"].median()) if len(result.history) else float("nan")
    return float(result.evaluate().loc[list(good), "accuracy"].mean()), seconds


def byzantine_table(
    seeds: int, clients: int, samples: int, rounds: int, groups: int, percentile: float, lr: float, inner: int
) -> pd.DataFrame:
    """One row a seed, method and attack. Client i is in cluster i mod 4; every second client of a cluster is malicious."""
    task = ct.Task(ct.models.linear(784, 10))
    clustering = ct.FederatedClustering(lr=lr, radius=ct.Percentile(percentile), groups=groups, inner=inner)
    step = clustering.local
    rows = []
    for seed in range(seeds):
        fed = ct.datasets.mnist(
            transform="shift_labels", clients=clients, samples=samples, disjoint=True, flatten=True, seed=seed
        )
        good, bad = ([i for i in range(clients) if (i // 4) % 2 == part] for part in (0, 1))
        for name, algorithm in {"Federated-Clustering": clustering, "global": ct.FedAvg(step)}.items():
            cases: list[tuple[str, ct.Federation, list[Any]]] = [
                ("none", fed, []),
                ("none, good clients only", fed.subset(good), []),
            ]
            cases += [(attack, fed, [make(bad)]) for attack, make in ATTACKS.items()]
            for attack, data, channels in cases:
                chosen: Any = algorithm
                if data is not fed and isinstance(chosen, ct.FederatedClustering):  # half the clients: groups as large
                    chosen = replace(chosen, groups=max(groups // 2, 1))
                accuracy, seconds = good_accuracy(chosen, data, task, good, seed, rounds, channels)
                rows.append((name, attack, seed, accuracy, seconds))
                typer.echo(f"seed {seed}: {name}, {attack}: {accuracy:.4f}", err=True)
        for name, algorithm in {"local": ct.Local(step), "true clusters": ct.Oracle(step)}.items():
            rows.append((name, "none", seed, *good_accuracy(algorithm, fed, task, good, seed, rounds, [])))
    return pd.DataFrame(rows, columns=["method", "attack", "seed", "accuracy of good clients", "seconds per round"])


@app.command()
def byzantine(
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    clients: Annotated[int, typer.Option(min=16, help="Half of them malicious.")] = 400,
    samples: Annotated[int, typer.Option(min=2)] = 150,
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    groups: Annotated[int, typer.Option(min=1)] = 8,
    percentile: Annotated[float, typer.Option(help="At most 12.5, the share of a cluster's good clients.")] = 8.0,
    lr: Annotated[float, typer.Option(min=0.0)] = 0.5,
    inner: Annotated[int, typer.Option(min=1)] = 30,
    out: Out = None,
) -> None:
    """Private labels, 4 × (50 good + 50 malicious) clients: accuracy of the good ones."""
    began = time.perf_counter()
    table = byzantine_table(seeds, clients, samples, rounds, groups, percentile, lr, inner)
    keys = ["method", "attack"]
    summary = table.drop(columns="seed").groupby(keys, sort=False).agg(_spread).reset_index()
    about = f"MNIST with private labels, {clients} clients × {samples} pictures, half malicious, {rounds} rounds, "
    about += f"{groups} groups, {percentile:g}th percentile, lr {lr:g}, seeds 0–{seeds - 1}"
    report("byzantine", summary, table, about, began, out)


# ---- output ----------------------------------------------------------------------------------------------------------


def machine() -> str:
    """Processor and threads in use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0] if models else name
    return f"{name}, {ct.LocalEngine().workers} workers, torch {torch.__version__}"


def report(name: str, summary: pd.DataFrame, table: pd.DataFrame, about: str, began: float, out: Path | None) -> None:
    """Print the summary; write it and the table behind it."""
    typer.echo(f"{about}; {time.perf_counter() - began:.0f} s on {machine()}")
    typer.echo(summary.round(4).to_string(index=False))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        summary.to_csv(out / f"{name}.csv", index=False)
        table.to_csv(out / f"{name}-runs.csv", index=False)


if __name__ == "__main__":
    app()
