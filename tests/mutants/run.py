"""`make mutants`: put one realistic fault at a time into a copy of the source, and see whether the tests notice.

Every room has a list, `tests/mutants/<room>.toml`. An entry names a file, a text that occurs in it exactly once, what it
becomes, and the tests that should fail then. The work tree is never touched. Ends with 1 when a fault survives in a room
that kills less than 95 %, and with 2 when a mutant is stale or a test that killed one fails without it, too.

    python tests/mutants/run.py [--only ROOM|NAME …] [--jobs N]
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "src",
    "tests",
    "reproductions",
    "docs",
    "examples",
    "benchmarks",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "Makefile",
)
HEAVY = ["pytest", "torch", "numpy", "pandas", "scipy.stats", "sklearn.base", "matplotlib.pyplot"]
LEAST = 0.95  # share of mutants that must die in every room
PATIENCE = 600  # seconds after which a mutant that never ends counts as noticed


@dataclass(frozen=True)
class Mutant:
    """A fault. `file` is below src/coterie; `tests` are what pytest is called with."""

    room: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """The mutated source; a stale mutant is refused."""
        path = root / "src" / "coterie" / self.file
        text = path.read_text("utf-8") if path.exists() else ""
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise LookupError(
                f"The mutant {self.name} ({self.room}) is stale: its old text occurs {count} times in {self.file}. "
                f"Point it at what the code does now:\n{self.old}"
            )
        return text.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    """All of them, room by room."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]:
            found.append(Mutant(path.stem, **{**entry, "tests": tuple(entry["tests"])}))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Which faults do the tests notice?")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROOM|NAME", help="these rooms or mutants alone")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time (2)")
    options = parser.parse_args(arguments)
    chosen = [m for m in mutants() if not options.only or {m.room, m.name} & set(options.only)]
    if not chosen:
        print(f"No room or mutant is called {' or '.join(options.only)}.")
        return 2
    try:
        for mutant in chosen:
            mutant.apply(ROOT)
    except LookupError as stale:
        print(stale)
        return 2
    with contextlib.ExitStack() as stack:
        trees: SimpleQueue[Path] = SimpleQueue()
        for _ in range(options.jobs):
            trees.put(stack.enter_context(_copy()))
        with ThreadPoolExecutor(options.jobs) as pool:
            killers = list(pool.map(lambda m: _fate(m, trees), chosen))
        failure = _noticed(sorted({killer for killer in killers if killer and "::" in killer}), trees)
        if failure is not None:
            print(f"{failure} fails without any mutant, too; repair that first.")
            return 2
    return _told(dict(zip(chosen, killers, strict=True)))


def _told(fates: dict[Mutant, str | None]) -> int:
    """Print the survivors and each room's share; the exit code."""
    weak = False
    for room in dict.fromkeys(m.room for m in fates):
        all_ = [m for m in fates if m.room == room]
        alive = [m for m in all_ if fates[m] is None]
        share = 1 - len(alive) / len(all_)
        weak |= share < LEAST
        print(f"{room:14} {len(all_) - len(alive):3} of {len(all_):3} killed ({share:.0%})")
        for mutant in alive:
            print(f"    SURVIVES  {mutant.name} ({mutant.file})")
    dead = sum(killer is not None for killer in fates.values())
    print(f"{'all':14} {dead:3} of {len(fates):3} killed ({dead / len(fates):.0%})")
    return int(weak)


def _fate(mutant: Mutant, trees: SimpleQueue[Path]) -> str | None:
    """What noticed it; None for a survivor."""
    killer = _noticed(list(mutant.tests), trees, mutant)
    print(f"{'killed' if killer else 'ALIVE ':8} {mutant.room}: {mutant.name}  {killer or ''}", flush=True)
    return killer


def _noticed(tests: list[str], trees: SimpleQueue[Path], mutant: Mutant | None = None) -> str | None:
    """The first test that fails in a tree with the mutant, if one does."""
    if not tests:
        return None
    root = trees.get()
    try:
        if mutant is not None:
            path = root / "src" / "coterie" / mutant.file
            whole, times = path.read_bytes(), path.stat()
            path.write_text(mutant.apply(root), "utf-8")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(HEAVY)
        answer = context.SimpleQueue()
        child = context.Process(target=_pytest, args=(str(root), tests, answer))
        child.start()
        child.join(PATIENCE * (1 if mutant else 10))
        if child.is_alive():
            child.kill()
            child.join()
            return "it never ended"
        died = (1, "the process died") if (child.exitcode or 0) < 0 else (2, "")
        code, said = died if answer.empty() else answer.get()
        if code not in (0, 1):
            print(f"pytest {' '.join(tests)} ended with {code}: the tests could not be run.\n{said}", flush=True)
            os._exit(2)
        return said if code else None
    finally:
        if mutant is not None:
            path.write_bytes(whole)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as its byte code expects
        trees.put(root)


def _pytest(root: str, tests: list[str], answer: Any) -> None:
    """Runs in a process of its own: (exit code, the test that failed first or the output's end)."""
    os.chdir(root)
    sys.dont_write_bytecode = True  # a mutant's byte code must not outlive it
    os.environ |= {"PYTHONPATH": f"{root}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path[:] = [f"{root}/src", *(p for p in sys.path if not p.endswith("/src"))]
    import pytest

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = int(pytest.main(["-x", "-q", "--no-header", "-rfE", "--tb=no", "-m", "", *tests]))
    failed = [line for line in output.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))]
    answer.put((code, failed[0].split(" ", 1)[1].split(" - ")[0] if failed else output.getvalue()[-2000:]))


@contextlib.contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(".hypothesis"))
            else:
                shutil.copy2(source, target)
        compileall.compile_dir(Path(folder) / "src", quiet=2)  # once, and not for every mutant
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
