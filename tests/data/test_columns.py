"""Every kind of column that is no feature is found, and ordinary features are not taken for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie.data.columns import ColumnReport, inspect_columns
from coterie.data.federation import Federation

N = 120
RNG = np.random.default_rng(0)


def table(**more: Any) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    base = {"site": np.repeat([*"abcdef"], N // 6), "x": rng.normal(size=N), "y": rng.normal(size=N)}
    return pd.DataFrame(base | more)


def role(values: Any, name: str = "v", target: str = "y", **more: Any) -> tuple[str, str]:
    report = inspect_columns(table(**{name: values}, **more), "site", target)
    row = report.table.set_index("column").loc[name]
    return str(row["role"]), str(row["why"])


Y = table()["y"].to_numpy()
LABEL = (np.arange(N) // 2) % 2
DAYS = pd.date_range("2020-01-01", periods=N)

IGNORED: dict[str, tuple[Any, str]] = {
    "row number": (np.arange(1, N + 1), "row numbers"),
    "shuffled row number": (RNG.permutation(N) + 1000, "row numbers"),
    "growing identifier": (np.cumsum(RNG.integers(1, 9, N)), "identifier"),
    "patient": (RNG.choice(10**6, N, replace=False), "identifier by its name"),
    "orderNo": (RNG.choice(10**6, N, replace=False), "identifier by its name"),
    "names": ([f"Person {i}" for i in range(N)], "identifier: 120 distinct"),
    "codes of digits": ([f"{i:06d}" for i in RNG.choice(10**6, N, replace=False)], "identifier: 120"),
    "person": (np.arange(N) // 4, "each at one client only"),
    "client number id": (np.repeat([5, 3, 9, 1, 7, 2], N // 6), "another name of the client"),
    "client text": (np.repeat([*"uvwxyz"], N // 6), "another name of the client"),
    "timestamps": (DAYS, "dates"),
    "time spans": (pd.to_timedelta(np.arange(N) % 7, unit="D"), "dates"),
    "iso dates": (DAYS.strftime("%Y-%m-%d"), "dates"),
    "german dates": (DAYS.strftime("%d.%m.%Y"), "dates"),
    "american dates": (DAYS.strftime("%m/%d/%y %H:%M"), "dates"),
    "written dates": (DAYS.strftime("%d %b %Y"), "dates"),
    "compact dates": (DAYS.strftime("%Y%m%d").astype(int), "dates"),
    "clock": ([f"{i % 24:02d}:{i % 60:02d}" for i in range(N)], "dates"),
    "remarks": ([f"the patient said on day {i} that it hurts" for i in range(N)], "free text"),
    "constant": (3.0, "constant"),
    "constant text": ("same", "constant"),
    "empty": (np.nan, "no value"),
    "thousands": ([f"{i},{i % 900 + 100}" for i in range(1, N + 1)], "numbers with commas"),
}


@pytest.mark.parametrize("name", IGNORED)
def test_columns_without_content_are_ignored(name: str) -> None:
    values, why = IGNORED[name]
    got = role(values, name)
    assert got[0] == "ignored"
    assert why in got[1]


SUSPICIOUS: dict[str, tuple[Any, Any, str]] = {
    "equal": (Y, Y, "copy of the target"),
    "other unit": (Y * 2.54 + 32, Y, "copy of the target"),
    "negative": (-Y, Y, "copy of the target"),
    "logarithm": (np.log(Y + 10), Y, "a function of the target"),
    "y_rounded": (Y + 0.005 * RNG.normal(size=N), Y, "named like the target"),
    "label text": (np.where(LABEL, "ill", "well"), LABEL, "one to one"),
    "severity": (np.where(LABEL, 1 + np.arange(N) % 4, 0), LABEL, "the target follows from it"),
    "threshold": (Y, (Y > 0.3).astype(int), "a threshold separates"),
    "above": (np.where(Y > 0.3, "high", "low"), Y, "a threshold of the target"),
}


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_columns_that_give_the_target_away_are_suspicious(name: str) -> None:
    values, y, why = SUSPICIOUS[name]
    report = inspect_columns(table(y=y, **{name: values}), "site", "y")
    assert report.suspicious == [name]
    assert why in report.table.set_index("column").loc[name, "why"]


USED: dict[str, Any] = {
    "day of each client": np.tile(np.arange(N // 6), 6),
    "year of the client": np.tile(np.arange(1990, 1990 + N // 6), 6),
    "year": np.arange(1900, 1900 + N),
    "income": RNG.choice(10**6, N, replace=False),
    "paid": RNG.choice(10**6, N, replace=False),
    "casino": RNG.choice(10**6, N, replace=False),
    "noise": RNG.normal(size=N),
    "grade": RNG.integers(1, 6, N),
    "ward": RNG.choice(["north", "south"], N),
    "age group": RNG.choice(["10-19", "20-29", "30-39"], N),
    "ratio": RNG.choice(["1/2", "3/4"], N),
    "zip": RNG.choice(["01001", "90210"], N),
    "flag": RNG.integers(0, 2, N).astype(bool),
    "mostly missing": np.where(np.arange(N) % 4, np.nan, 1.0),
    "near the target": Y + 0.1 * RNG.normal(size=N),
    "sentences of few kinds": RNG.choice(
        ["did not finish the course of treatment", "finished the course of treatment"], N
    ),
}


@pytest.mark.parametrize("name", USED)
def test_ordinary_features_are_used(name: str) -> None:
    assert role(USED[name], name)[0] == "used"


def test_separate_groups_are_no_leak() -> None:
    """A feature that tells two species apart leaves a gap; a threshold drawn by hand does not."""
    petal = np.where(LABEL, RNG.normal(5, 0.3, N), RNG.normal(1, 0.3, N))
    assert role(petal, "petal", y=LABEL)[0] == "used"
    assert role(np.where(LABEL, 3 + RNG.random(N), 3 - RNG.random(N)), "score", y=LABEL)[0] == "suspicious"


def test_copies_keep_the_first() -> None:
    v = RNG.normal(size=N)
    word = RNG.choice([*"pqr"], N)
    frame = table(v=v, inch=v / 2.54, minus=5 - v, gap=np.where(np.arange(N) % 5, v, np.nan), word=word)
    frame["wort"] = pd.Series(word).map({"p": "eins", "q": "zwei", "r": "drei"})
    frame["close"] = v + 1e-3 * RNG.normal(size=N)
    frame["gap too"] = frame["gap"] * 3
    table_ = inspect_columns(frame, "site", "y").table.set_index("column")
    copies = table_[table_["role"] == "ignored"]["why"].to_dict()
    assert copies == {
        "inch": "a copy of 'v'",
        "minus": "a copy of 'v'",
        "wort": "a copy of 'word'",
        "gap too": "a copy of 'gap'",
    }


def test_client_constants_are_used_and_noted() -> None:
    got = role(np.repeat([3.5, 1.0, 9.0, 3.5, 2.0, 1.0], N // 6), "beds")
    assert got == ("used", "the same in all rows of each client: it can tell clients apart, not rows")
    elevation = role(np.repeat([310, 120, 990, 350, 220, 100], N // 6), "elevation")
    assert elevation == got  # one value a client, but no name that says identifier


def test_leading_zeros_are_noted() -> None:
    assert role(RNG.choice(["01001", "90210"], N), "zip")[1] == "codes with leading zeros, used as categories"


def test_few_rows_prove_nothing() -> None:
    frame = pd.DataFrame({"c": [*"aabb"], "v": [1, 2, 3, 4], "y": [2.0, 4.0, 6.0, 8.0]})
    assert inspect_columns(frame, "c", "y").used == ["v"]


def test_the_user_decides() -> None:
    frame = table(row=np.arange(N), copy=Y, z=RNG.normal(size=N))
    assert inspect_columns(frame, "site", "y").used == ["x", "z"]
    forced = inspect_columns(frame, "site", "y", features=["row", "copy"])
    assert forced.used == ["row", "copy"]
    assert "named by you, though row numbers" in str(forced)
    out = inspect_columns(frame, "site", "y", exclude=["z"]).table.set_index("column")
    assert out.loc["z"].tolist() == ["ignored", "excluded by name"]


def test_the_federation_follows_and_carries_the_report(tmp_path: Path) -> None:
    frame = table(row=np.arange(N), copy=2 * Y, day=DAYS.strftime("%Y-%m-%d"), z=RNG.normal(size=N), same=1)
    fed = Federation.from_frame(frame, client="site", target="y")
    assert fed.columns == ("x", "z")
    assert isinstance(fed.notes, ColumnReport)
    assert fed.notes.ignored == ["row", "day", "same"]
    assert fed.notes.suspicious == ["copy"]
    assert fed.preprocessing is not None
    dropped = fed.preprocessing[fed.preprocessing["kind"] == "dropped"]
    assert dropped["source"].tolist() == ["row", "copy", "day", "same"]
    assert Federation.from_frame(frame, client="site", target="y", features=["row", "x"]).columns == ("row", "x")
    back = Federation.load(fed.save(tmp_path))
    assert back.notes is not None
    assert str(back.notes) == str(fed.notes)


def test_what_only_the_training_rows_show_is_reported_too() -> None:
    many = [f"ward {i % 75}" for i in range(N)]  # one-hot beyond max_categories: dropped by preprocessing
    fed = Federation.from_frame(table(ward=many), client="site", target="y")
    assert fed.notes is not None
    assert fed.notes.ignored == ["ward"]


def test_the_text_speaks_the_words_of_its_reader() -> None:
    report = inspect_columns(table(row=np.arange(N)), "site", "y")
    assert report.lines()[-1] == "To use one anyway, name every feature in features."
    assert report.lines(cli=True)[-1] == "To use one anyway, name every feature with --features."
    assert inspect_columns(table(), "site", "y").lines() == ["used: x"]
