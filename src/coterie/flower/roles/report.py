"""Everything that left a site, as a page for a data-protection officer; its numbers are those of outgoing.jsonl."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError
from coterie.flower.guard import OUTGOING
from coterie.flower.roles.hub import lines_of
from coterie.flower.roles.site import APPROVALS

_STYLE = "body{font:16px/1.5 sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}"
_STYLE += "td,th{padding:.3rem .8rem .3rem 0;text-align:left;vertical-align:top;border-top:1px solid #ddd}"
_STYLE += "td.n{text-align:right}code{font-size:.9em}"
_KINDS = {
    "join": "which clients are here and what their columns hold", "digits": "counts by which common medians are found",
    "spread": "means and deviations of columns", "begin": "that the rows are prepared", "hello": "which site this is",
    "ask": "an answer to a question of the algorithm", "finish": "sums of test scores", "secure": "keys and shares",
}  # fmt: skip


@dataclass(frozen=True)
class Left:
    """One kind of message: how often it left, its fields and shapes, and its bytes."""

    run: str
    message: str
    fields: str
    how: str
    first: str
    last: str
    count: int
    bytes: int


def left(folder: Path) -> list[Left]:
    """What left, by run and kind of message."""
    if not (folder / OUTGOING).exists():
        raise ConfigError(f"Nothing has left {folder} yet: it has no {OUTGOING}. Name a site's folder.")
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for line in lines_of(folder / OUTGOING):
        what = line["message"] + (f" {line['phase']}" if "phase" in line else "")
        groups.setdefault((line.get("run", ""), what, _fields(line), _how(line)), []).append(line)
    return [
        Left(run, what, fields, how, g[0]["time"], g[-1]["time"], len(g), sum(x.get("bytes", 0) for x in g))
        for (run, what, fields, how), g in groups.items()
    ]


def _fields(line: Mapping[str, Any]) -> str:
    if "refused" in line:
        return f"a refusal: {line['refused']}"
    shapes = [f"{name}: {kind} {'×'.join(map(str, shape)) or '1'}" for name, (kind, shape) in line["tensors"].items()]
    return "; ".join([", ".join(line["fields"]), *shapes])


def _how(line: Mapping[str, Any]) -> str:
    """In the words of the operator: only a sum, behind masks, clipped for a private release."""
    if line["message"] != "ask" or "refused" in line:
        return "–"
    told = ["summed over the clients here" if line.get("summed") else "a row per client"]
    told += ["behind masks: only the sum of all sites can be opened"] if line.get("protected") else []
    told += ["clipped, for a private sum"] if line.get("private") else []
    return "; ".join(told)


def summary(folder: Path) -> dict[str, Any]:
    """Messages, bytes, and the privacy that is spent."""
    lines = lines_of(folder / OUTGOING)
    spent = [line["epsilon"] for line in lines if "epsilon" in line]
    found = {"messages": len(lines), "bytes": sum(line.get("bytes", 0) for line in lines)}
    return found | {"refused": sum("refused" in line for line in lines), "epsilon": spent[-1] if spent else None}


def write_page(folder: Path, page: Path) -> dict[str, Any]:
    """Write the page; returns its totals."""
    from coterie.base.disk import write_text

    rows, told = left(folder), summary(folder)
    approvals = [(a["time"], a["run"], a["how"], a["sha256"]) for a in lines_of(folder / APPROVALS)]
    spent = (
        "No private release was made."
        if told["epsilon"] is None
        else f"Privacy spent by all runs: ε = {told['epsilon']:g}."
    )
    parts = [
        f"<h1>What left this site</h1><p>{told['messages']} messages with {told['bytes']:,} bytes, of which "
        f"{told['refused']} are refusals. {spent} The file <code>{OUTGOING}</code> has a line for each, written before it "
        "left. Rows, personal models and private states are in none of them.</p>",
        "<h2>What was approved</h2>", _table(("time", "run", "how", "SHA-256 of the run's file"), approvals),
        "<h2>Messages</h2>",
        _table(
            ("run", "message", "fields and shapes", "how", "first", "last", "times", "bytes"),
            [(r.run, r.message, r.fields, r.how, r.first, r.last, r.count, r.bytes) for r in rows],
        ),
        "<h2>What the messages are for</h2>", _table(("message", "the site says"), _KINDS.items()),
    ]  # fmt: skip
    head = f'<head><meta charset="utf-8"><title>What left</title><style>{_STYLE}</style></head>'
    body = f"<body>{''.join(parts)}</body></html>"
    write_text(page, f'<!doctype html><html lang="en">{head}{body}\n', private=True)
    return told


def _table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    def cell(value: Any) -> str:
        return f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{html.escape(str(value))}</td>"

    head = "".join(f"<th>{h}</th>" for h in heads)
    return f"<table><tr>{head}</tr>{''.join('<tr>' + ''.join(map(cell, row)) + '</tr>' for row in rows)}</table>"
