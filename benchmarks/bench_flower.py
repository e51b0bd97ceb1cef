"""What a round of a deployment costs beyond the work it carries: a real SuperLink and two SuperNodes on loopback, with TLS.

    .venv-flower/bin/python benchmarks/bench_flower.py [--rounds 6] [--out benchmarks/FLOWER.md]

Ditto on 20 clients × 500 rows × 50 columns, with more and more local steps; the same run in one process beside it. The first
round, in which sites map their rows, is left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from bench import HERE, machine

import coterie as ct

sys.path.insert(0, str(HERE.parent / "tests" / "flower"))

CLIENTS, ROWS, COLUMNS, SITES = 20, 500, 50, 2
FEATURES = [f"x{i}" for i in range(COLUMNS)]
CONFIG = """\
[data]
client = "who"
target = "label"
features = {features}
kind = "classification"

[algorithm]
name = "ditto"
[algorithm.local]
steps = {steps}
lr = 0.01
batch_size = 32

[run]
rounds = {rounds}
"""


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * ROWS, COLUMNS))
    told = pd.DataFrame(x, columns=FEATURES).assign(label=(x[:, 0] + rng.normal(size=len(x)) > 0).astype(int))
    return told.assign(who=[f"c{i:02d}" for i in np.repeat(np.arange(CLIENTS), ROWS)])


def here(rows: pd.DataFrame, steps: int, rounds: int) -> float:
    fed = ct.Federation.from_frame(rows, client="who", target="label", features=FEATURES, kind="classification")
    algorithm = ct.Ditto(local=ct.LocalSGD(steps=steps, lr=0.01, batch_size=32))
    return median(ct.fit(algorithm, fed, rounds=rounds, alone=False, progress=False).history["seconds"][1:])


def deployed(flower: Any, folder: Path, steps: int, rounds: int) -> float:
    from coterie.flower.project import write_project

    out = folder / f"out{steps}"
    write_project(folder / f"app{steps}", CONFIG.format(features=FEATURES, steps=steps, rounds=rounds), SITES)
    flower.run(folder / f"app{steps}", out=str(out))
    flower.wait((out / "deployment.json").exists, 900, "the end of the run")
    return median(pd.read_parquet(out / "history.parquet")["seconds"][1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=HERE / "FLOWER.md")
    options = parser.parse_args()
    from loopback import Deployment, free_port

    lines = [
        "# A round under Flower against the work it carries", "", f"{machine()}.", "",
        f"Ditto on {CLIENTS} clients × {ROWS} rows × {COLUMNS} columns at {SITES} sites; median seconds of "
        f"{options.rounds - 1} rounds.", "",
        "| local steps | in one process | under Flower | beyond the work |", "|---:|---:|---:|---:|",
    ]  # fmt: skip
    rows = table()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "deployment").mkdir()
        flower = Deployment(folder / "deployment")
        try:
            flower.superlink()
            ports = [free_port() for _ in range(SITES)]
            for i in range(SITES):
                file = folder / f"site{i}.csv"
                rows[rows["who"].str[1:].astype(int) % SITES == i].to_csv(file, index=False)
                key = flower.key(f"key{i}")
                flower.supernode(f"node{i}", key, ports[i], table=str(file), folder=str(folder / f"site{i}"))
            flower.workers(ports)
            for steps in (10, 1000, 10000):
                work, seconds = here(rows, steps, options.rounds), deployed(flower, folder, steps, options.rounds)
                lines.append(f"| {steps:,} | {work:.2f} s | {seconds:.2f} s | {seconds - work:+.2f} s |")
        finally:
            flower.stop()
    options.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
