"""Did you mean …? One way to say it for keys, names and columns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(word: object, known: Iterable[object], what: str = "Known") -> str:
    """`Did you mean 'x'? Known: …` as the tail of an error sentence."""
    names = [str(k) for k in known]
    lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(str(word).lower(), lower, n=1)
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return (f"Did you mean {lower[near[0]]!r}? " if near else "") + f"{what}: {some or 'none'}."
