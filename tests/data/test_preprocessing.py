"""The table of statistics is all that is needed to treat new rows like the training rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data.federation import Federation
from coterie.data.preprocessing import OTHER, apply_preprocessing, fit_preprocessing
from coterie.errors import DataError


def fit(frame: pd.DataFrame, **options: Any) -> pd.DataFrame:
    return fit_preprocessing(frame, list(frame.columns), np.arange(len(frame)), **options)


def test_numbers_are_filled_with_the_median_and_scaled() -> None:
    frame = pd.DataFrame({"v": [1.0, 2.0, 30.0, np.nan]})
    plan = fit(frame)
    assert plan["kind"].tolist() == ["numeric", "indicator"]
    filled = np.array([1.0, 2.0, 30.0, 2.0])
    x = apply_preprocessing(frame, plan)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, 0], (filled - filled.mean()) / filled.std(), rtol=1e-6)
    np.testing.assert_array_equal(x[:, 1], [0, 0, 0, 1])


@pytest.mark.parametrize(("missing", "kinds"), [(4, ["numeric"]), (5, ["numeric", "indicator"])])
def test_an_indicator_appears_from_five_percent(missing: int, kinds: list[str]) -> None:
    values = np.arange(100.0)
    values[:missing] = np.nan
    assert fit(pd.DataFrame({"v": values}))["kind"].tolist() == kinds


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b", None, "a"],
        pd.Categorical(["a", "b", None, "a"], categories=["b", "a", "never"]),
        pd.Series(["a", "b", None, "a"], dtype="string"),
        pd.Series(["a", "b", np.nan, "a"], dtype=object),
    ],
)
def test_every_kind_of_text_becomes_the_same_categories(values: Any) -> None:
    frame = pd.DataFrame({"v": values})
    plan = fit(frame)
    assert plan["column"].tolist() == ["v=a", "v=b", "v is missing"]
    np.testing.assert_array_equal(apply_preprocessing(frame, plan), [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])


def test_unknown_and_missing_categories_are_zero() -> None:
    plan = fit(pd.DataFrame({"v": ["a", "b"] * 50}))
    np.testing.assert_array_equal(
        apply_preprocessing(pd.DataFrame({"v": ["b", "new", None]}), plan), [[0, 1], [0, 0], [0, 0]]
    )


def test_booleans_are_categories_and_few_integers_stay_numbers() -> None:
    plan = fit(pd.DataFrame({"flag": [True, False], "grade": [1, 3]}))
    assert plan["column"].tolist() == ["flag=False", "flag=True", "grade"]
    nullable = pd.DataFrame({"n": pd.array([1, None, 4, 4], dtype="Int64"), "b": pd.array([True, None] * 2, "boolean")})
    assert fit(nullable)["kind"].tolist() == ["numeric", "indicator", "dropped", "indicator"]


def test_rare_categories_share_one_column() -> None:
    values = ["a"] * 50 + ["b"] * 40 + [f"rare {i}" for i in range(10)]
    plan = fit(pd.DataFrame({"v": values}), max_categories=2)
    assert plan["category"].tolist() == ["a", "b", OTHER]
    np.testing.assert_array_equal(
        apply_preprocessing(pd.DataFrame({"v": ["b", "rare 3", "new"]}), plan), [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    )


def test_useless_columns_are_dropped_with_the_reason() -> None:
    frame = pd.DataFrame(
        {
            "one": 3.0,
            "none": np.nan,
            "word": "same",
            "nothing": pd.Series([None] * 100, dtype=object),
            "name": [f"patient {i}" for i in range(100)],
            "good": np.arange(100),
        }
    )
    plan = fit(frame).set_index("source")
    assert plan["kind"].tolist() == ["dropped"] * 5 + ["numeric"]
    assert plan.loc["one", "note"] == "constant in the training rows (3)"
    assert plan.loc["none", "note"] == plan.loc["nothing", "note"] == "no value in any training row"
    assert "same" in plan.loc["word", "note"]
    assert "identifier: 100 distinct" in plan.loc["name", "note"]
    assert apply_preprocessing(frame, plan.reset_index()).shape == (100, 1)


def test_a_constant_with_many_gaps_keeps_its_indicator() -> None:
    plan = fit(pd.DataFrame({"v": [1.0, np.nan] * 10}))
    assert plan["kind"].tolist() == ["dropped", "indicator"]


def test_bad_values_name_the_column() -> None:
    mostly = pd.Series([str(i) for i in range(90)] + ["n/k"])
    with pytest.raises(DataError, match="'v' is mostly numbers but also holds the text 'n/k'"):
        fit(pd.DataFrame({"v": mostly}))
    with pytest.raises(DataError, match="'v' holds an infinite value"):
        fit(pd.DataFrame({"v": [1.0, np.inf]}))
    with pytest.raises(DataError, match="'v' holds a list"):
        fit(pd.DataFrame({"v": [[1], [2]]}))
    with pytest.raises(DataError, match="'v' holds dates"):
        fit(pd.DataFrame({"v": pd.to_timedelta([1, 2], unit="D")}))
    plan = fit(pd.DataFrame({"v": [1.0, 2.0]}))
    with pytest.raises(DataError, match="'v' must be numeric; got 'x'"):
        apply_preprocessing(pd.DataFrame({"v": ["1", "x"]}), plan)
    with pytest.raises(DataError, match="needs the column 'v'"):
        apply_preprocessing(pd.DataFrame({"w": [1.0]}), plan)


def test_new_rows_are_treated_like_the_federation_own_rows() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "c": np.repeat(["p", "q"], 30),
            5: rng.normal(size=60),
            "w": rng.choice(["u", "v"], 60),
            "t": np.tile([0, 1], 30),
        }
    )
    fed = Federation.from_frame(frame, client="c", target="t")
    assert fed.preprocessing is not None
    x = apply_preprocessing(frame, fed.preprocessing)
    for client, rows in (("p", slice(0, 30)), ("q", slice(30, 60))):
        mine = np.concatenate([fed.train(client)[0].numpy(), fed.test(client)[0].numpy()])
        np.testing.assert_array_equal(np.sort(mine, axis=0), np.sort(x[rows], axis=0))


def test_whole_numbers_match_whatever_their_type() -> None:
    plan = fit(pd.DataFrame({"v": pd.Categorical([1, 2, 1, 2])}))
    np.testing.assert_array_equal(apply_preprocessing(pd.DataFrame({"v": [2.0, np.nan]}), plan), [[0, 1], [0, 0]])
    np.testing.assert_array_equal(apply_preprocessing(pd.DataFrame({"v": ["1"]}), plan), [[1, 0]])


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=30), st.sampled_from([1.0, 1e-3, 1e-300]))
def test_scaled_numbers_are_always_finite(values: list[float], unit: float) -> None:
    frame = pd.DataFrame({"v": np.array(values) * unit})
    plan = fit(frame)
    x = apply_preprocessing(frame, plan, dtype="float64")
    assert np.isfinite(x).all()
    if x.shape[1]:
        assert x.std() == pytest.approx(1.0, abs=1e-3)


def test_a_missing_category_is_not_the_rare_ones() -> None:
    """(other) is for values beyond the most common; a missing one is 0 everywhere but in its indicator."""
    frame = pd.DataFrame({"c": [*"aaaabbbbccd", None]})
    plan = fit(frame, max_categories=2)
    assert plan["category"].dropna().tolist() == ["a", "b", OTHER]
    x = apply_preprocessing(frame, plan)
    np.testing.assert_array_equal(x[-1], [0, 0, 0, 1])
    np.testing.assert_array_equal(x[8:11], [[0, 0, 1, 0]] * 3)
    new = apply_preprocessing(pd.DataFrame({"c": ["never seen", None]}), plan)
    np.testing.assert_array_equal(new, [[0, 0, 1, 0], [0, 0, 0, 1]])
