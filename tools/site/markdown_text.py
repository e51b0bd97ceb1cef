"""GitHub's Markdown made what the site needs: a blank line before lists and tables, links for addresses."""

from __future__ import annotations

import re

ITEM = re.compile(r"\s*([-*]|\d+\.) ")
ADDRESS = re.compile(r"(?<![<(\[\"'`=])\bhttps?://[^\s)>\],;`\"']+[^\s)>\],;`\"'.]")


def spaced(text: str) -> str:
    """A blank line before every list and table that follows a line of text directly."""
    lines: list[str] = []
    kind, fenced = "", False  # what the block is that we are in
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if not line.strip() or fenced:
            kind = "" if not line.strip() else kind
        elif ITEM.match(line):
            if kind == "text":
                lines.append("")
            kind = "list"
        elif line.startswith("|"):
            if kind == "text":
                lines.append("")
            kind = "table"
        elif not kind and not line.startswith("#"):
            kind = "text"
        lines.append(line)
    return "\n".join(lines)


def linked(text: str) -> str:
    """Bare addresses as links."""
    return ADDRESS.sub(lambda match: f"<{match[0]}>", text)
