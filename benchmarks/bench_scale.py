"""What grows with the number of clients: seconds and memory from a thousand clients to a million.

    python benchmarks/bench_scale.py [--clients 1000,10000,100000,1000000] [--repeat 7] [--out benchmarks/scale.json]
    python benchmarks/bench_scale.py --draw      # figure and table anew, from the numbers that are there

Clients have ten samples of 20 features each (two of them test rows) and a linear model; 100 of them take part in a round of
five steps. Every cell runs in a process of its own; seconds are of the processor. Written: the numbers (JSON),
docs/figures/scale.svg, and the table between the marks of docs/large.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
ALGORITHMS = {"FedAvg": "#4a6fa5", "IFCA": "#2a7f62", "Ditto": "#b5443c"}  # and their colours
ROWS, FEATURES, COHORT, STEPS = 10, 20, 100, 5
WHAT = {
    "construction": "building the federation (s)",
    "begin": "start and first round (s)",
    "round": "a round (s)",
    "checkpoint": "a checkpoint (s)",
    "evaluation": "scores of all clients (s)",
    "sample": "scores of 1,000 clients (s)",
    "save": "saving the result (s)",
    "memory": "peak memory above the library's (MB)",
}


def measure(clients: int, name: str, rounds: int) -> dict[str, float]:
    """One cell, in this process."""
    import coterie as ct

    local = ct.LocalSGD(steps=STEPS, lr=0.1, batch_size=4)
    algorithm: Any = {
        "FedAvg": ct.FedAvg(local),
        "IFCA": ct.IFCA(clusters=2, local=local),
        "Ditto": ct.Ditto(local=local),
    }[name]
    task = ct.Task(ct.models.linear(FEATURES, 2))
    small = _federation(ct, 200)
    ct.fit(algorithm, small, task, rounds=1, cohort=COHORT, alone=False, progress=False).scores()
    bare = _peak()
    x = np.random.default_rng(0).normal(size=(clients * ROWS, FEATURES)).astype(np.float32)
    began = time.process_time()
    federation = _federation(ct, clients, x)
    found = {"construction": time.process_time() - began}
    laps, saves = [time.process_time()], []

    def lap(run: Any) -> None:
        laps.append(time.process_time())
        run.save()
        saves.append(time.process_time() - laps[-1])

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"cohort": COHORT, "alone": False, "progress": False, "checkpoint_every": 10**9}
        result = ct.fit(algorithm, federation, task, rounds=rounds, callbacks=[lap], out=folder, **options)
    rounds_only = np.diff(laps)[1:] - saves[:-1]
    found |= {
        "begin": laps[1] - laps[0],
        "round": float(np.median(rounds_only)),
        "checkpoint": statistics.median(saves),
    }
    for step, work in (
        ("evaluation", result.evaluation.scores),
        ("sample", lambda: result.scores(sample=1000)),
        ("save", lambda: result.save(tempfile.mkdtemp())),
    ):
        began = time.process_time()
        work()
        found[step] = time.process_time() - began
    return found | {"memory": _peak() - bare}


def _federation(ct: Any, clients: int, x: Any = None) -> Any:
    x = np.random.default_rng(0).normal(size=(clients * ROWS, FEATURES)).astype(np.float32) if x is None else x
    return ct.Federation.from_flat(
        x,
        (x[:, 0] > 0).astype(int),
        sizes=np.full(clients, ROWS),
        clients=range(clients),
        test_fraction=0.2,
        seed=0,
        kind="classification",
        classes=[0, 1],
        one_class="allow",
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def slope(cells: dict[str, dict[str, float]], what: str) -> float:
    """Of log seconds over log clients, from the two largest federations."""
    (m, small), (n, large) = [(int(k), v[what]) for k, v in list(cells.items())[-2:]]
    return float(np.log(large / small) / np.log(n / m)) if small > 0 and large > 0 else 0.0


def table(found: dict[str, Any]) -> str:
    """Medians over algorithms would hide Ditto's states: one table for each."""
    lines = []
    for name in ALGORITHMS:
        cells = found["cells"][name]
        sizes = [f"{int(m):,}" for m in cells]
        lines += [f"**{name}**", "", f"| clients | {' | '.join(sizes)} | slope | at 10,000,000 |"]
        lines.append("|---|" + "---:|" * (len(sizes) + 2))
        for what, title in WHAT.items():
            values = [cell[what] for cell in cells.values()]
            grows = slope(cells, what)
            largest = max(int(m) for m in cells)
            ahead = values[-1] * (1e7 / largest) ** max(grows, 0.0)
            lines.append(f"| {title} | {' | '.join(_short(v) for v in values)} | {grows:.2f} | {_short(ahead)} |")
        lines.append("")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def draw(found: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for ax, (name, colour) in zip(figure.subplots(1, 3, sharey=True), ALGORITHMS.items(), strict=True):
        cells = found["cells"][name]
        sizes = [int(m) for m in cells]
        for what, style in (("round", "-o"), ("checkpoint", ":s"), ("evaluation", "--^"), ("save", "-.d")):
            label = f"{what}, slope {slope(cells, what):.2f}"
            ax.loglog(sizes, [c[what] for c in cells.values()], style, color=colour, label=label, lw=1.4, ms=4)
        ax.set(title=name, xlabel="clients")
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, lw=0.5)
        ax.legend(fontsize=7, frameon=False)
    figure.axes[0].set_ylabel("seconds")
    figure.savefig(path, metadata={"Date": None})


def write_docs(found: dict[str, Any]) -> None:
    page, marks = DOCS / "large.md", ("<!-- scale: begin -->", "<!-- scale: end -->")
    draw(found, DOCS / "figures" / "scale.svg")
    if page.exists() and all(mark in page.read_text() for mark in marks):
        text = page.read_text()
        head, tail = text.split(marks[0])[0], text.split(marks[1])[1]
        page.write_text(f"{head}{marks[0]}\n{table(found)}\n{marks[1]}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="1000,10000,100000,1000000")
    parser.add_argument("--repeat", type=int, default=7, help="rounds; the median of all but the first counts")
    parser.add_argument("--out", type=Path, default=HERE / "scale.json")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.draw:
        write_docs(json.loads(given.out.read_text()))
        return
    if given.cell:
        print(json.dumps(measure(int(given.cell[0]), given.cell[1], given.repeat)))
        return
    found: dict[str, Any] = {"cells": {name: {} for name in ALGORITHMS}}
    for clients in given.clients.split(","):
        for name in ALGORITHMS:
            command = [sys.executable, __file__, "--cell", clients, name, "--repeat", str(given.repeat)]
            line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
            found["cells"][name][clients] = {k: round(v, 4) for k, v in json.loads(line).items()}
            print(clients, name, found["cells"][name][clients], flush=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    write_docs(found)
    print(table(found))


if __name__ == "__main__":
    main()
