"""Classes, categories and other facts are declared on the command line and in files; a private run needs them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.cli.commands import main
from coterie.cli.config import Config
from coterie.cli.flower import for_sites, job_of
from coterie.cli.rerun import settings_of
from coterie.cli.table_options import TableSource
from coterie.report.toml import toml_text

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
BUDGET = {"epsilon": 3.0, "delta": 1e-6, "clip": 1.0}
TABLE = {"client": "who", "target": "y", "scaling": "own"}


def table(folder: Path, name: str = "usual", **mine: Any) -> Path:
    """Six clients; `mine` are columns of the first one."""
    rng = np.random.default_rng(3)
    colours = rng.choice(["red", "blue"], 72)
    rows = pd.DataFrame({"who": np.repeat(np.arange(6), 12), "a": rng.normal(size=72), "colour": colours})
    rows["y"] = (rows["a"] + rng.normal(size=72) > 0).astype(int)
    for column, value in mine.items():
        rows[column] = rows[column].astype(object)
        rows.loc[:3, column] = value
    rows.to_csv(folder / f"{name}.csv", index=False)
    return folder / f"{name}.csv"


def compared(path: Path, out: Path, *options: str) -> dict[str, Any]:
    told = ["--client", "who", "--target", "y", "--epsilon", "3", "--delta", "1e-6", "--seeds", "1", "--rounds", "2"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(path), *told, "--out", str(out), *options])
    assert not ended.value.code
    receipt: dict[str, Any] = json.loads((out / "private" / "receipt.json").read_text())
    return receipt


def test_compare_takes_categories_and_one_clients_rows_leave_no_trace(tmp_path: Path) -> None:
    told = ("--classes", "0,1", "--categories", "colour: red, blue")
    usual = compared(table(tmp_path), tmp_path / "1", *told)
    assert usual["valid"], usual["reasons"]
    assert "declared public by the user: the inputs a, colour=red and colour=blue" in usual["public"]
    odd = TableSource(
        table(tmp_path, "odd", colour="green", y=0.5, a="many"), "who", "y", classes="0,1", categories=told[3]
    )
    made = odd.federation(private=True, scaling="own", one_class="allow")
    assert (made.classes, made.n_features) == ((0, 1), 3)
    void = compared(table(tmp_path), tmp_path / "2", "--classes", "0,1")
    assert not void["valid"]
    assert any("categories=privacy.public" in reason for reason in void["reasons"])


def test_a_public_range_is_listed(tmp_path: Path) -> None:
    path = table(tmp_path)
    rows = pd.read_csv(path).drop(columns="colour")
    rows.assign(y=1000 * rows["a"]).to_csv(path, index=False)
    told = ("--kind", "regression", "--categories", "none", "--target-range", "-3000,3000")
    receipt = compared(path, tmp_path / "1", *told)
    assert receipt["valid"], receipt["reasons"]
    assert "declared public by the user: the range of the target, -3000 to 3000" in receipt["public"]


def test_digits_are_numbers_only_where_the_column_holds_numbers(tmp_path: Path) -> None:
    source = TableSource(table(tmp_path), "who", "y", classes="0,1")
    assert source.federation().classes == (0, 1)
    codes = table(tmp_path, "codes")
    codes.write_text(codes.read_text().replace(",1\n", ",01\n").replace(",0\n", ",00\n"))
    assert TableSource(codes, "who", "y", classes="00,01").federation().classes == ("00", "01")


@pytest.mark.parametrize("wrong", ["colour", "colour: ", "colour = red"])
def test_categories_without_values_are_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ct.errors.ConfigError, match="--categories is"):
        TableSource(table(tmp_path), "who", "y", categories=wrong).federation()


def test_a_file_declares_classes_categories_and_facts(tmp_path: Path) -> None:
    table(tmp_path)
    data = TABLE | {"path": "usual.csv", "classes": [0, 1], "categories": {"colour": ["red", "blue"]}, "min_rows": 2}
    run = {"algorithm": {"name": "fedavg"}, "run": {"rounds": 1}, "privacy": BUDGET}
    for facts, valid in ((["clients"], True), ([], False)):
        config = Config.parse(run | {"data": data | {"public": facts}}, tmp_path)
        receipt = config.fit(out=tmp_path / f"{valid}").receipt
        assert receipt is not None
        assert receipt.valid is valid, receipt.reasons
    table(tmp_path, "odd", y=7, colour="green", a="many")
    odd = data | {"path": "odd.csv", "public": ["clients"]}
    fed = Config.parse(run | {"data": odd}, tmp_path).federation()
    assert fed.columns == ("a", "colour=red", "colour=blue")
    with pytest.raises(ct.errors.DataError, match="not among the classes"):  # without a budget errors stay loud
        Config.parse({k: v for k, v in run.items() if k != "privacy"} | {"data": odd}, tmp_path).federation()


def test_facts_of_a_built_in_data_set_are_declared_in_its_file(tmp_path: Path) -> None:
    data = {"name": "digits", "clusters": 2, "public": ["classes", "kind"]}
    config = {"data": data, "algorithm": {"name": "fedavg"}, "privacy": BUDGET}
    assert Config.parse(config).federation().declared >= {"classes", "kind"}
    for wrong, told in (("classes", "must be a list"), (["colours"], "Facts to declare public are")):
        with pytest.raises(ct.errors.ConfigError, match=told):
            Config.parse(config | {"data": data | {"public": wrong}})


def test_categories_are_written_into_the_files_that_repeat_a_run(tmp_path: Path) -> None:
    path = table(tmp_path)
    source = TableSource(path, "who", "y", classes="0,1", categories="colour: red, light blue")
    told = settings_of(source, {"one_class": "allow"}, {"seeds": 1})
    kept = tomllib.loads(toml_text(told))
    assert kept["data"]["categories"] == {"colour": ["red", "light blue"]}
    assert kept["data"]["classes"] == [0, 1]
    file = tmp_path / "run.toml"
    file.write_text(
        '[data]\npath = "usual.csv"\nclient = "who"\ntarget = "y"\nscaling = "own"\n'
        '[data.categories]\ncolour = ["red", "blue"]\n\n[algorithm]\nname = "fedavg"\n'
    )
    text, _ = for_sites(file, 2)
    assert job_of(text, tmp_path).data["categories"] == {"colour": ["red", "blue"]}
