"""Help shows what it was written with, and a terminal that knows ASCII alone sees no stack trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.base.disk import json_digest
from coterie.cli import commands as cli

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
    with pytest.raises(ct.errors.TaskError, match="The model cannot be made"):
        ct.Task(lambda: torch.nn.Linear(2, hidden))  # type: ignore[arg-type]


def _run(folder: Path, *, alone: bool) -> None:
    x = np.sin(np.arange(40.0))
    rows = pd.DataFrame({"who": np.repeat(["a", "b"], 20), "x": x, "y": np.resize(["no", "yes"], 40)})
    fed = ct.Federation.from_frame(rows, client="who", target="y")
    ct.fit(ct.FedAvg(), fed, rounds=1, out=folder, alone=alone, progress=False)


def test_a_folder_of_others_does_not_steer_the_terminal(tmp_path: Path) -> None:
    """Whatever text a handed-over result holds, under a right checksum."""
    _run(tmp_path, alone=True)
    file, steer = tmp_path / "result.json", "\x1b]0;x\x07\x1b[2J\x9b31m\u202e"
    about = {k: v for k, v in json.loads(file.read_text()).items() if k != "checksum"}
    about |= {"algorithm": steer, "clients": [f"{steer}1", f"{steer}2"], "warnings": [steer], "notes": [steer]}
    file.write_text(json.dumps(about | {"checksum": json_digest(about)}))
    told = _coterie("report", str(tmp_path), NO_COLOR="1", TERM="dumb")
    assert told.returncode == 0, told.stderr
    assert not set(steer) & set(told.stdout + told.stderr) - set("]0;x[2J31m")
    assert r"\x1b" in told.stdout


def test_a_name_like_markup_or_an_emoji_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["[/]", "[red]x[/red]", ":smile:", "[bold"]
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"who": np.resize(names, 80), "[/x]": rng.normal(size=80), "y": rng.normal(size=80)})
    rows.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", str(tmp_path / "t.csv"), "--client", "who", "--target", "y", "--out", str(tmp_path / "o")])
    told = capsys.readouterr().out
    assert end.value.code == 0
    assert all(f"\n {name} " in told for name in names)
    assert "used: [/x]" in told


def test_a_run_that_was_compared_with_nothing_has_a_report(tmp_path: Path) -> None:
    """Such as the result at a site of a deployment."""
    _run(tmp_path, alone=False)
    told = _coterie("report", str(tmp_path))
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "report.html").is_file()
