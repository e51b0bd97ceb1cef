"""docs/rooms.svg, drawn from the import rules of pyproject.toml: `python tools/rooms.py` after a room was added or moved."""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "rooms.svg"
SAYS = {
    "cli": "commands, configuration files and what they build",
    "report": "page, figures, terminal",
    "comparison": "compare: exact fits of tables, trained methods, the verdict in words",
    "flower": "deployment: real clients that keep their tables",
    "training": "fit, result, evaluation, checkpoints, cohorts, participation, private runs",
    "algorithms": "one paper, one file",
    "engines": "vectorised, loop, Ray; adding up, private sums",
    "exchange": "Ask, Up, Reply, Context; channels: faults, attacks",
    "learning": "task, networks, metrics, local steps",
    "datasets": "embedded data, loaders, generators",
    "data": "federation, tables, preprocessing",
    "aggregation": "robust rules, clustering",
    "incentives": "markets, pricing",
    "evidence": "when a gain is clear, what to recommend, which coalitions would hold",
    "estimation": "means, rates, regressions, histograms",
    "privacy": "mechanisms, accounting, ledger, receipt, audit",
    "secure": "sums that a server cannot take apart",
    "base": "files, random numbers, nested dicts, checks of arguments, words",
}  # single files have their name alone
WIDTH, HIGH, GAP, LEFT = 972, 42, 8, 14
STYLE = """
    .room { fill: #e3ecf9; } .free { fill: #fdf0d9; } .file { fill: #f0f2f5; }
    rect { stroke: #33415c; stroke-width: 1.2; } .head { font-weight: bold; fill: #1d2536; }
    .small { font-size: 12px; fill: #44516b; }
  """


def contracts() -> tuple[list[list[str]], set[str]]:
    """The layers from top to bottom, and the rooms in which torch is forbidden."""
    rules: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(rule["layers"] for rule in rules if rule["type"] == "layers")
    free = next(rule["source_modules"] for rule in rules if rule.get("forbidden_modules") == ["torch"])
    parts = [[name.strip() for name in layer.split("|")] for layer in layers if not layer.startswith("__")]
    return parts, {name.removeprefix("coterie.") for name in free}


def box(x: float, y: float, wide: float, name: str, free: set[str]) -> list[str]:
    folder = (ROOT / "src" / "coterie" / name).is_dir()
    kind = ("free" if name in free else "room") if folder else "file"
    says = SAYS.get(name, "")
    return [
        f'  <rect class="{kind}" x="{x:.0f}" y="{y}" width="{wide:.0f}" height="{HIGH}" rx="6"/>',
        f'  <text class="head" x="{x + 12:.0f}" y="{y + (18 if says else 26)}">{name}{"/" if folder else ""}</text>',
        *([f'  <text class="small" x="{x + 12:.0f}" y="{y + 34}">{escape(says)}</text>'] if says else []),
    ]


def drawn() -> str:
    layers, free = contracts()
    lines, y = [], 12
    for layer in layers:
        wide = (WIDTH - GAP * (len(layer) - 1)) / len(layer)
        for place, name in enumerate(layer):
            lines += box(LEFT + place * (wide + GAP), y, wide, name, free)
        y += HIGH + GAP
    notes = [
        "A file may use its own room and every room below it, never one above. Rooms side by side do not use each other.",
        "Yellow rooms do without torch: they use NumPy, SciPy, pandas and scikit-learn. Grey boxes are single files.",
        "The check has no exceptions (lint-imports); a file outside the rooms fails it.",
    ]
    for note in notes:
        y += 18
        lines.append(f'  <text class="small" x="{LEFT}" y="{y - 2}">{note}</text>')
    high = y + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {high}" '
            'font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="14">',
            "  <title>The rooms of coterie: a file may use its own room and those below</title>",
            f"  <style>{STYLE}</style>",
            f'  <rect width="1000" height="{high}" fill="#ffffff" style="stroke:none"/>',
            *lines,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(), "utf-8")
    print(PICTURE.relative_to(ROOT))
