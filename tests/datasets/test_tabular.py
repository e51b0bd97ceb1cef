"""The embedded tables hold what their sources publish; the larger ones have the documented shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie.datasets import (
    elections,
    har,
    heart,
    heart_frame,
    rain,
    rain_frame,
    rain_stations,
    train_tickets,
    user_tokens,
)
from coterie.errors import DataError


def test_heart_has_four_hospitals_and_no_leak_of_the_severity() -> None:
    fed = heart()
    assert list(fed.clients) == ["cleveland", "hungarian", "switzerland", "va"]
    assert fed.n_samples.tolist() == [303, 294, 123, 200]
    assert fed.classes == (0, 1)
    assert fed.columns is not None
    assert not any(c.startswith("num") for c in fed.columns)
    positive = {c: float(np.mean(np.r_[fed.train(c)[1], fed.test(c)[1]])) for c in fed.clients}
    assert positive == pytest.approx(
        {"cleveland": 139 / 303, "hungarian": 106 / 294, "switzerland": 115 / 123, "va": 149 / 200}
    )
    assert np.isfinite(fed.x.numpy()).all()


def test_heart_treats_impossible_zeros_as_missing() -> None:
    frame = heart_frame()
    assert frame.loc[frame.hospital == "switzerland", "chol"].isna().all()
    assert frame[["chol", "trestbps"]].min().min() > 50
    assert "chol is missing" in (heart().columns or ())
    frame.loc[:, "age"] = 0.0  # a copy: the next caller sees the original
    assert heart_frame()["age"].min() > 20


def test_heart_splits_by_seed() -> None:
    assert np.array_equal(heart(seed=1).x, heart(seed=1).x)
    assert not np.array_equal(heart(seed=1).x, heart(seed=2).x)


def test_rain_has_36_months_at_each_of_360_gauges() -> None:
    fed = rain()
    assert len(fed) == 360
    assert set(fed.n_samples) == {36}
    assert fed.kind == "regression"
    assert fed.columns is not None
    assert {c.split("=")[0] for c in fed.columns} == {"month"}  # neither year nor position
    assert len(fed.columns) == 12
    frame = rain_frame()
    assert (frame.groupby(["station", "month"]).size() == 3).all()
    assert 400 < 12 * (frame["rain"] ** 2).mean() < 550  # millimetres a year around Colorado
    frame["rain"] = 0.0  # a copy: the next caller sees the original
    assert rain_frame()["rain"].max() > 10


def test_rain_stations_tell_the_plains_from_the_mountains() -> None:
    where = rain_stations()
    assert list(where.columns) == ["lon", "lat", "elevation_m"]
    assert set(where.index) == set(rain().clients)
    east, west = (where.loc[side, "elevation_m"].median() for side in (where["lon"] > -103.5, where["lon"] < -106))
    assert east < 1500 < 1800 < west


def test_train_tickets_are_choices_of_229_travellers(data_folder: Path) -> None:
    fed = train_tickets()
    assert len(fed) == 229
    assert fed.n_samples.sum() == 2892
    assert fed.columns == ("price", "minutes", "changes", "comfort")
    x, y, _ = fed.rows()
    assert x[y == 1, 0].mean() < x[y == 0, 0].mean()  # the first is chosen when it is cheap


def test_elections_count_the_training_years_only() -> None:
    everything = elections()
    assert everything.held_out is None
    assert len(everything.table) == 3111
    assert set(everything.trials) == {6}
    for year in (2000, 2020):
        part = elections(held_out=year)
        assert part.held_out is not None
        assert set(part.trials) == {5}
        np.testing.assert_array_equal(part.successes + part.held_out, everything.successes)
        np.testing.assert_array_equal(part.held_out, part.table[f"rep{year}"])
    assert everything.table["fips"].iloc[0] == "01001"
    assert ((everything.table["share2020"] > 0.5) == (everything.table["rep2020"] == 1)).all()
    with pytest.raises(DataError, match="held_out must be one of"):
        elections(held_out=2001)


def test_har_is_standardised_with_training_rows(data_folder: Path) -> None:
    fed = har()
    assert len(fed) == 30
    assert fed.classes is not None
    assert fed.classes[0] == "WALKING"
    train = np.concatenate([fed.train(c)[0].numpy() for c in fed.clients]).astype(np.float64)
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-4)
    test = np.concatenate([fed.test(c)[0].numpy() for c in fed.clients])
    assert np.abs(test.mean(axis=0)).max() > 1e-3  # the test rows had no say


def test_user_tokens_have_the_documented_sizes(data_folder: Path) -> None:
    blogs = user_tokens("blogs")
    totals = np.asarray(blogs.counts.sum(axis=1))
    assert blogs.counts.shape == (19320, 1000) == (len(blogs.users), len(blogs.vocabulary))
    assert np.median(totals) == 1639
    assert (totals >= 500).sum() == 16555
    assert (blogs.users["total_tokens"] >= totals).all()
    reviews = user_tokens("imdb")
    assert reviews.counts.shape == (100_000, 1000)
    assert reviews.users["label"].isna().sum() == 50_000
    with pytest.raises(DataError, match="'blogs' and 'imdb'"):
        user_tokens("reddit")  # type: ignore[arg-type]
