"""Units with several rows, and rows in time: coded, held out whole or last, and suspected by name."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.repeated import times
from coterie.data.tables import federation_from_frame
from coterie.errors import DataError


def panel(m: int = 6, units: int = 5, reps: int = 4) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = m * units * reps
    unit = np.repeat(np.arange(m * units), reps)
    columns = {"client": [f"c{i}" for i in unit // units], "patient": unit, "x": rng.normal(size=n)}
    return pd.DataFrame(columns).assign(day=np.tile(np.arange(units * reps), m), y=rng.normal(size=n))


def read(frame: pd.DataFrame, **how: str):
    return federation_from_frame(frame, client="client", target="y", **how)


def test_a_unit_and_a_time_are_suspected_until_somebody_chooses() -> None:
    frame = panel()
    assert read(frame).notes.suspects == {"unit": "patient", "time": "day"}
    assert read(frame, unit="patient", time="none").notes.suspects == {}
    sentence = read(frame).notes.notes[-2].sentence(cli=True)
    assert "--unit patient" in sentence.replace("'", "")
    assert "--unit none" in sentence


def test_plain_features_are_not_suspected() -> None:
    rng = np.random.default_rng(1)
    frame = panel().drop(columns=["patient", "day"])
    frame = frame.assign(age=rng.integers(20, 80, len(frame)), colour=rng.choice(list("rgb"), len(frame)))
    assert read(frame).notes.suspects == {}


def test_a_unit_is_no_feature_and_stays_in_one_part() -> None:
    frame = panel()
    found = read(frame, unit="patient", time="none")
    assert found.columns == ("x", "day")
    unit = np.asarray(found.beside["unit"])
    train, test = (set(unit[found._places(part)]) for part in ("train", "test"))
    assert not train & test
    assert test
    assert len(train | test) == 30


def test_with_a_time_every_client_trains_on_its_past() -> None:
    found = read(panel(), time="day", unit="none")
    time = np.asarray(found.beside["time"])
    for start, n_train, end in zip(found.offsets[:-1], found.n_train, found.offsets[1:], strict=True):
        assert time[start : start + n_train].max() < time[start + n_train : end].min()
    assert (np.diff(found.table().time) >= 0).all()


def test_dates_become_days() -> None:
    assert times(pd.Series(["1970-01-02", "1970-01-11"])).tolist() == [1.0, 10.0]
    assert times(pd.Series(pd.to_datetime(["1970-01-02"]))).tolist() == [1.0]
    with pytest.raises(DataError, match="must hold numbers or dates"):
        times(pd.Series(["soon", "later"]))


def test_a_missing_unit_is_refused_in_one_sentence() -> None:
    frame = panel()
    frame["patient"] = frame["patient"].astype(float)
    frame.loc[3, "patient"] = np.nan
    with pytest.raises(DataError, match="Every row needs a unit"):
        read(frame, unit="patient")


def test_a_saved_federation_keeps_units_and_times(tmp_path) -> None:
    found = read(panel(), unit="patient", time="day")
    again = type(found).load(found.save(tmp_path / "f"))
    assert {name: v.tolist() for name, v in again.beside.items()} == {k: v.tolist() for k, v in found.beside.items()}
