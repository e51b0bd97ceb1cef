"""`coterie flower init`: a project, or one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from coterie.cli import main

GOOD = """\
[data]
client = "site"
target = "y"
features = ["a"]
kind = "regression"

[algorithm]
name = "fedavg"
"""


def init(folder: Path, text: str) -> int:
    (folder / "run.toml").write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["flower", "init", str(folder / "app"), "--config", str(folder / "run.toml"), "--sites", "4"])
    return int(end.value.code or 0)


def test_init_writes_a_project_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path, GOOD) == 0
    made = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert made["project"]["dependencies"] == []
    assert made["tool"]["flwr"]["app"]["config"]["sites"] == 4
    assert "fab-format-version" not in made["tool"]["flwr"]["app"]
    assert (tmp_path / "app" / "site_app" / "run.toml").read_text() == GOOD
    capsys.readouterr()
    assert init(tmp_path, GOOD) == 2
    assert "already holds a project" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.replace('features = ["a"]\n', ""), "add features ="),
        (lambda t: t.replace('kind = "regression"\n', ""), "add kind ="),
        (lambda t: t.replace('client = "site"\n', 'name = "heart"\n'), "built-in data set"),
        (lambda t: t + "[[channels]]\nname = 'dropout'\nrate = 0.5\n", "faults and attacks of a simulation"),
        (lambda t: t.replace('"fedavg"', '"ifca"'), "Set clusters"),
        (lambda t: t + "[privacy]\nepsilon = 3.0\ndelta = 1e-6\nclip = 1.0\n", 'scaling = "own"'),
        (lambda t: t.replace('kind = "regression"', 'kind = "regression"\nfeature = 1'), "data.feature"),
    ],
)
def test_what_a_deployment_cannot_do_is_said_before_anything_is_written(
    change: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path, change(GOOD)) == 2  # type: ignore[operator]
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "app").exists()
