"""Rows and clients are left out only when asked, counted and named; nothing is merged in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie.data.federation import Federation
from coterie.data.rows import Note
from coterie.errors import ConfigError, DataError


def table(clients: list[Any], seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    n = len(clients)
    return pd.DataFrame({"c": pd.Series(clients, dtype=object), "x": rng.normal(size=n), "y": rng.normal(size=n)})


def build(frame: pd.DataFrame, **options: Any) -> Federation:
    return Federation.from_frame(frame, client="c", target="y", **options)


def notes(fed: Federation) -> list[str]:
    assert fed.notes is not None
    return [note.sentence() for note in fed.notes.notes]


def test_rows_without_client_or_target_are_dropped_and_counted() -> None:
    frame = table(["a", "b"] * 10)
    frame.loc[[0, 1, 2], "y"] = np.nan
    frame.loc[[2, 3], "c"] = None
    with pytest.raises(DataError, match="drop_missing=True") as caught:
        build(frame)
    assert "--drop-missing" in caught.value.cli
    assert "drop_missing=" not in caught.value.cli
    fed = build(frame, drop_missing=True)
    assert fed.n_samples.sum() == 16
    assert notes(fed) == ["Dropped 4 of 20 rows: 2 without 'c', 3 without 'y'."]
    assert notes(build(table(["a", "b"] * 10), drop_missing=True)) == []
    with pytest.raises(DataError, match="Every row lacks"):
        build(frame.assign(y=np.nan), drop_missing=True)


def test_small_clients_are_left_out_and_named() -> None:
    frame = table(["a"] * 9 + ["b"] * 5 + ["c"] * 2 + ["d"])
    assert notes(build(frame)) == ["1 client has a single row and cannot be tested. Leave them out with min_rows=2."]
    fed = build(frame, min_rows=3)
    assert list(fed.clients) == ["a", "b"]
    assert notes(fed) == ["Left out 2 clients with fewer than 3 rows: 'c', 'd'."]
    with pytest.raises(DataError, match="No client has 10 rows; the largest has 9"):
        build(frame, min_rows=10)
    with pytest.raises(DataError, match=r"at least two clients; column 'c' holds only 'a'.*min_rows"):
        build(frame, min_rows=6)
    for wrong in (0, 2.5, True):
        with pytest.raises(ConfigError, match="min_rows must be a whole number"):
            build(frame, min_rows=wrong)


def test_rows_are_counted_after_dropping() -> None:
    frame = table(["a"] * 9 + ["b"] * 5 + ["c"] * 4)
    frame.loc[[9, 10], "y"] = np.nan
    assert list(build(frame, drop_missing=True, min_rows=4).clients) == ["a", "c"]


def test_clients_spelt_alike_are_merged_only_on_request() -> None:
    frame = table(["A", "a", "A ", "St  Ives", "st ives", "B"] * 4)
    fed = build(frame)
    assert len(fed) == 6
    assert notes(fed) == [
        "Separate clients that differ only by case or blank space: 'A', 'a', 'A '; 'St  Ives', 'st ives'. "
        "Merge them with same_clients=True."
    ]
    merged = build(frame, same_clients=True)
    assert dict(zip(merged.clients, merged.n_samples.tolist(), strict=True)) == {"A": 12, "St  Ives": 8, "B": 4}
    assert notes(merged) == ["Taken for one client each: 'A', 'a', 'A '; 'St  Ives', 'st ives'."]
    assert notes(build(table(["A", "B"] * 5), same_clients=True)) == []


def test_leading_zeros_that_tell_clients_apart_are_noted() -> None:
    assert notes(build(table(["030018", "30018", "7"] * 5))) == [
        "Separate clients that differ only by leading zeros: '030018', '30018'."
    ]


def test_one_client_and_one_row_per_client_are_one_sentence() -> None:
    with pytest.raises(DataError, match="at least two clients; column 'c' holds only 'a'"):
        build(table(["a"] * 20))
    with pytest.raises(DataError, match="Every client has a single row: column 'c' is different in all 20 rows"):
        build(table(list(range(20))))


def test_a_note_has_two_voices() -> None:
    note = Note("Odd.", "Pass a=1.", "Give --a 1.")
    assert (str(note), note.sentence(cli=True)) == ("Odd. Pass a=1.", "Odd. Give --a 1.")
