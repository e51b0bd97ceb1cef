"""One door: a file, a frame, arrays, a federation or a function, and the same answer whatever the rows came in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison import decide
from coterie.errors import ConfigError, DataError

COLUMNS = ["s", "t", "u", "v"]
WAYS = ["alone", "together", "shrunk", "groups"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Twelve clients of ten rows with the same four slopes: they should learn together."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 4)), columns=COLUMNS).assign(who=np.repeat(list("abcdefghijkl"), 10))
    return frame.assign(y=frame[COLUMNS].sum(axis=1) + rng.normal(size=120))


def arrays(frame: pd.DataFrame) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {str(c): (f[COLUMNS].to_numpy(), f["y"].to_numpy()) for c, f in frame.groupby("who")}


@pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx", "frame", "federation", "function"])
def test_the_answer_does_not_depend_on_what_the_rows_come_in(kind: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    if kind == "xlsx":
        pytest.importorskip("openpyxl")
    columns = {"client": "who", "target": "y"}
    made = ct.Federation.from_frame(frame, **columns)
    given = {"frame": frame, "federation": made, "function": lambda seed: made}.get(kind, tmp_path / f"table.{kind}")
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet, "xlsx": frame.to_excel}.get(kind)
    if write is not None:
        write(given, index=False)
    reading = {} if kind in ("federation", "function") else columns
    found, expected = ct.compare(given, seeds=1, **reading), ct.compare(made, seeds=1)
    assert found.methods == WAYS
    assert found.recommendation == expected.recommendation == "together"
    np.testing.assert_allclose(found.table, expected.table, rtol=1e-6)


def test_arrays_are_taken_and_agree_with_the_core(frame: pd.DataFrame) -> None:
    """Other folds are dealt to rows in another order, so scores agree by their errors alone."""
    found = ct.compare(arrays(frame), seeds=1)
    assert (found.methods, found.recommendation) == (WAYS, "together")
    core = decide(frame[COLUMNS], frame["y"], frame["who"], repeats=1)
    assert core.recommendation == "together"
    mine = found.decision.losses.mean(axis=1)
    assert (abs(mine - core.losses.mean(axis=1)) < 4 * core.summary()["se"].max() + 0.05).all()


def test_a_table_is_split_anew_for_trained_methods_and_drawn_once_per_seed(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.data import tables

    seeds: list[int] = []
    real = tables.federation_from_frame
    monkeypatch.setattr(tables, "federation_from_frame", lambda *a, **k: (seeds.append(k["seed"]), real(*a, **k))[1])
    quick = ct.LocalSGD(1, 0.1, batch_size=None)
    methods = [ct.Local(quick), ct.FedAvg(quick)]
    found = ct.compare(frame, client="who", target="y", algorithms=methods, rounds=2, seeds=2)
    assert seeds == [0, 1]
    assert found.about["new_split_each_seed"]
    assert found.methods == [*WAYS, "local", "fedavg"]


@pytest.mark.parametrize(
    ("data", "reading", "kind", "match"),
    [
        (None, {}, DataError, "takes a file, a DataFrame, arrays"),
        (3, {}, DataError, "got int"),
        ("frame", {}, ConfigError, "client and target are missing"),
        ("frame", {"client": "who"}, ConfigError, "target is missing"),
        ("federation", {"client": "who"}, ConfigError, "read already; got client"),
        ("function", {"target": "y"}, ConfigError, "read already; got target"),
        ("nowhere.csv", {"client": "who", "target": "y"}, DataError, "nowhere.csv"),
        ("frame", {"client": "who", "target": "y", "sort": True}, ConfigError, "sort"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(data, reading, kind, match, frame: pd.DataFrame) -> None:
    federation = ct.Federation.from_frame(frame, client="who", target="y")
    given = {"frame": frame, "federation": federation, "function": lambda seed: federation}
    with pytest.raises(kind, match=match):
        ct.compare(given.get(data, data), **reading)


def test_the_old_keyword_works_for_one_release(frame: pd.DataFrame) -> None:
    federation = ct.Federation.from_frame(frame, client="who", target="y")
    with pytest.warns(FutureWarning, match="is now compare"):
        assert ct.compare(federation=federation, seeds=1).recommendation == "together"
