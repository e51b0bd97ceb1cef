"""Training as the experiments need it: accuracy and clusters after chosen rounds, and the papers' own measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.base.tree import row
from coterie.data.federation import Federation
from coterie.engines import LocalEngine
from coterie.exchange.messages import Algorithm
from coterie.learning.metrics import cluster_accuracy
from coterie.learning.task import Task
from coterie.training.cohorts import sampler
from coterie.training.run import Run
from reproductions.experiment import Measured


def begin(
    algorithm: Algorithm,
    federation: Federation,
    task: Task,
    seed: int,
    *,
    cohort: Any = None,
    channels: Sequence[Any] = (),
    start: Any = None,
) -> Run:
    """A run whose rounds are taken one by one."""
    run = Run(algorithm, federation, task, seed, sampler(cohort), tuple(channels), LocalEngine(), None, start=start)
    run.begin(resume=False, overwrite=False)
    return run


def follow(
    run: Run, rounds: int, every: int, clients: Any = None, clusters: bool = False, also: Sequence[int] = ()
) -> Measured:
    """Take the rounds; the mean test accuracy of the clients' own models (and how well the clusters are found, M-2) after
    every so many of them and after those of `also`, `clients` (a mask) alone if given."""
    kept: Measured = {"round": [], "accuracy": []} | ({"clusters": []} if clusters else {})
    for t in range(1, rounds + 1):
        run.one_round()
        if t % every and t != rounds and t not in also:
            continue
        live = run.evaluation()
        accuracy = live.scores()["accuracy"].to_numpy()
        kept["round"].append(t)
        kept["accuracy"].append(round(float((accuracy if clients is None else accuracy[clients]).mean()), 5))
        if clusters:
            kept["clusters"].append(round(cluster_accuracy(live.clusters(), run.federation.clusters), 5))
    return kept


def worker_accuracy(
    models: dict[str, Tensor],
    federation: Federation,
    task: Task,
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
