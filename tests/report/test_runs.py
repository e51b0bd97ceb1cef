"""`coterie report` puts saved runs side by side; `settings.toml` of a comparison runs it again."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.cli import commands as cli
from coterie.data.positions import positions_of
from coterie.report.runs import load, named, side_by_side
from coterie.report.toml import toml_text

SGD = ct.LocalSGD(steps=2, lr=0.1, batch_size=None)


def prints(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main([str(a) for a in arguments])
    found = capsys.readouterr()
    assert stop.value.code == 0, found.err
    return found.out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg with two seeds and IFCA with one, saved."""
    home = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    data = {f"c{i}": (x := rng.normal(size=(20, 3)), ((-1) ** i * x[:, 0] > 0).astype(int)) for i in range(6)}
    fed = ct.Federation.from_arrays(data)
    for seed in (0, 1):
        ct.fit(ct.FedAvg(SGD), fed, rounds=2, seed=seed, out=home / f"average{seed}", alone="equal budget")
    ct.fit(ct.IFCA(clusters=2, local=SGD), fed, rounds=3, seed=0, out=home / "groups", alone="equal budget")
    return home


def test_runs_of_several_seeds_are_one_method(folder: Path) -> None:
    runs = named([run for name in ("average0", "average1", "groups") for run in load(folder / name)])
    c = side_by_side(runs)
    assert c.methods == ["FedAvg", "IFCA", "alone"]
    both = [ct.Result.load(folder / f"average{s}").evaluate()["gain"] for s in (0, 1)]
    assert np.allclose(c.gains.loc["FedAvg"].to_numpy(float), (both[0] + both[1]) / 2)
    assert np.allclose(c.errors.loc["FedAvg"].to_numpy(float), np.std(both, axis=0, ddof=1) / np.sqrt(2))
    assert c.errors.loc["IFCA"].isna().all()
    assert not c.judged
    assert set(c.curves["method"]) == {"FedAvg", "IFCA"}


def test_the_page_of_runs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], browser: Any) -> None:
    page = tmp_path / "side.html"
    text = prints(capsys, "report", *(folder / n for n in ("average0", "average1", "groups")), "--out", page)
    assert str(page) in re.sub(r"\s", "", text) or page.name in text
    browser.open(page, 390)
    assert browser.errors == []
    titles = browser.run("[...document.querySelectorAll('h2')].map((h) => h.textContent)")
    assert {"Runs", "Who gains, who loses", "Training", "Bytes"} <= set(titles)
    assert browser.run("document.querySelectorAll('.drawing .cartesianlayer > .xy').length") >= 4


def test_one_run_has_its_page_beside_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prints(capsys, "report", folder / "groups")
    assert "<h1>Runs side by side</h1>" in (folder / "groups" / "report.html").read_text("utf-8")


def test_the_same_method_and_seed_twice_are_told_apart_by_folder(folder: Path) -> None:
    runs = named([*load(folder / "average0"), *load(folder / "average0")])
    assert {run.method for run in runs} == {"FedAvg in average0"}
    mixed = named([*load(folder / "average0"), *load(folder / "groups")])
    assert [run.method for run in mixed] == ["FedAvg", "IFCA"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"place": np.repeat([f"p{i}" for i in range(6)], 30), "x": rng.normal(size=180)})
    frame["Lon"], frame["lat"] = (frame["place"].str[1].astype(float) * s for s in (1.0, -2.0))
    frame["y"] = np.where(frame["place"].str[1].astype(int) % 2, 1, -1) * frame["x"] + 0.2 * rng.normal(size=180)
    frame.to_csv(tmp_path / "places.csv", index=False)
    return tmp_path / "places.csv"


def test_a_comparison_runs_again_from_its_settings(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--client", "place", "--target", "y", "--features", "x", "--seeds", 1, "--test-fraction", 0.3)
    prints(capsys, "compare", table, *options, "--out", tmp_path / "first")
    settings = tomllib.loads((tmp_path / "first" / "settings.toml").read_text("utf-8"))
    assert settings["data"] == {
        "path": str(table), "client": "place", "target": "y", "features": ["x"], "test_fraction": 0.3,
        "one_class": "allow", "max_categories": 2000,
    }  # fmt: skip
    assert settings["compare"] == {"seeds": 1}
    prints(capsys, "run", tmp_path / "first" / "settings.toml", "--out", tmp_path / "second")
    one, two = (json.loads((tmp_path / n / "comparison.json").read_text("utf-8")) for n in ("first", "second"))
    assert one == two
    page = (tmp_path / "first" / "report.html").read_text("utf-8")
    assert "client = &#34;place&#34;" in page
    assert "Where they are" in page  # the table has longitudes and latitudes
    side = prints(capsys, "report", tmp_path / "first", tmp_path / "second", "--out", tmp_path)
    assert side.count("groups in") == 2
    assert max(map(len, side.splitlines()[:-1])) <= 80
    assert "<option" in (tmp_path / "report.html").read_text("utf-8")
    assert "groups in first" in (tmp_path / "report.html").read_text("utf-8")


def test_positions_belong_to_clients_not_rows(table: Path) -> None:
    frame = pd.read_csv(table)
    at = positions_of(frame, "place")
    assert at is not None
    assert at.loc["p2"].tolist() == [2.0, -4.0]
    assert positions_of(frame.assign(lat=frame["x"]), "place") is None
    assert positions_of(frame.drop(columns="lat"), "place") is None
    assert positions_of(frame.assign(lat="north"), "place") is None


def test_toml_comes_back_as_it_went() -> None:
    odd = {"data": {"path": 'C:\\x "y"\n\té\x7f', "list": ["a", "b'"], "n": 3, "f": 0.5, "on": True, "with space": 1}}
    assert tomllib.loads(toml_text(odd)) == odd
    assert tomllib.loads(toml_text({"a": {"b": None}})) == {"a": {}}
