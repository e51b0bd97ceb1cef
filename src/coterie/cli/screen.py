"""A console for text from others: names and sentences from files and tables cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from coterie.base.text import harmless


class Screen(Console):
    """Rich keeps colours apart from the text; an escape sequence inside the text is foreign, and is shown as a code.

    A name such as `[/]` or `:smile:` is shown as it is, also in the cells of tables."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False} | options)

    def render(self, *given: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*given, **options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)
