"""Help shows what it was written with, and a terminal that knows ASCII alone sees no stack trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import coterie as ct

ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def _coterie(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coterie", *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_help_shows_the_names_of_tables_in_brackets() -> None:
    shown = _coterie("run", "--help", COLUMNS="160", TERMINAL_WIDTH="160").stdout
    assert "A TOML file with [data], [task], [algorithm] and [run]." in shown
    assert "overrides [run] out" in shown
    assert "[data] and [compare]" in shown


def test_an_ascii_terminal_gets_the_sentence(tmp_path: Path) -> None:
    told = _coterie("run", str(tmp_path / "größe.toml"), **ASCII)
    assert told.returncode == 2
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("hidden", [-1, "x", None])
def test_a_model_that_cannot_be_made_is_one_sentence(hidden: object) -> None:
    with pytest.raises(ct.TaskError, match="The model cannot be made"):
        ct.Task(lambda: torch.nn.Linear(2, hidden))  # type: ignore[arg-type]
