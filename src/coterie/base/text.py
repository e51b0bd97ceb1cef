"""Text for names and numbers: "Did you mean …?", lists of names in a sentence, names without control characters."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from math import isfinite

_DISTURBING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_METRICS = {"auc": "AUC", "r2": "R²", "mse": "mean squared error"}


def harmless(text: str) -> str:
    """Text from outside, safe to show: characters that move a cursor, colour a terminal or turn the direction of writing are
    spelt out (`\\x1b`, `\\u202e`). Tabs and line ends stay."""
    return _DISTURBING.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def one_line(name: object) -> str:
    """A name that is safe to show on one line: line ends and tabs are also spelt out."""
    return harmless(str(name)).replace("\n", "\\n").replace("\t", "\\t")


def cut(name: object, most: int) -> str:
    """A name on one line, of at most so many characters: start and end of a longer one."""
    text, end = one_line(name), most // 3
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"


def suggest(word: object, known: Iterable[object], what: str = "Known") -> str:
    """`Did you mean 'x'? Known: …` as the tail of an error sentence."""
    names = [str(k) for k in known]
    lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(str(word).lower(), lower, n=1)
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return (f"Did you mean {lower[near[0]]!r}? " if near else "") + f"{what}: {some or 'none'}."


def listed(names: Iterable[object], most: int = 6) -> str:
    """`a, b and c`; of more than `most` names the first ones, and how many more there are."""
    everybody = list(names)
    words = [one_line(name) for name in everybody[:most]]
    if len(everybody) > most:
        return f"{', '.join(words)} and {len(everybody) - most} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def slug(text: str) -> str:
    """`Who gains, who loses?` → `who-gains-who-loses`, for anchors and file names."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split()) or "part"


def method_label(method: str) -> str:
    """A method's name in a table."""
    return "local (alone)" if method == "local" else method


def metric_name(metric: str) -> str:
    """A metric in words."""
    return _METRICS.get(metric, metric.replace("_", " "))


def number(value: float, sign: str = "") -> str:
    """At most seven characters and a sign: three decimals, or four digits where that would be noise or nothing."""
    if not isfinite(value):
        return "–"
    size = abs(value)
    if size == 0 or 0.01 <= size < 100:
        return f"{value:{sign}.3f}"
    if 100 <= size < 1e5:
        return f"{value:{sign}.1f}" if size < 1e4 else f"{value:{sign}.0f}"
    return f"{value:{sign}.2g}" if size < 0.01 else f"{value:{sign}.3g}"


def sentence_case(text: str) -> str:
    """The text with a capital letter first."""
    return text[:1].upper() + text[1:]
