"""``python -m reproductions.study STUDY --worlds N --out FILE.json [--figure FILE.svg]``."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from reproductions.study.plans import PLANS
from reproductions.study.store import run
from reproductions.study.tabulate import tabulate
from reproductions.study.worlds import World, simulate


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reproductions.study", description=__doc__)
    parser.add_argument(
        "study",
        choices=[
            *PLANS,
            "tables",
            "trained",
            "continuum",
            "deployment",
            "intervals",
            "dependent",
            "gainers",
            "expected",
            "rows",
        ],
    )
    parser.add_argument(
        "--worlds", type=int, default=50, help="worlds per cell; 0 only tabulates and draws what the file holds"
    )
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=1, help="repeats of the cross-validation")
    parser.add_argument("--only", default="", help="only cells or tables whose name contains this")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    try:
        records = run(given.out, _tasks(given), lambda text: print(text, file=sys.stderr, flush=True))
        print(tabulate(given.study, records))
        if given.figure is not None:
            from reproductions.study.figures import draw

            draw(given.study, records, given.figure)
    except CoterieError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _tasks(given: argparse.Namespace) -> list[tuple[str, Callable[[], Any]]]:
    if given.worlds == 0:
        return []
    if given.study == "tables":
        from reproductions.study.tables import tasks

        return tasks(given.only)
    if given.study == "deployment":
        from reproductions.study.deployment import tasks as deployment_tasks

        return deployment_tasks(given.only, given.first_seed)
    if given.study == "expected":
        from reproductions.study.expected import tasks as expected_tasks

        return expected_tasks(given.worlds, given.first_seed, given.only)
    if given.study == "intervals":
        from reproductions.study.intervals import tasks as interval_tasks

        return [task for task in interval_tasks(given.worlds, given.first_seed) if given.only in task[0]]
    if given.study == "dependent":
        from reproductions.study.dependent import dependent_worlds, simulate_dependent

        seeds = range(given.first_seed, given.first_seed + given.worlds)
        some_worlds = [w for w in dependent_worlds() if given.only in w.name]
        return [(f"{w.name}/{s}", partial(simulate_dependent, w, s)) for s in seeds for w in some_worlds]
    seeds = range(given.first_seed, given.first_seed + given.worlds)
    if given.study == "gainers":
        from reproductions.study.gainers import gainer_worlds, simulate_gainers

        kinds = [w for w in gainer_worlds() if given.only in w.name]
        return [(f"{w.name}/{s}", partial(simulate_gainers, w, s)) for s in seeds for w in kinds]
    if given.study == "rows":
        from reproductions.study.private_rows import row_worlds, simulate_rows

        protected = [w for w in row_worlds() if given.only in w.name]
        return [(f"{w.name}/{s}", partial(simulate_rows, w, s)) for s in seeds for w in protected]
    if given.study == "trained":
        from reproductions.study.trained import simulate_trained, trained_worlds

        some = [w for w in trained_worlds() if given.only in w.name]
        return [(f"{w.name} {w.metric}/{s}", partial(simulate_trained, w, s)) for s in seeds for w in some]
    if given.study == "continuum":
        from reproductions.study.continuum import continuum_worlds, simulate_continuum

        named = [w for w in continuum_worlds() if given.only in w.name]
        return [(f"{w.name}/{s}", partial(simulate_continuum, w, s)) for s in seeds for w in named]
    worlds: list[World] = [w for w in PLANS[given.study]() if given.only in w.name]
    return [(f"{w.name}/{s}", partial(simulate, w, s, given.repeats)) for s in seeds for w in worlds]


if __name__ == "__main__":
    raise SystemExit(main())
