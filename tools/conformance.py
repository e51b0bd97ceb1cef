"""Every algorithm and estimator on every engine, in the suite's settings: the tables of docs/conformance.md.

    python tools/conformance.py            # writes docs/conformance.md (needs coterie[ray])
    python tools/conformance.py sites      # only the last column anew (needs neither Ray nor Flower)
    python tools/conformance.py estimators # only the table of estimators anew (needs Ray)

A cell is the largest difference from the vectorised engine in anything a run ends with (server state, clients' private
states, every client's model), relative to the larger of 1 and the number. An engine joins by an entry in `COLUMNS`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("conformance", "flower", ".")]

from conformance_settings import COHORT, NAMES, PAIR, PAIRS, ROUNDS, configured, difference, small_task, some  # noqa: E402
from together import both  # noqa: E402

import coterie as ct  # noqa: E402
from conftest import build  # noqa: E402

PAGE = ROOT / "docs" / "conformance.md"
COLUMNS: dict[str, Callable[[], Any]] = {
    "vectorised": lambda: ct.engines.LocalEngine(workers=1),
    "loop": ct.engines.LoopEngine,
    "Ray, 2 actors": lambda: ct.engines.RayEngine(actors=2),
}
SITES = "sites, as under Flower"
TEXT = """\
# The same numbers on every engine

`python tools/conformance.py` writes this page; the tests keep it complete. Every algorithm of the registry runs {rounds}
rounds with {cohort} of 12 clients of unequal size (a network of two layers in float32, 3 local steps where they can
be set) on every engine. A number is the largest difference from the vectorised engine in the server's state, any
client's private state or any client's model at the end of a run, relative to the larger of 1 and the value itself.
0 means bit-identical. Engines add in different orders, and a batched product may round differently when other clients
share its batch; the tests demand 1e-5 of Ray and 2e-5 of the loop. "Sites" are the server and the sites of a deployment,
in one process with their messages as bytes, on a table of 7 clients at 3 sites. There the private states are compared
through the models they give.

"""


ESTIMATED = """\

## Estimators

`ct.fit(estimator, federation)` asks clients for sums of their rows. A number is the largest difference from the same
estimator's own `fit` on all rows, in anything it learned, relative to the larger of 1 and the value. "Sites" are those of a
project with `[estimate]`, in one process with their messages as bytes. Means, rates and linear models take one exchange,
logistic models one per round of the prior and two more.

"""


def runs(name: str, engine: Any) -> ct.Result:
    federation = build(sizes=PAIR) if name in PAIRS else build()
    return ct.fit(
        configured(name), federation, small_task(), rounds=ROUNDS, cohort=some(federation, COHORT), engine=engine,
        alone=False, progress=False,
    )  # fmt: skip


def row(name: str, engines: dict[str, Any]) -> str:
    reference, *others = (runs(name, engine) for engine in engines.values())
    cells = [f"{difference(reference, other):.0e}" for other in others]
    return f"| {name} | reference | " + " | ".join(_cell(c) for c in [*cells, sites(name)]) + " |"


def sites(name: str) -> str:
    """How far a deployment's server and sites are from one process."""
    with tempfile.TemporaryDirectory() as folder:
        return f"{both(name, Path(folder))[1]:.0e}"


def _cell(number: str) -> str:
    return "0" if number == "0e+00" else number


def sites_anew() -> None:
    """The last column of the page, measured again."""
    lines = PAGE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| algorithm"))
    for i, line in enumerate(lines[start:], start):
        name, *cells = line.strip("| ").split(" | ")[: 1 + len(COLUMNS)]
        if i > start + 1 and name in NAMES and len(cells) == len(COLUMNS):
            lines[i] = f"| {name} | " + " | ".join([*cells, _cell(sites(name))]) + " |"
            print(lines[i], flush=True)
    lines[start] = f"| algorithm | {' | '.join(COLUMNS)} | {SITES} |"
    lines[start + 1] = "|---" * (len(COLUMNS) + 2) + "|"
    PAGE.write_text(TEXT.format(rounds=ROUNDS, cohort=COHORT) + "\n".join(lines[start:]) + "\n")


def estimators() -> str:
    """The table of estimators."""
    from estimator_settings import ESTIMATORS, far, fitted, in_memory, on_sites

    lines = [f"| estimator | in memory | {' | '.join(COLUMNS)} | {SITES} |", "|---" * (len(COLUMNS) + 3) + "|"]
    for name in ESTIMATORS:
        found = [fitted(name, make()) for make in COLUMNS.values()] + [on_sites(name)]
        cells = [_cell(f"{far(in_memory(name), one):.0e}") for one in found]
        lines.append(f"| {name} | reference | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return ESTIMATED + "\n".join(lines) + "\n"


def estimators_anew() -> None:
    text = PAGE.read_text()
    PAGE.write_text(text.split("\n## Estimators")[0].rstrip("\n") + "\n" + estimators())


def main() -> None:
    engines = {label: make() for label, make in COLUMNS.items()}
    lines = [f"| algorithm | {' | '.join(engines)} | {SITES} |", "|---" * (len(engines) + 2) + "|"]
    for name in NAMES:
        lines.append(row(name, engines))
        print(lines[-1], flush=True)
    PAGE.write_text(TEXT.format(rounds=ROUNDS, cohort=COHORT) + "\n".join(lines) + "\n" + estimators())
    print(f"Written to {PAGE}")


if __name__ == "__main__":
    {"sites": sites_anew, "estimators": estimators_anew}.get("".join(sys.argv[1:]), main)()
