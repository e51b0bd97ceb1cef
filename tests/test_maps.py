"""The map on each paper's page is complete: every numbered part has a name, a test and a command, and all of them exist."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import coterie as ct
from reproductions.names import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PARTS = {
    "ifca": "Algorithm 1, Algorithm 2, Theorem 1, Theorem 2, Corollary 1, Corollary 2, Figure 3, Figure 4, Table 1, Table 2",
    "werner": ", ".join([f"{kind} {n}" for kind in ("Algorithm", "Theorem") for n in range(1, 7)])
    + ", Corollary 1, Corollary 2, Corollary 3, Table 2.1, Figure 2.1, Figure 2.4, Figure 2.5, Figure 2.6, Figure 2.7, "
    "Figure 3.1, Figure 3.2, Figure 3.3, Figure 3.5, Figure 3.6, Figure 4.1, Figure 4.5, "
    + ", ".join(f"Proposition {n}" for n in range(1, 9)),
    "ozkara": ", ".join([f"Algorithm {n}" for n in range(1, 8)] + [f"Theorem {n}" for n in (1, 2, 3, 4, 5, 6, 7)])
    + ", Table 1, Figure 3, Figure 4",
    "setlur": "Algorithm 1, Algorithm 2, Algorithm 3, Definition 2.1, Lemma 2.1, Theorem 3.1, Table 1",
}


def rows(page: str) -> list[list[str]]:
    table = (ROOT / "docs" / "papers" / f"{page}.md").read_text("utf-8").split("## Map")[1]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("page", PARTS)
def test_a_map_has_all_parts_and_no_empty_cell(page: str) -> None:
    found = rows(page)
    assert not [row for row in found if len(row) != 4 or not all(row)]
    said = " ".join(row[0] for row in found)
    assert not [part for part in PARTS[page].split(", ") if not re.search(rf"\b{re.escape(part)}\b", said)]


@pytest.mark.parametrize("page", PARTS)
def test_what_a_map_names_exists(page: str) -> None:
    for part, names, tests, commands in rows(page):
        called = re.findall(r"`(ct|reproductions)\.([\w.]+)`", names)
        assert called, f"{part}: no name to call"
        for root, name in called:
            if root == "ct":
                attrgetter(name)(ct)
            else:
                module, _, attribute = name.rpartition(".") if name.count(".") else (name, "", "")
                try:
                    import_module(f"reproductions.{name}")
                except ModuleNotFoundError:
                    getattr(import_module(f"reproductions.{module}"), attribute)
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tests) or [("", "")]:
            tree = ast.parse((ROOT / path).read_text("utf-8")) if path else None
            assert tree is not None, f"{part}: no test"
            assert not name or name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, f"{path}::{name}"
        for command in re.findall(r"`([^`]+)`", commands) or [""]:
            if command.startswith("coterie reproduce "):
                assert command.split()[2] in EXPERIMENTS, command
            else:
                path = ROOT / re.findall(r"[\w/]+\.py", command)[0]
                assert path.is_file(), command
                assert command.partition(" -k ")[2] in path.read_text("utf-8").lower(), f"{command} selects nothing"
