"""A console for text of others: names and sentences from files and tables cannot steer the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from coterie.text import harmless


class Screen(Console):
    """Rich puts colours beside the text; an escape sequence inside the text is somebody else's, and is spelt out."""

    def render(self, *given: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*given, **options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)
