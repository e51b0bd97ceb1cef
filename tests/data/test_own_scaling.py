"""Rows that every client scales by itself: no statistic of other clients' rows is used."""

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.data.own_scaling import scaled_by_clients


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": np.repeat([f"c{i}" for i in range(6)], 20),
            "a": rng.normal(5, 3, 120),
            "b": rng.normal(-1e6, 2e5, 120),
            "flag": rng.random(120) < 0.5,
            "y": rng.integers(0, 2, 120),
        }
    )


def own(frame: pd.DataFrame, **options) -> ct.Federation:
    return ct.Federation.from_frame(frame, client="who", target="y", scaling="own", **options)


def test_each_client_is_centred_and_scaled_by_its_own_training_rows(table: pd.DataFrame) -> None:
    fed = own(table)
    assert fed.preprocessing is None
    assert fed.columns == ("a", "b", "flag")
    for client in fed.clients:
        x, _ = fed.train(client)
        torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(x.std(0, correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_missing_values_get_the_median_of_those_that_are_there_and_only_training_rows_count() -> None:
    rows = np.array([[10.0], [np.nan], [20.0], [60.0], [np.nan], [1e6]])  # the last two are test rows
    x = scaled_by_clients(rows, np.array([6]), np.array([4]))[:, 0]
    train = np.array([10.0, 20.0, 20.0, 60.0])
    np.testing.assert_allclose(x, (np.array([*train, 20.0, 1e6]) - train.mean()) / train.std(), rtol=1e-12)


def test_one_clients_rows_change_nothing_for_the_others(table: pd.DataFrame) -> None:
    other = table.copy()
    mine = other["who"] == "c2"
    other.loc[mine, ["a", "b"]] = 1e30
    other.loc[mine & (other.index % 2 == 0), "a"] = np.nan
    before, after = own(table), own(other)
    for client in ("c0", "c1", "c3", "c4", "c5"):
        for split in ("train", "test"):
            assert torch.equal(getattr(before, split)(client)[0], getattr(after, split)(client)[0])
    assert torch.isfinite(after.x).all()


def test_what_would_look_at_everybodys_values_is_refused_or_said(table: pd.DataFrame) -> None:
    with pytest.raises(ct.errors.DataError, match=r"'same' would be left out.*exclude=\['same'\]"):
        own(table.assign(same=1.0))
    assert own(table.assign(same=1.0), exclude=["same"]).columns == ("a", "b", "flag")
    worded = own(table.assign(town=np.where(table["flag"], "x", "y")).drop(columns="flag"))
    assert set(worded.preprocessing["kind"]) == {"category"}
    with pytest.raises(ct.errors.ConfigError, match="scaling must be 'all' or 'own', got 'each'"):
        ct.Federation.from_frame(table, client="who", target="y", scaling="each")
