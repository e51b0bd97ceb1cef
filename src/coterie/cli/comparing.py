"""What `compare` and `demo` share: progress, printing, JSON and the report."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from coterie.base.disk import locked, refuse_foreign, write_text
from coterie.comparison.files import JSON, NAMES, PATIENCE
from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.cli.table_options import TableSource
    from coterie.comparison.result import Comparison
    from coterie.privacy.settings import Privacy

EXIT_CODES = "Exit codes: 0 done, 2 bad input (one sentence says what to change), 130 interrupted."
_EXACT = "exact models"


@contextmanager
def shown_progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """A bar with the current step, the percentage and the time left; nothing without a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Loading", total=1.0)

        def tell(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share)

        yield tell


def check_folder(out: Path | None) -> None:
    """Check the folder before the work: it must be a folder, accept files, and hold no files of others."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out must be a folder; {out} is a file. Name another.")
    refuse_foreign(out, JSON, NAMES)
    made = [p for p in (out, *out.parents) if not p.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(
            f"--out must be a folder that can be written; {out} cannot ({error.strerror}). Name another."
        ) from None
    finally:
        for folder in made:  # it was only a test
            with suppress(OSError):
                folder.rmdir()


def comparison_of(split: Any, screen: Console, **options: Any) -> tuple[Comparison, Any]:
    """Run `compare` with a progress bar; with trained methods also look for the stable coalition."""
    from coterie.comparison.compare import compare

    with shown_progress(screen) as tell:

        def progress(method: str, seed: int, share: float) -> None:
            tell(method if method == _EXACT else f"{method}, split {seed + 1} of {options['seeds']}", share)

        comparison = compare(split, progress=progress, **options)
        if comparison.results:
            tell("Who would stay? Training without leavers", 1.0)
        return comparison, comparison.coalition()


def budget_of(epsilon: float | None, delta: float | None, **more: Any) -> Privacy | None:
    """The budget that the options name; None without one."""
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        raise ConfigError("A private candidate needs both --epsilon and --delta; got one of them. Give the other.")
    from coterie.privacy import Privacy

    return Privacy(epsilon, delta, **more)


def private_options(
    source: TableSource,
    options: dict[str, Any],
    epsilon: float | None,
    delta: float | None,
    clip: float,
    method: str,
    target_range: str | None,
    ledger: Path | None,
) -> dict[str, Any]:
    """What `compare` needs for a private candidate: its budget, and rows that every client scales by itself."""
    budget = budget_of(epsilon, delta, clip=clip, ledger=ledger)
    if budget is None:
        return {}
    split = cache(lambda seed: source.federation(seed=seed, scaling="own", private=True, **options))
    split(0)  # what cannot be done is said before the work
    return {
        "privacy": budget,
        "private": method,
        "private_data": split,
        "target_range": None if target_range is None else _range(target_range),
    }


def protects_rows(unit: str, sites: bool, epsilon: float | None) -> bool:
    """Whether `--privacy-unit` names rows, which only sites that tell noisy sums can protect."""
    if unit != "client" and not (sites and epsilon is not None):
        raise ConfigError(
            f"--privacy-unit {unit} protects rows where clients tell sums. Add --sites (or --folds-by-client), --epsilon "
            "and --delta."
        )
    return unit != "client"


def row_options(
    source: TableSource, options: dict[str, Any], budget: Privacy | None, ranges: str | None, target_range: str | None
) -> tuple[Any, dict[str, Any]]:
    """The rows in public units, and what `compare` needs to protect them."""
    told = {} if ranges is None else _ranges(ranges)
    split = cache(lambda seed: source.federation(seed=seed, private=True, ranges=told, **options))
    return split, {"privacy": budget, "target_range": None if target_range is None else _range(target_range)}


def _ranges(text: str) -> dict[str, tuple[float, float]]:
    """`age: 0, 120; weight: 2, 200` → {"age": (0, 120), "weight": (2, 200)}."""
    found = {}
    for part in filter(str.strip, text.split(";")):
        column, colon, bounds = part.rpartition(":")
        try:
            low, high = (float(b) for b in bounds.split(","))
        except ValueError:
            colon = ""
        if not colon:
            raise ConfigError(
                f'--ranges is "column: LOW, HIGH; column: LOW, HIGH"; got {part.strip()!r}. Give two numbers.'
            )
        found[column.strip()] = (low, high)
    return found


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--target-range must be two numbers, LOW,HIGH; got {text!r}.") from None
    return low, high


def print_comparison(console: Console, comparison: Comparison, coalition: Any = None) -> None:
    from coterie.report.terminal import comparison_tables

    for part in comparison_tables(comparison, coalition):
        console.print(part)


def write(console: Console, comparison: Comparison, coalition: Any, out: Path) -> None:
    """Tables and the report page, and where they are."""
    from coterie.report.page import write_report
    from coterie.report.toml import toml_text

    with locked(out, PATIENCE):
        comparison.save(out, coalition)
        if comparison.about.get("rerun"):
            write_text(out / "settings.toml", toml_text(comparison.about["rerun"]))
        page = write_report(comparison, out / "report.html", coalition)
    console.print(f"\nTables and report: {out} (open {page})", soft_wrap=True, highlight=False)


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on standard output, and nothing else."""
    print(json.dumps(value, indent=1, default=str, allow_nan=False))
