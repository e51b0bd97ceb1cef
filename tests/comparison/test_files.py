"""A comparison's folder: nobody's files are replaced, no cell is a formula, nothing of an earlier comparison is left."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.compare import Comparison, compare
from coterie.comparison.files import csv_text
from coterie.errors import ConfigError

NAMES = ["=cmd()", "+1+2", "-2+3", "@sum", "\ttab", "method", "-5"]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    rng = np.random.default_rng(0)
    data = {n: (x := rng.normal(size=(20, 2)), x.sum(1) + rng.normal(size=20)) for n in NAMES}
    return compare(ct.Federation.from_arrays(data, kind="regression"), seeds=1)


@pytest.mark.parametrize("name", ["table.csv", "clients.csv", "settings.toml", "report.html"])
def test_files_of_others_are_not_replaced(comparison: Comparison, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=re.escape(f"has {name}")) as refused:
        comparison.save(tmp_path)
    assert "--out" in refused.value.cli
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_an_own_folder_is_written_again_and_old_tables_go(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    (tmp_path / "coalition.csv").write_text("of an earlier comparison with trained methods")
    (tmp_path / "notes.md").write_text("mine")
    replace(comparison).save(tmp_path)
    assert not (tmp_path / "coalition.csv").exists()
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_no_cell_of_any_file_is_a_formula(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    for path in tmp_path.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as stream:
            cells = [cell for line in csv.reader(stream) for cell in line]
        words = [c for c in cells if not re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", c)]
        assert not [c for c in words if c.startswith(("=", "+", "-", "@", "\t", "\r"))], path.name
    with (tmp_path / "table.csv").open(newline="", encoding="utf-8") as stream:
        head = next(csv.reader(stream))
    assert head == ["method", "'=cmd()", "'+1+2", "'-2+3", "'@sum", "'\ttab", "method", "-5"]


def test_numbers_stay_numbers() -> None:
    table = pd.DataFrame({"a": [-1.5, 2.0], "b": ["-3", "+x"]}, index=pd.Index(["u", "v"], name="client"))
    assert csv_text(table) == "client,a,b\nu,-1.5,-3\nv,2.0,'+x\n"
