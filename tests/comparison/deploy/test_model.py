"""A model to take home: raw rows in, the same numbers in a fresh process, and no training rows inside."""

import json
import os
import pickle
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import coterie as ct
from coterie.cli import main
from coterie.comparison.deploy.intervals import Intervals
from coterie.comparison.deploy.model import TableModel
from coterie.errors import ConfigError, DataError

M, N = 14, 30


def world(seed: int = 0, classes: bool = False, clients: range = range(100, 100 + M), n: int = N) -> pd.DataFrame:
    """Clients whose height moves the slope of x, with a category and missing values."""
    rng, height = np.random.default_rng(seed), np.random.default_rng(9).normal(size=1000)
    who = np.repeat(list(clients), n)
    x, colour = rng.normal(size=len(who)), rng.choice(["red", "green", "blue"], len(who))
    up = height[who]
    y = (1 + up) * x + 2 * up + (colour == "red") + 0.5 * rng.normal(size=len(who))
    x[rng.random(len(who)) < 0.1] = np.nan
    target = np.where(y + rng.logistic(size=len(who)) > 0, "yes", "no") if classes else y
    return pd.DataFrame({"who": who, "height": up, "x": x, "colour": colour, "y": target})


def compared(frame: pd.DataFrame, **more):
    return ct.compare(frame, client="who", target="y", seeds=1, one_class="allow", **more)


@pytest.fixture(scope="module", params=["regression", "classification"])
def model(request) -> TableModel:
    return compared(world(classes=request.param == "classification")).model


@pytest.fixture(scope="module")
def numbers() -> TableModel:
    return compared(world(), family="linear").model


FRESH = """
import sys, pandas as pd, coterie as ct
made = ct.load_model(sys.argv[1]).table(pd.read_parquet(sys.argv[2]))
made.to_parquet(sys.argv[3])
assert "torch" not in sys.modules
"""


def test_a_fresh_process_predicts_bit_identically_from_raw_rows(model: TableModel, tmp_path: Path) -> None:
    new = world(seed=5, clients=range(95, 105)).drop(columns="y")
    new.to_parquet(tmp_path / "new.parquet")
    model.save(tmp_path / "model")
    command = [sys.executable, "-c", FRESH, *(str(tmp_path / n) for n in ("model", "new.parquet", "made.parquet"))]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "made.parquet"), model.table(new), check_exact=True)


def test_predictions_are_good_and_say_what_they_rest_on(model: TableModel) -> None:
    new = world(seed=5, classes=model.classes is not None, clients=range(98, 102))
    made = model.table(new)
    assert list(made.columns) == ["who", "prediction", "low", "high", "basis"]
    assert set(made.loc[new["who"] < 100, "basis"]) == {"covariates"}
    assert set(made.loc[new["who"] >= 100, "basis"]) == {"own"}
    if model.classes is None:
        assert ((made["prediction"] - new["y"]) ** 2).mean() < 0.2 * new["y"].var()
        assert made["prediction"].between(made["low"], made["high"]).all()
    else:
        assert (made["prediction"] == new["y"]).mean() > 0.6
        np.testing.assert_allclose(model.predict_proba(new).sum(axis=1), 1)
        assert made[["low", "high"]].stack().between(0, 1).all()


def test_nothing_inside_is_a_pickle_or_a_training_row(model: TableModel, tmp_path: Path) -> None:
    frame = world(classes=model.classes is not None)
    model.save(tmp_path / "model")
    assert {p.suffix for p in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}
    for file in (tmp_path / "model").glob("*.safetensors"):
        for values in load_file(file).values():
            assert len(frame) not in values.shape
            if model.classes is None and values.dtype.kind == "f":
                assert np.isin(frame["y"].to_numpy(np.float32), values.astype(np.float32)).mean() < 0.02


@pytest.mark.parametrize("kind", ["int", "float", "text", "category", "date", "bool", "float text"])
def test_clients_are_found_whatever_type_their_column_has(kind: str) -> None:
    """Trained on one type and asked with others: no row falls back to the population."""
    frame = world(n=20)
    code = frame["who"] - 100
    day = [date(2026, 3, 1) + timedelta(days=int(c)) for c in code]
    seen: dict[str, list[pd.Series]] = {
        "int": [code, code.astype(float), code.astype(str), code.astype("Int64")],
        "float": [code.astype(float), code, code.astype(str)],
        "text": [code.map("c{}".format), code.map("c{}".format).astype("category")],
        "category": [code.astype("category"), code, code.astype(str).astype("category")],
        "date": [pd.Series(pd.to_datetime(day)), pd.Series(day), pd.Series(day).astype(str)],
        "bool": [code % 2 == 0, (code % 2 == 0).astype(str), (code % 2 == 0).astype(object)],
        "float text": [code.map("{}.0".format), code, code.map("{}.0".format).astype("category")],
    }
    first, *others = seen[kind]
    model = compared(frame.assign(who=first), family="linear").model
    expected = model.predict(frame.assign(who=first))
    assert set(model.table(frame.assign(who=first))["basis"]) == {"own"}
    for other in others:
        np.testing.assert_array_equal(model.predict(frame.assign(who=other)), expected)


def test_the_predictors_of_a_decision_find_integer_clients_and_hold_no_rows() -> None:
    frame = world()
    predictor = compared(frame, family="linear").decision.predictors["alone"]
    X = np.zeros((M, len(predictor.names)))
    own = predictor.predict(X, np.arange(100, 100 + M))
    assert len(set(own)) == M
    np.testing.assert_array_equal(predictor.predict(X, np.arange(100, 100 + M).astype(str)), own)
    assert len(pickle.dumps(predictor)) < 20_000 + 8 * len(frame)


def test_unknown_clients_and_categories_are_counted(numbers: TableModel) -> None:
    new = world().iloc[::40].assign(colour="violet", who=["new", "other", "new", *range(100, 108)])
    told = " ".join(numbers.told(new))
    assert "3 of 11 rows are of 2 clients never seen (new and other)" in told
    assert "11 rows have a category in 'colour' that training did not see" in told
    assert numbers.told(world()) == []


@pytest.mark.slow
def test_many_columns_are_projected_from_raw_rows() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(240, 210)) @ np.diag(np.linspace(3, 0.1, 210)))
    frame.columns = [f"pixel {j}" for j in range(210)]
    frame["y"] = frame["pixel 0"] + 0.1 * rng.normal(size=240)
    frame["who"] = np.repeat(np.arange(6), 40)
    found = compared(frame, family="linear")
    assert "principal components" in " ".join(found.warnings)
    assert ((found.model.predict(frame) - frame["y"]) ** 2).mean() < 0.2 * frame["y"].var()


def test_a_model_of_arrays_takes_their_columns() -> None:
    rng = np.random.default_rng(0)
    arrays = {i: (rng.normal(size=(25, 2)), rng.normal(size=25)) for i in range(5)}
    found = ct.compare(arrays, kind="regression", seeds=1, family="linear")
    frame = pd.DataFrame(arrays[3][0], columns=["x0", "x1"]).assign(client=3)
    assert set(found.model.table(frame)["basis"]) <= {"own", "population", "group"}
    with pytest.raises(DataError, match="lacks 'x1'"):
        found.model.predict(frame.drop(columns="x1"))


def test_a_damaged_or_foreign_folder_is_refused_in_one_sentence(numbers: TableModel, tmp_path: Path) -> None:
    folder = numbers.save(tmp_path / "model")
    with pytest.raises(DataError, match=r"Did you mean .*model\?"):
        ct.load_model(tmp_path)
    arrays = (folder / "arrays.safetensors").read_bytes()
    (folder / "arrays.safetensors").write_bytes(arrays[:-8] + bytes(8))
    with pytest.raises(DataError, match="checksum is wrong"):
        ct.load_model(folder)
    numbers.save(folder)
    (folder / "sums.safetensors").unlink()
    given = ct.load_model(folder)
    pd.testing.assert_frame_equal(given.table(world()), numbers.table(world()))
    with pytest.raises(DataError, match="without its clients' sums"):
        given.update(world())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.json").write_text("{}")
    with pytest.raises(ConfigError, match="no model's"):
        numbers.save(tmp_path / "other")


def test_bad_rows_get_one_sentence(numbers: TableModel) -> None:
    with pytest.raises(DataError, match="lacks 'height'"):
        numbers.predict(world().drop(columns="height"))
    with pytest.raises(DataError, match="the table lacks it"):
        numbers.predict(world().drop(columns="who"))
    with pytest.raises(ConfigError, match="level must lie"):
        numbers.predict_interval(world(), level=1.5)
    with pytest.raises(DataError, match="DataFrame"):
        numbers.predict(np.zeros((3, 2)))


def test_a_split_that_would_be_ignored_is_refused() -> None:
    frame = world().assign(part=np.where(np.arange(M * N) % 4, "train", "test"))
    with pytest.raises(DataError, match="'part' would be ignored"):
        compared(frame, split="part")


def test_one_table_in_one_file_of_predictions_out(tmp_path: Path, capsys) -> None:
    world().to_csv(tmp_path / "table.csv", index=False)
    out, new = tmp_path / "report", tmp_path / "new.csv"
    options = ["--client", "who", "--target", "y", "--seeds", "1", "--family", "linear", "--out", str(out)]
    world(seed=5, clients=range(99, 103)).drop(columns="y").to_csv(new, index=False)
    for command in (
        ["compare", str(tmp_path / "table.csv"), *options],
        ["predict", str(out / "model"), str(new), "--out", str(tmp_path / "p.csv")],
        ["update", str(out / "model"), str(tmp_path / "table.csv"), "--out", str(tmp_path / "again")],
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    made = pd.read_csv(tmp_path / "p.csv")
    assert list(made.columns) == ["who", "prediction", "low", "high", "basis"]
    assert made["basis"].value_counts().to_dict() == {"own": 90, "covariates": 30}
    assert "30 of 120 rows are of 1 client" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "again" / "model.json").read_text())["about"]["rows"] == 2 * M * N


def test_intervals_borrow_strength_and_follow_each_clients_noise() -> None:
    """Two noisy clients in thirty, one with many rows and one with few: both are covered, by wider intervals."""
    rng = np.random.default_rng(0)
    sizes = np.array([400, 15] + [60] * 28)
    owner = np.repeat(np.arange(30), sizes)
    noise = np.where(owner < 2, 4.0, 1.0)
    y = noise * rng.normal(size=len(owner))
    bounds = Intervals.of_numbers(y, np.zeros(len(y)), owner, 30, None)
    low, high = bounds.numbers(np.zeros(30), np.arange(30), 0.9)
    width = (high - low) / (2 * 1.645)
    assert abs(width[0] - 4) < 0.6
    assert 2 < width[1] < 5.5
    assert abs(width[2:].mean() - 1) < 0.15
    assert width[2:].std() < 0.2
