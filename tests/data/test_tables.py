"""Tables become federations with the split of `from_arrays`, training statistics only, and errors one can act on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.data.federation import Federation
from coterie.data.tables import infer_kind, read_table
from coterie.errors import DataError


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": np.array(["b", "a", "c"])[np.arange(rows) % 3],
            "age": rng.normal(50, 10, rows),
            "ward": np.array(["x", "y"])[rng.integers(0, 2, rows)],
            "sick": (np.arange(rows) // 3) % 2,
        }
    )


def build(frame: pd.DataFrame, **options: object) -> Federation:
    return Federation.from_frame(frame, client="site", target="sick", **options)  # type: ignore[arg-type]


# ---- what comes out --------------------------------------------------------------------------------------------------


def test_clients_keep_the_order_of_first_appearance_and_rows_are_complete() -> None:
    fed = build(table())
    assert list(fed.clients) == ["b", "a", "c"]
    assert fed.n_samples.tolist() == [20, 20, 20]
    assert fed.n_test.tolist() == [5, 5, 5]
    assert fed.columns == ("age", "ward=x", "ward=y")
    assert fed.kind == "classification"
    assert fed.classes == (0, 1)


@pytest.mark.parametrize("seed", [0, 7])
def test_the_split_is_that_of_from_arrays(seed: int) -> None:
    frame = table()
    fed = build(frame, seed=seed, features=["age"])
    arrays = {
        c: (frame.loc[frame.site == c, ["age"]].to_numpy(), frame.sick[frame.site == c].to_numpy()) for c in "bac"
    }
    other = Federation.from_arrays(arrays, seed=seed)
    assert fed.preprocessing is not None
    row = fed.preprocessing.iloc[0]
    for c in "bac":
        for mine, theirs in ((fed.train(c), other.train(c)), (fed.test(c), other.test(c))):
            np.testing.assert_allclose(mine[0].numpy() * row["scale"] + row["mean"], theirs[0].numpy(), rtol=1e-5)
            np.testing.assert_array_equal(mine[1].numpy(), theirs[1].numpy())


def test_statistics_come_from_training_rows_only() -> None:
    frame = table()
    frame["row"] = np.arange(len(frame), dtype=float)
    first = build(frame, features=["row", "age"])
    assert first.preprocessing is not None
    scale = first.preprocessing.set_index("column")
    held_out = np.concatenate([first.test(c)[0][:, 0].numpy() for c in first.clients])
    rows = np.round(held_out * scale.loc["row", "scale"] + scale.loc["row", "mean"]).astype(int)
    spoiled = frame.copy()
    spoiled.loc[rows, "age"] = 1e6  # whatever the test rows hold, nothing learnt from the training rows may move
    again = build(spoiled, features=["row", "age"])
    pd.testing.assert_frame_equal(first.preprocessing, again.preprocessing)
    train = np.setdiff1d(np.arange(len(frame)), rows)
    assert scale.loc["age", "mean"] == pytest.approx(frame.age.to_numpy()[train].mean())
    assert scale.loc["age", "scale"] == pytest.approx(frame.age.to_numpy()[train].std())
    assert scale.loc["age", "mean"] != pytest.approx(frame.age.mean())
    coded = frame.assign(kind=np.where(np.arange(len(frame)) % 3, "u", "v"))
    other = coded.copy()
    other.loc[rows, "kind"] = "held out"  # a category that no training row has
    one, two = (build(f, features=["row", "kind"]).preprocessing for f in (coded, other))
    pd.testing.assert_frame_equal(one, two)


def test_true_clusters_come_from_a_column() -> None:
    frame = table().assign(group=lambda f: np.where(f.site == "a", "odd", "even"))
    fed = build(frame, cluster="group")
    assert fed.clusters is not None
    assert fed.clusters.tolist() == [0, 1, 0]
    assert "group=odd" not in (fed.columns or ())
    frame.loc[4, "group"] = "even"
    with pytest.raises(DataError, match="client 'a' has a missing or second"):
        build(frame, cluster="group")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"] * 30, "classification"),
        ([True, False] * 30, "classification"),
        (list(range(20)) * 3, "classification"),
        (list(range(30)) * 2, "regression"),
        ([*range(20), *range(10)] * 2, "classification"),
        ([0.0, 1.0] * 30, "classification"),
        ([0.5, 1.0] * 30, "regression"),
        (pd.Categorical(list(range(30)) * 2), "classification"),
        ([str(i) for i in range(30)] * 2, "regression"),
        (pd.array(["a", "b"] * 30, dtype="string[pyarrow]"), "classification"),
        (pd.array([0.5, 1.0] * 30, dtype="double[pyarrow]"), "regression"),
    ],
)
def test_the_kind_is_inferred_and_can_be_overridden(values: object, kind: str) -> None:
    series = pd.Series(values)
    assert infer_kind(series) == kind
    fed = build(table().assign(sick=series), one_class="allow")
    assert fed.kind == kind
    assert build(table().assign(sick=[0, 1] * 30), kind="regression").kind == "regression"


def test_whole_floats_and_text_make_plain_classes() -> None:
    assert build(table().assign(sick=[0.0, 1.0] * 30)).classes == (0, 1)
    assert build(table().assign(sick=["no", "yes"] * 30)).classes == ("no", "yes")
    assert build(table().assign(sick=pd.Series([1, "x"] * 30, dtype=object))).classes == ("1", "x")


def test_numeric_and_categorical_client_columns_work() -> None:
    frame = table()
    assert list(build(frame.assign(site=np.arange(60) % 3 + 7)).clients) == [7, 8, 9]
    assert list(build(frame.assign(site=pd.Categorical(frame.site, categories=["z", "a", "b", "c"]))).clients) == [
        *"bac"
    ]
    assert list(build(frame.set_index(np.arange(60)[::-1])).clients) == ["b", "a", "c"]


def test_a_federation_from_a_table_survives_the_disk(tmp_path: Path) -> None:
    frame = table()
    frame.loc[:20, "age"] = np.nan
    frame["same"] = 1
    fed = build(frame)
    back = Federation.load(fed.save(tmp_path))
    assert fed.preprocessing is not None
    assert back.preprocessing is not None
    pd.testing.assert_frame_equal(fed.preprocessing, back.preprocessing, check_dtype=False)
    assert back.columns == fed.columns


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_missing_columns_are_named_with_a_suggestion() -> None:
    with pytest.raises(DataError, match="no client column 'Sites'; did you mean 'site'"):
        Federation.from_frame(table(), client="Sites", target="sick")
    with pytest.raises(DataError, match="no target column 'sck'; did you mean 'sick'"):
        Federation.from_frame(table(), client="site", target="sck")
    with pytest.raises(DataError, match="no feature column 'agee'; did you mean 'age'"):
        build(table(), features=["agee"])
    with pytest.raises(DataError, match="reset_index"):
        build(table().set_index("site"))


def test_one_class_client_is_named_and_can_be_allowed() -> None:
    frame = table()
    frame.loc[frame.site == "c", "sick"] = 1
    with pytest.raises(DataError, match="client 'c' has only 1"):
        build(frame)
    assert len(build(frame, one_class="allow")) == 3


def test_missing_and_infinite_targets_name_the_client() -> None:
    frame = table().astype({"sick": float})
    frame.loc[4, "sick"] = np.nan
    with pytest.raises(DataError, match="client 'a' has a NaN in column 'sick'"):
        build(frame)
    frame.loc[4, "sick"] = np.inf
    with pytest.raises(DataError, match="client 'a' has an infinite"):
        build(frame, kind="regression")
    ids = table().assign(site=np.arange(60) % 3)
    ids["sick"] = ids["sick"].where(ids.index != 4)
    with pytest.raises(DataError, match="client 1 has a NaN"):
        build(ids)


def test_non_numeric_targets_name_the_value_and_the_column() -> None:
    stray = table().assign(sick=pd.Series([*(f"{v:.2f}" for v in np.linspace(0, 9, 59)), "unknown"]))
    with pytest.raises(DataError, match="'sick' is mostly numbers but also holds the text 'unknown'"):
        build(stray)
    with pytest.raises(DataError, match="column 'sick' holds 'unknown'"):
        build(stray, kind="regression")
    with pytest.raises(DataError, match="column 'sick' holds 'no'"):
        build(table().assign(sick=["no", "yes"] * 30), kind="regression")
    few = table().assign(sick=pd.Series([*[0.5, 1.0] * 29, 0.5, "high"], dtype=object))
    with pytest.raises(DataError, match="'sick' is mostly numbers but also holds the text 'high'"):
        build(few)
    assert build(few.astype({"sick": "category"})).classes == ("0.5", "1.0", "high")
    with pytest.raises(DataError, match="60 distinct values in 60 rows"):
        build(table().assign(sick=[f"patient {i}" for i in range(60)]))
    with pytest.raises(DataError, match="'sick' holds datetime"):
        build(table().assign(sick=pd.Timestamp("2020-01-01")))


def test_rows_without_client_and_tables_without_rows_are_refused() -> None:
    frame = table()
    frame.loc[[3, 9], "site"] = None
    with pytest.raises(DataError, match="'site' is missing in 2 rows, first in row 3"):
        build(frame)
    with pytest.raises(DataError, match="'site' holds '1' as text and as a number"):
        build(table().assign(site=pd.Series([1, "1"] * 30, dtype=object)))
    with pytest.raises(DataError, match="has no rows"):
        build(table().iloc[:0])
    with pytest.raises(DataError, match="needs a pandas DataFrame; got dict"):
        build({"site": [1]})  # type: ignore[arg-type]


def test_duplicate_and_clashing_columns_are_refused() -> None:
    frame = pd.concat([table(), table()[["age"]]], axis=1)
    with pytest.raises(DataError, match="'age' occurs more than once"):
        build(frame)
    with pytest.raises(DataError, match="both column 'site'"):
        Federation.from_frame(table(), client="site", target="site")
    with pytest.raises(DataError, match="'sick' is already the client, target or cluster"):
        build(table(), features=["sick", "age"])
    with pytest.raises(DataError, match="lists of column names"):
        build(table(), features="age")


def test_dates_are_left_out_and_refused_as_features() -> None:
    frame = table().assign(visit=pd.date_range("2020-01-01", periods=60))
    fed = build(frame)
    assert fed.columns == build(frame, exclude=["visit"]).columns == ("age", "ward=x", "ward=y")
    assert fed.notes is not None
    assert fed.notes.ignored == ["visit"]
    with pytest.raises(DataError, match=r"'visit' holds dates.*exclude=\['visit'\]"):
        build(frame, features=["visit", "age"])


def test_a_table_without_usable_features_says_why() -> None:
    with pytest.raises(DataError, match=r"No usable feature is left \(age: constant"):
        build(table().assign(age=1.0), features=["age"])
    with pytest.raises(DataError, match="No feature column is left"):
        build(table()[["site", "sick"]])


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_a_senseless_test_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(DataError, match="test_fraction"):
        build(table(), test_fraction=fraction)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_files_give_the_same_federation(name: str, tmp_path: Path) -> None:
    frame = table()
    path = tmp_path / name
    frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path)  # to_csv writes an unnamed row counter
    fed = Federation.from_parquet(path, client="site", target="sick")
    assert fed.columns == build(frame).columns
    np.testing.assert_allclose(fed.x.numpy(), build(frame).x.numpy(), rtol=1e-6)
    assert len(Federation.from_csv(path, client="site", target="sick")) == 3


def test_question_marks_are_missing_in_csv(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,age\na, ?\nb,3\n")
    assert read_table(tmp_path / "t.csv")["age"].isna().tolist() == [True, False]


def test_bad_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("")
    (tmp_path / "data.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"There is no file .*date\.csv\. Did you mean data.csv"):
        read_table(tmp_path / "date.csv")
    with pytest.raises(DataError, match="neither CSV, Parquet nor Excel"):
        read_table(tmp_path / "data.docx")
    with pytest.raises(DataError, match="is empty: it has neither columns nor rows"):
        read_table(tmp_path / "data.csv")
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_table(tmp_path / "data.parquet")
