"""What privacy costs in time: seconds a round of FedAvg, plain, private by simulation, and private with exact noise.

    python benchmarks/bench_private.py [--works W1,W2] [--repeat 7]

Rounds of the three are interleaved in one process, so that a busy machine hits all alike, and the first of each is left
out. Read the ratios, not the seconds. Exact noise draws about 70,000 coordinates a second, whatever the number of clients.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from works import LR, WORKS

import coterie as ct
from coterie.training.cohorts import Everyone
from coterie.training.run import Run

HERE = Path(__file__).parent
NOISES = (None, "simulation", "exact")


def begun(name: str, noise: str | None, rounds: int) -> Run:
    work = WORKS[name]
    x, y = work.data()
    n = work.clients
    federation = ct.Federation.from_flat(
        x.flatten(0, 1).numpy(),
        y.flatten().numpy(),
        sizes=np.full(n, work.samples),
        clients=range(n),
        n_test=np.zeros(n, np.int64),
        one_class="allow",
    )
    steps: dict[str, Any] = {"epochs": 1} if work.batch else {"steps": work.steps}
    local = ct.LocalSGD(lr=LR, batch_size=work.batch, **steps)
    privacy = None if noise is None else ct.Privacy(3.0, 1e-6, clip=1.0, noise=noise)
    run = Run(
        ct.FedAvg(local), federation, ct.Task(work.model), 0, Everyone(), (), ct.engines.LocalEngine(workers=1), None,
        privacy=privacy, rounds=rounds,
    )  # fmt: skip
    run.begin(resume=False, overwrite=False)
    return run


def measure(name: str, repeat: int) -> dict[str, float]:
    runs = {noise: begun(name, noise, repeat + 1) for noise in NOISES}
    laps: dict[str | None, list[float]] = {noise: [] for noise in NOISES}
    for _ in range(repeat + 1):
        for noise, run in runs.items():
            began = time.process_time()
            run.one_round()
            laps[noise].append(time.process_time() - began)
    seconds = {str(noise or "plain"): statistics.median(times[1:]) for noise, times in laps.items()}
    parameters = sum(t.numel() for t in runs[None].env.initial.values())
    return {"clients": len(runs[None].federation), "parameters": parameters} | seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", default="W1,W2")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ct.errors.CoterieWarning)
    found = {}
    for name in options.works.split(","):
        found[name] = row = measure(name, options.repeat)
        ratios = {f"{k} / plain": round(row[k] / row["plain"], 2) for k in ("simulation", "exact")}
        found[name] |= ratios
        print(name, {k: round(v, 3) for k, v in found[name].items()})
    (HERE / "private_rounds.json").write_text(json.dumps(found, indent=1) + "\n")
