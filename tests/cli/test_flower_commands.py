"""`coterie flower init`: a project, or one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
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

FEW = '[data]\nname = "digits"\nclients = 3\nclusters = 3\n'


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


def test_nothing_that_is_there_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "README.md").write_text("mine")
    assert init(tmp_path, GOOD) == 2
    assert "README.md is there. Name another folder" in capsys.readouterr().err.replace("\n", "")
    assert [f.name for f in (tmp_path / "app").iterdir()] == ["README.md"]
    assert (tmp_path / "app" / "README.md").read_text() == "mine"


def test_settings_of_a_run_that_sites_do_not_use_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path, GOOD + '[run]\nrounds = 2\nengine = "ray"\nevaluate_every = 2\n') == 0
    assert "does not use run.engine, run.evaluate_every:" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("option", ["--root-certificates", "--secret"])
def test_a_file_of_a_worker_that_is_not_there(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["flower", "worker", "127.0.0.1:1", option, "nowhere"])
    assert end.value.code == 2
    assert f"There is no file nowhere, which {option} names." in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.replace('features = ["a"]\n', ""), "add features ="),
        (lambda t: t.replace('kind = "regression"\n', ""), "add kind ="),
        (
            lambda t: '[data]\nname = "digits"\nclients = 3\nclusters = 3\n' + t[t.index("[algorithm]") :],
            "3 clients and 4 sites",
        ),
        (lambda t: "data = 3\n" + t[t.index("[algorithm]") :], "must be a section"),
        (lambda t: t.replace('["a"]', '["a", "y"]'), "'y' is named twice"),
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


def test_a_table_at_hand_names_the_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"site": ["p", "q"] * 20, "a": rng.normal(size=40), "b": rng.choice(list("uvw"), 40)})
    rows["y"] = rows["a"] + rng.normal(size=40)
    rows["copy"] = rows["y"] * 2 + 1  # says what is to be predicted
    rows.to_csv(tmp_path / "rows.csv", index=False)
    text = GOOD.replace('features = ["a"]\nkind = "regression"\n', 'path = "rows.csv"\n').replace(
        "[data]", "[ data ]  # ours"
    )
    assert init(tmp_path, text) == 0
    made = tomllib.loads((tmp_path / "app" / "site_app" / "run.toml").read_text())
    assert made["data"] == {
        "features": ["a", "b"], "kind": "regression", "client": "site", "target": "y", "path": "rows.csv"
    }  # fmt: skip
    assert made["algorithm"] == {"name": "fedavg"}


def test_a_built_in_table_is_dealt_out_to_sites(tmp_path: Path) -> None:
    assert init(tmp_path, '[data]\nname = "heart"\n' + GOOD[GOOD.index("[algorithm]") :]) == 0
    tables = [pd.read_csv(tmp_path / "app" / "sites" / f"site{i}.csv") for i in (1, 2, 3, 4)]
    assert sorted(table["client"].unique().tolist() for table in tables) == [[c] for c in ct.datasets.heart().clients]
    told = tomllib.loads((tmp_path / "app" / "site_app" / "run.toml").read_text())["data"]
    both = pd.concat(tables)
    fed = ct.Federation.from_frame(both, **told)
    assert (len(fed), fed.kind, fed.x.shape[0]) == (4, "classification", 920)
