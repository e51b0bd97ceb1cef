"""A large table: CPU seconds and peak memory of `compare` in a fresh process.

`python benchmarks/bench_table.py --rows 1000000 --clients 1000 --family linear` writes one line to `table.json`."""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd

import coterie as ct

HERE = Path(__file__).parent


def table(rows: int, clients: int, columns: int = 8) -> pd.DataFrame:
    """Clients with slopes of their own, a curve that all share, and a category."""
    rng = np.random.default_rng(0)
    owner = rng.integers(clients, size=rows)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    slope = 0.3 * rng.normal(size=(clients, columns)) + 0.5
    y = (X * slope[owner]).sum(1) + np.abs(X[:, 1]) + rng.normal(size=rows)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(columns)])
    return frame.assign(kind=rng.choice(list("abcd"), rows), client=owner, y=y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--family", choices=["linear", "auto", "trees"], default="linear")
    given = parser.parse_args()
    frame = table(given.rows, given.clients)
    cpu, wall = time.process_time(), time.perf_counter()
    found = ct.compare(frame, client="client", target="y", family=given.family)
    name = f"{given.rows} rows, {given.clients} clients, {given.family}"
    line = {
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "seconds": round(time.perf_counter() - wall, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "deploy": found.deploy.name if found.deploy is not None else "",
    }
    file = HERE / "table.json"
    records = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(records | {name: line}, indent=1) + "\n")
    print(name, line)


if __name__ == "__main__":
    main()
