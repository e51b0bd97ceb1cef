"""Every algorithm on every engine, in the settings of the conformance suite: the table of docs/conformance.md.

    python tools/conformance.py            # writes docs/conformance.md (needs coterie[ray])

A cell is the largest difference from the vectorised engine in anything a run ends with (server state, clients' private
states, every client's model), relative to the larger of 1 and the number. An engine joins by an entry in `COLUMNS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "conformance"), str(ROOT / "tests")]

from conformance_settings import COHORT, NAMES, PAIR, PAIRS, ROUNDS, configured, difference, small_task, some  # noqa: E402

import coterie as ct  # noqa: E402
from conftest import build  # noqa: E402

PAGE = ROOT / "docs" / "conformance.md"
COLUMNS: dict[str, Callable[[], Any]] = {
    "vectorised": lambda: ct.LocalEngine(workers=1),
    "loop": ct.LoopEngine,
    "Ray, 2 actors": lambda: ct.RayEngine(actors=2),
}
TEXT = """\
# The same numbers on every engine

Written by `python tools/conformance.py`; the tests keep it complete. Every algorithm of the registry runs {rounds} rounds with
{cohort} of 12 clients of unequal size (a network of two layers in float32, 3 local steps where they can be set) on every
engine. A number is the largest difference from the vectorised engine in anything a run ends with, relative to the larger of 1
and the number itself: the server's state, every client's private state, every client's model. 0 is bit for bit. Engines add
in another order, and batched products may round otherwise in another company; the tests demand 1e-5 of Ray and 2e-5 of
the loop.

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
    return f"| {name} | reference | " + " | ".join("0" if c == "0e+00" else c for c in cells) + " |"


def main() -> None:
    engines = {label: make() for label, make in COLUMNS.items()}
    lines = ["| algorithm | " + " | ".join(engines) + " |", "|---" * (len(engines) + 1) + "|"]
    for name in NAMES:
        lines.append(row(name, engines))
        print(lines[-1], flush=True)
    PAGE.write_text(TEXT.format(rounds=ROUNDS, cohort=COHORT) + "\n".join(lines) + "\n")
    print(f"Written to {PAGE}")


if __name__ == "__main__":
    main()
