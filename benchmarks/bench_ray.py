"""Seconds a round of W3 with one local worker, two local workers and two Ray actors, interleaved in one run.

    python benchmarks/bench_ray.py [--clients 60] [--repeat 7] [--out benchmarks/RAY.md]

Needs `coterie[ray]`. Every contender is a process of its own and waits while the others work; the first round of each, in
which Ray's actors get their data, is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import ABOUT, BASE, HERE, Contender, machine, measure

ONE = Contender("coterie, 1 worker", ["coterie", "workers=1"])
TWO = Contender("coterie, 2 workers (threads)", ["coterie", "workers=2"])
RAY = Contender("coterie, 2 Ray actors", ["coterie", "workers=2", "engine=ray"])
LOOP = Contender(BASE, ["loop", "threads=1"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "RAY.md")
    options = parser.parse_args()
    field = [ONE, TWO, RAY, LOOP]
    measure("W3", field, options.repeat, options.clients)
    base = ONE.median("wall")
    lines = [
        "# Ray against one process", "", f"{machine()}.", "",
        f"W3: {ABOUT['W3']} (measured on {options.clients} clients). Wall seconds a round over {options.repeat} rounds, "
        "interleaved in one run.", "",
        "| contender | median s | least s | times as fast as 1 worker | by the least |", "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for c in field:
        ratios = base / c.median("wall"), ONE.least("wall") / c.least("wall")
        cells = [f"{c.median('wall'):.3f}", f"{c.least('wall'):.3f}", *(f"{r:.2f}" for r in ratios)]
        lines.append("| " + " | ".join([c.label, *cells]) + " |")
    options.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
