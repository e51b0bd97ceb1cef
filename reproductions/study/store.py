"""Results in a JSON file that a later call resumes."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coterie.base.disk import write_text

SAVE_EVERY = 20.0  # seconds


def load(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save(path: Path, records: dict[str, Any]) -> None:
    """One line per record; the file is replaced at once, so a broken run leaves the last whole one."""
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in records.items()
    )
    write_text(path, "{\n" + lines + "\n}\n")


def run(path: Path, tasks: Iterable[tuple[str, Callable[[], Any]]], say: Callable[[str], None]) -> dict[str, Any]:
    """Run the tasks whose key is not in the file yet."""
    records = load(path)
    last = time.monotonic()
    for key, task in tasks:
        if key not in records:
            records[key] = task()
            if time.monotonic() - last > SAVE_EVERY:
                save(path, records)
                say(f"{len(records)} records")
                last = time.monotonic()
    save(path, records)
    return records
