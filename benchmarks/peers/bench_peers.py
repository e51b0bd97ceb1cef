"""coterie, the plain loop, pfl-research and Flower's simulation on the same works, in one run.

    python benchmarks/peers/bench_peers.py [--works W1,W2,W4] [--repeat 3] [--peers-python .venv-peers/bin/python]

Runs in the main environment; the peers' processes use the interpreter of theirs (see requirements.txt).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from bench import ABOUT, BASE, CLIENTS, Contender, measure, report, rows  # noqa: E402

OFFLINE = {  # no telemetry, no downloads, loopback only
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
NOTES = """\
Medians and least values over the rounds of one run, the first round of each (which starts Flower's actors) left out;
"× loop" is how many times faster than the plain loop at one thread (medians). CPU seconds and peak memory count all
processes of a contender; memory that processes share counts more than once. pfl-research 0.6.0 runs its `SimulatedBackend`
in one process at one thread. Flower 1.41.0 runs its `FedAvg` strategy in the Simulation Runtime with two single-thread Ray
actors; its client function is the plain loop's. Repeat it with `make bench-peers`."""


def contenders(peers: str, home: str) -> list[Contender]:
    return [
        Contender(BASE, ["loop"]),
        Contender("coterie, 1 worker", ["coterie", "workers=1"]),
        Contender("coterie, 2 workers", ["coterie", "workers=2"]),
        Contender("pfl-research 0.6.0", ["pfl_contender:run"], peers),
        Contender("Flower 1.41.0 simulation, 2 actors", ["flower_contender:run"], peers, OFFLINE | {"FLWR_HOME": home}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="W1,W2,W4")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers-python", default=".venv-peers/bin/python")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    if not Path(options.peers_python).exists():
        raise SystemExit(
            f"{options.peers_python} does not exist. Build the peers' environment with `make bench-peers`."
        )
    results = {}
    for work in options.works.split(","):
        with tempfile.TemporaryDirectory() as home:
            field = contenders(options.peers_python, home)
            measure(work, field, options.repeat, CLIENTS[work])
        results[work] = (ABOUT[work], rows(field))
        Console().print(f"{work} done")
    report(results, options.out, "Benchmark results against other toolkits", NOTES)


if __name__ == "__main__":
    main()
