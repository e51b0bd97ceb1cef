"""What secure sums cost: seconds and bytes of a site and of the server, and a round under Flower with and without them.

    .venv/bin/python benchmarks/bench_secure.py            # sites and server in one process
    .venv-flower/bin/python benchmarks/bench_secure.py --flower   # and a real SuperLink with three SuperNodes

The numbers go to benchmarks/secure.json; those of the other part are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from bench import HERE, machine

from coterie.secure.identity import Identity
from coterie.secure.server import Answer, SecureServer
from coterie.secure.settings import Secure
from coterie.secure.site import SecureSite

sys.path.insert(0, str(HERE.parent / "tests" / "flower"))
NUMBERS, SITES, SUMS = 100_000, (3, 10, 20, 50), 5
FILE = HERE / "secure.json"


def of_sites(count: int, lost: int) -> dict[str, float]:
    """Medians over some sums, in seconds of a processor; ``lost`` sites agree on keys and then do not answer."""
    secure, seconds, size = Secure(count), {}, {}  # type: ignore[var-annotated]
    own = {f"site {i + 1}": Identity.made() for i in range(count)}
    known = replace(secure, sites=[f"{who.public} {name}" for name, who in own.items()])
    sites = {name: SecureSite(who, known, "bench") for name, who in own.items()}
    rows = np.arange(NUMBERS)

    def timed(step: str, function: Any, *given: Any) -> Any:
        began = time.process_time()
        found = function(*given)
        seconds.setdefault(step, []).append(time.process_time() - began)
        plain = {k: v for k, v in found.items() if k != "masked"}
        size.setdefault(step, []).append(len(json.dumps(plain)) + getattr(found.get("masked"), "nbytes", 0))
        return found

    def tell(messages: Any) -> Any:
        return {n: timed(str(m["step"]), sites[n].answer, m) for n, m in messages.items()}

    def put(orders: Any) -> Any:
        found = {n: timed("mask", sites[n].mask, o, ask, "about", rows) for n, o in list(orders.items())[lost:]}
        return {n: Answer(one["masked"], one["context"]) for n, one in found.items()}

    server = SecureServer(known, "bench", {n: who.public for n, who in own.items()}, tell)
    whole = []
    for ask in range(SUMS):
        server.forget(ask)
        server._failed.clear()  # keys are agreed on once, also if sites are lost
        began, before = time.process_time(), sum(map(sum, seconds.values()))
        assert (server.add(ask, "about", NUMBERS, put).numbers == rows * (count - lost)).all()
        whole.append(time.process_time() - began - (sum(map(sum, seconds.values())) - before))
    return {
        "sites": count, "lost": lost,
        "agreement, seconds of a site": round(median(seconds["keys"]) + median(seconds["shares"]), 4),
        "sum, seconds of a site": round(median(seconds["mask"][count:]) + median(seconds["open"]), 4),
        "sum, seconds of the server": round(median(whole[1:]), 4),
        "agreement, bytes from a site": int(median(size["keys"]) + median(size["shares"])),
        "sum, bytes from a site": int(median(size["mask"]) + median(size["open"])),
        "plain sum, bytes from a site": 8 * NUMBERS,
    }  # fmt: skip


CONFIG = """\
[data]
client = "who"
target = "label"
features = {features}
kind = "classification"
scaling = "own"
classes = [0, 1]

[algorithm]
name = "fedavg"
[algorithm.local]
steps = 10
lr = 0.1

[run]
rounds = {rounds}
"""


def under_flower(rounds: int, turns: int) -> dict[str, Any]:
    """Seconds of rounds of FedAvg at three SuperNodes, plain and with secure sums. Runs of both kinds take turns, and the
    first round of each run, with the agreement on keys, is kept apart."""
    from loopback import Deployment, free_port

    from coterie.flower.project import write_project

    features = [f"x{i}" for i in range(20)]
    seconds: dict[str, list[float]] = {"plain": [], "secure": []}
    first: dict[str, list[float]] = {"plain": [], "secure": []}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "deployment").mkdir()
        flower = Deployment(folder / "deployment")
        try:
            flower.superlink()
            ports, rng, lines = [free_port() for _ in range(3)], np.random.default_rng(0), []
            for i, port in enumerate(ports):
                x = rng.normal(size=(500, 20))
                told = pd.DataFrame(x, columns=features).assign(label=(x[:, 0] > 0).astype(int), who=f"hospital {i}")
                told.to_csv(folder / f"site{i}.csv", index=False)
                key = flower.key(f"key{i}")
                lines.append((folder / "deployment" / f"key{i}.pub").read_text().strip())
                where = {"table": str(folder / f"site{i}.csv"), "folder": str(folder / f"site{i}")}
                flower.supernode(f"node{i}", key, port, **where, key=str(key))
            flower.workers(ports)
            more = {"plain": "", "secure": f"\n[secure]\nsites = {json.dumps(lines)}\n"}
            for name in more:
                write_project(folder / name, CONFIG.format(features=features, rounds=rounds) + more[name], 3)
            for turn in range(turns):
                for name in more if turn % 2 == 0 else reversed(more):
                    out = folder / f"out-{name}-{turn}"
                    flower.run(folder / name, out=str(out))
                    flower.wait((out / "deployment.json").exists, 900, "the end of the run")
                    took = pd.read_parquet(out / "history.parquet")["seconds"].round(2).tolist()
                    first[name].append(took[0])
                    seconds[name] += took[1:]
                    print(name, took, flush=True)
        finally:
            flower.stop()
    ratio = round(median(seconds["secure"]) / median(seconds["plain"]), 2)
    return {"ratio of medians": ratio, "load": os.getloadavg()[1], "rounds": seconds, "first rounds": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flower", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=4)
    options = parser.parse_args()
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    if options.flower:
        kept["flower"] = {"machine": machine()} | under_flower(options.rounds, options.turns)
    else:
        rows = [of_sites(count, lost) for count in SITES for lost in (0, max(count // 10, 1)) if count > 3 or not lost]
        kept["sites"] = {"machine": machine(), "numbers": NUMBERS, "rows": rows}
    FILE.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
