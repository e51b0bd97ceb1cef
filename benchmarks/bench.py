"""Seconds a round and peak memory of coterie, a plain PyTorch loop and bare matrix products, on the same works in one run.

    python benchmarks/bench.py [--works W1,W2,W3,W4] [--repeat 5] [--workers 1,2] [--full]

Every contender runs in a process of its own; their rounds are interleaved, so that a busy machine hits all alike, and the
first round of each is left out. Read the ratios, not the seconds. W3 runs 60 of its clients unless `--full`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
BASE = "plain loop, 1 thread"
ABOUT = {
    "W1": "1,000 clients × 50 samples, MLP 60-32-10, batch 10, one epoch",
    "W2": "100 clients × 100 samples, MLP 784-100-10, batch 10, one epoch",
    "W3": "1,200 clients × 200 samples, MLP 784-200-10, 10 full-batch steps",
    "W4": "50 clients × 300 samples, CNN of 5 layers and 44,426 parameters, batch 32, one epoch",
}
CLIENTS = {"W1": 1000, "W2": 100, "W3": 1200, "W4": 50}
FEWER = CLIENTS | {"W3": 60}  # unless everything is asked for
BATCHED = {"W1": 50, "W2": 10, "W3": 5, "W4": 5}
COLUMNS = ("contender", "CPU s", "(least)", "× loop", "wall s", "(least)", "× loop", "peak MB")


@dataclass
class Contender:
    """A program that does one round at a time."""

    label: str
    arguments: Sequence[str]
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=lambda: {"OMP_NUM_THREADS": "1"})
    share: int = 1  # does one client in so many; its times are multiplied
    laps: list[dict[str, float]] = field(default_factory=list)

    def start(self, work: str, rounds: int) -> None:
        name, *options = self.arguments
        path = os.pathsep.join([str(HERE), str(HERE / "peers"), str(HERE.parent / "src")])
        self.process = subprocess.Popen(
            [self.python, str(HERE / "works.py"), work, name, str(rounds), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={k: v for k, v in (os.environ | {"PYTHONPATH": path} | self.env).items() if v},
        )

    def lap(self) -> None:
        """Wait for the round that runs."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"wall"'):
                self.laps.append(json.loads(line))
                return
        raise SystemExit(f"'{self.label}' ended with code {self.process.wait()} before its round was done; see above.")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.communicate("\n", timeout=120)

    def median(self, what: str) -> float:
        return statistics.median(lap[what] for lap in self.laps[1:]) * self.share

    def least(self, what: str) -> float:
        return min(lap[what] for lap in self.laps[1:]) * self.share


def contenders(work: str, workers: Sequence[int]) -> list[Contender]:
    return [
        Contender(BASE, ["loop", "threads=1"]),
        Contender("plain loop with torch.optim.SGD, 1 thread", ["loop", "threads=1", "optimiser=1"]),
        Contender(
            "plain loop, PyTorch's default threads (a tenth, × 10)",
            ["loop", "threads=0"],
            env={"OMP_NUM_THREADS": ""},
            share=10,
        ),
        Contender("only the matrix products, client by client", ["products"]),
        Contender(
            f"only the matrix products, {BATCHED[work]} clients at once", ["products", f"batched={BATCHED[work]}"]
        ),
        *(Contender(f"coterie, {n} worker{'s' * (n > 1)}", ["coterie", f"workers={n}"]) for n in workers),
    ]


def measure(work: str, field: list[Contender], repeat: int, clients: int) -> None:
    """Warm-up rounds, then `repeat` rounds of every contender in turn."""
    for contender in field:
        contender.arguments = [*contender.arguments, f"clients={clients // contender.share}"]
        contender.start(work, repeat + 1)
        contender.lap()
    for _ in range(repeat):
        for contender in field:
            contender.go()
            contender.lap()
    for contender in field:
        contender.stop()


def rows(field: list[Contender]) -> list[tuple[str, ...]]:
    base = next(c for c in field if c.label == BASE)
    table = []
    for c in field:
        cells = [c.label]
        for what in ("cpu", "wall"):
            cells += [
                f"{c.median(what):.3f}",
                f"{c.least(what):.3f}",
                f"{base.median(what) / max(c.median(what), 1e-9):.2f}",
            ]
        table.append((*cells, f"{c.laps[-1]['peak_mb']:.0f}"))
    return table


def machine() -> str:
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{date.today()}, {cpu}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, torch {version('torch')}, load average at the end {load}"
    )


def report(results: dict[str, tuple[str, list[tuple[str, ...]]]], file: Path, heading: str, notes: str) -> None:
    """Print the tables and write them as Markdown."""
    text = [f"# {heading}", "", f"{machine()}.", "", notes, ""]
    for work, (about, table) in results.items():
        shown = Table(*COLUMNS, title=f"{work}: {about}", title_justify="left")
        for row in table:
            shown.add_row(*row)
        Console(width=130).print(shown)
        text += [f"## {work}", "", about + ".", "", "| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * 7 + "|"]
        text += ["| " + " | ".join(row) + " |" for row in table] + [""]
    file.write_text("\n".join(text))
    Console().print(f"Written to {file}")


NOTES = """\
Medians and least values over the rounds of one run; "× loop" is how many times faster than the plain loop at one thread
(medians). One thread a process or worker, but for the loop with PyTorch's default threads (as many as cores),
which can be so slow that it does a tenth of the clients.
CPU seconds count all threads; on a busy machine they are steadier than wall time. Peak memory is the whole process, with
about 220 MB for PyTorch alone; coterie's also holds what it imports (pandas, SciPy, scikit-learn, pyarrow).
The plain loop reuses one model, shuffles once an epoch, and resets, steps and sums with one fused call each; the same
with `torch.optim.SGD` is what one would usually write.
"Only the matrix products" does nothing but the products of the forward and backward pass, in the shapes one client has,
in buffers that stay in the cache (several clients at once: one batched call, each client with operands of its own);
convolutions count as the products they are equal to. Repeat it with `make bench`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="W1,W2,W3,W4")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--full", action="store_true", help="all 1,200 clients of W3: several minutes and 6 GB")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    results = {}
    for work in options.works.split(","):
        field = contenders(work, [int(n) for n in options.workers.split(",")])
        clients = (CLIENTS if options.full else FEWER)[work]
        measure(work, field, options.repeat, clients)
        about = ABOUT[work] + (f" (measured on {clients} clients)" if clients < CLIENTS[work] else "")
        results[work] = (about, rows(field))
        Console().print(f"{work} done")
    report(results, options.out, "Benchmark results", NOTES)


if __name__ == "__main__":
    main()
