"""Words for names: "Did you mean …?", and lists of names in a sentence."""

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


def listed(names: Iterable[object], most: int = 6) -> str:
    """`a, b and c`; of more than `most` names the first ones, and how many more there are."""
    words = [str(name) for name in names]
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def slug(text: str) -> str:
    """`Who gains, who loses?` → `who-gains-who-loses`, for anchors and file names."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split()) or "part"
