"""What the user sees and presses during a run: the progress bar, Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track

Block = TypeVar("Block")


@contextmanager
def bar(progress: bool | None, rounds: int, done: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    console = Console(stderr=True)
    if not (console.is_terminal if progress is None else progress):
        yield lambda row: None
        return
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        item = shown.add_task("rounds", total=rounds, completed=done, loss=float("nan"))
        yield lambda row: shown.update(item, completed=row["round"], loss=row["loss"])


def counted(blocks: Sequence[Block], doing: str) -> Iterable[Block]:
    """The blocks one after the other, with a bar on a terminal if there are several."""
    console = Console(stderr=True)
    if len(blocks) < 2 or not console.is_terminal:
        return blocks
    return track(blocks, doing, console=console, transient=True)


@contextmanager
def finish_on_interrupt(saves: bool = True) -> Iterator[list[int]]:
    """After one Ctrl-C (or SIGTERM), finish the round and save; after two, stop at once. The list is non-empty after the
    first.

    In a run that saves nothing SIGTERM ends the process, as usual."""
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        Console(stderr=True).print("Finishing this round, then saving. Press Ctrl-C again to stop at once.")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)[: 1 + saves]}
    try:
        yield pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
