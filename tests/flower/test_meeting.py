"""What sites and server compare before a run: settings with their defaults, tables, columns and names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from together import DATA, InProcess, split, table

import coterie as ct
from coterie.errors import EngineError
from coterie.flower import Job, serve
from coterie.flower.meeting import oddities
from coterie.learning.task import Task

ROWS = table((12, 30, 22, 16))


def job(**changes: Any) -> Job:
    made = Job(ct.Ditto(local=ct.LocalSGD(steps=1, lr=0.1)), Task.default, DATA, 1)
    return replace(made, **changes)


def served(folder: Path, theirs: Job, parts: list[pd.DataFrame], names: dict[int, str] | None = None) -> list[str]:
    """The lines of a server whose job is `job()`, for sites with another."""
    nodes, said = InProcess(theirs, parts, folder), []  # type: ignore[var-annotated]
    nodes.names = names or {}  # type: ignore[attr-defined]
    serve(job(), nodes, folder / "out", sites=len(parts), tell=said.append)
    return said


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": ct.Ditto(local=ct.LocalSGD(steps=1, lr=0.2))},
        {"data": DATA | {"test_fraction": 0.5}},
        {"seed": 1},
        {"text": "another file"},
    ],
)
def test_a_site_with_other_settings_does_not_take_part(changes: dict[str, Any], tmp_path: Path) -> None:
    """Such as another version of coterie whose default is another: what counts is what would be done."""
    with pytest.raises(
        EngineError, match=r"site 1 \(node 100\) cannot take part: The server has another run than this"
    ):
        served(tmp_path, job(**changes), split(ROWS, 2))
    served(tmp_path / "again", job(), split(ROWS, 2))


def test_a_site_of_an_older_version_does_not_take_part(tmp_path: Path) -> None:
    nodes = InProcess(job(), split(ROWS, 2), tmp_path)

    def older(node: int, asked: dict[str, Any], answer: Any) -> Any:
        from coterie.flower import wire

        told, tree = wire.unpack(answer)
        return wire.pack({k: v for k, v in told.items() if k != "settings"}, tree)

    nodes.change = older
    with pytest.raises(EngineError, match="has another version of coterie"):
        serve(job(), nodes, tmp_path / "out", sites=2, tell=lambda line: None)


def test_sites_have_the_names_that_a_hub_gave_them(tmp_path: Path) -> None:
    """Not "site 1", which is the lowest number of a node."""
    said = served(tmp_path, job(), split(ROWS, 2), {100: "zug", 101: "basel"})
    assert said[:2] == ["basel is node 101", "zug is node 100"]
    assert '"zug"' in (tmp_path / "out" / "sites.json").read_text()


def test_a_table_that_changed_between_runs_is_named(tmp_path: Path) -> None:
    parts = split(ROWS, 2)
    for run, changed in (("first", False), ("second", False), ("third", True)):
        folder = tmp_path / run
        if changed:
            parts[1] = parts[1].drop(index=5).reset_index(drop=True)
        nodes, said = InProcess(job(), parts, tmp_path), []  # type: ignore[var-annotated]
        for site in nodes.sites.values():  # as its owner does before a run with another agreement
            (site.folder / "statistics.json").unlink(missing_ok=True)
        serve(job(), nodes, folder, sites=2, tell=said.append)
        assert [line.split("'s table")[0] for line in said if "has changed" in line] == (["site 2"] if changed else [])
        events = folder / "events.jsonl"
        assert ("has changed" in events.read_text() if events.exists() else False) == changed


def summary(rows: int, *categories: str) -> dict[str, Any]:
    return {"sizes": [rows], "columns": {"c": {"kind": "category", "counts": dict.fromkeys(categories, 9)}}}


def test_what_differs_between_sites_is_said() -> None:
    alike = {name: summary(100, "x", "y") for name in ("a", "b", "c")}
    assert list(oddities(alike)) == []
    assert list(oddities(alike | {"b": summary(900, "x", "Y")})) == [
        "b has 82% of all rows, and weighs as much in a mean over rows",
        "only b has Y in column c; check its spelling",
    ]
