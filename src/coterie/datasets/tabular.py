"""Real tables: hospitals, rain gauges, county elections, train tickets, movement of people, words of users."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

from coterie.base.annotations import guarded
from coterie.data.federation import Federation, Ints, OneClass
from coterie.data.preprocessing import apply_preprocessing, fit_preprocessing
from coterie.data.tables import federation_from_frame
from coterie.datasets.files import find_data, load_arrays
from coterie.datasets.partition import by_group
from coterie.errors import DataError

_HEART_LABELS: dict[str, dict[int, str]] = {
    "cp": {1: "typical angina", 2: "atypical angina", 3: "other pain", 4: "no pain"},
    "restecg": {0: "normal", 1: "ST-T abnormal", 2: "hypertrophy"},
    "slope": {1: "up", 2: "flat", 3: "down"},
    "thal": {3: "normal", 6: "fixed defect", 7: "reversible defect"},
}

ELECTION_YEARS = (2000, 2004, 2008, 2012, 2016, 2020)


@guarded
def heart(*, test_fraction: float = 0.25, seed: int = 0, one_class: OneClass = "error") -> Federation:
    """920 patients of four hospitals (clients); is there heart disease (target 1) or not (0)?

    The UCI heart disease data (CC BY 4.0). The severity `num`, from which the target is made, is no feature.
    """
    return federation_from_frame(
        heart_frame(), client="hospital", target="target", test_fraction=test_fraction, seed=seed, one_class=one_class
    )


def heart_frame() -> pd.DataFrame:
    """The table behind `heart`: coded columns spelt out; a cholesterol or blood pressure of 0 counts as missing."""
    frame = _embedded("heart_hospitals").drop(columns="num")
    for column in ("chol", "trestbps"):
        frame[column] = frame[column].where(frame[column] != 0)
    for column, labels in _HEART_LABELS.items():
        frame[column] = frame[column].map(labels)
    return frame


@guarded
def rain(*, test_fraction: float = 0.25, seed: int = 0) -> Federation:
    """Monthly rain at 360 gauges (clients) around Colorado, 36 months each; the feature is the month, as 12 categories.

    `rain` is the square root of the monthly precipitation (mm, judging by its size: 40 a month on average). Neighbouring
    gauges have the same weather, so errors that take them for independent are optimistic. Where the gauges are is no
    feature: see `rain_stations`. US weather-station records, compiled as `COmonthlyMet` in the R package fields (Nychka
    et al.).
    """
    return federation_from_frame(
        rain_frame(), client="station", target="rain", exclude=["year"], test_fraction=test_fraction, seed=seed
    )


def rain_frame() -> pd.DataFrame:
    """The table behind `rain`: station, month (Jan … Dec), year, rain; three complete years of 1950–1997 per gauge."""
    return _embedded("colorado_rain")


def rain_stations() -> pd.DataFrame:
    """Where the gauges of `rain` are: longitude, latitude (degrees) and elevation (metres), by station."""
    return _embedded("colorado_stations").set_index("station")


def train_tickets(*, test_fraction: float = 0.25, seed: int = 0, one_class: OneClass = "error") -> Federation:
    """Did each of 229 travellers (clients) choose the first of two train journeys (1) or the second (0)?

    About 13 choices each, by price, minutes, changes and comfort (first − second). A survey of Ben-Akiva, Bolduc and
    Bradley (1993).
    """
    with find_data("train_tickets.csv.gz").open("rb") as stream:
        frame = pd.read_csv(stream, compression="gzip")
    return federation_from_frame(
        frame, client="traveller", target="first", test_fraction=test_fraction, seed=seed, one_class=one_class
    )


class Elections(NamedTuple):
    """County results; `successes[i]` of `trials[i]` training elections were won by the Republican in county i."""

    table: pd.DataFrame
    successes: Ints
    trials: Ints
    held_out: Ints | None
    """The outcome (1 = Republican) in the year left out of the counts."""


@guarded
def elections(held_out: int | None = None) -> Elections:
    """3,111 US counties and their six presidential elections 2000–2020 (MIT Election Data and Science Lab, CC0).

    Counts for Bernoulli estimation: all six elections, or five with the year `held_out` kept for testing.
    """
    if held_out is not None and held_out not in ELECTION_YEARS:
        raise DataError(f"held_out must be one of {ELECTION_YEARS} or None; got {held_out!r}. Choose one of them.")
    table = _embedded("elections")
    won = {year: table[f"rep{year}"].to_numpy(np.int64) for year in ELECTION_YEARS}
    counted = np.stack([won[year] for year in ELECTION_YEARS if year != held_out])
    trials = np.full(len(table), len(counted), np.int64)
    return Elections(table, counted.sum(axis=0), trials, None if held_out is None else won[held_out])


def har(*, test_fraction: float = 0.25, seed: int = 0) -> Federation:
    """Six activities of 30 people (clients) from 265 features of their phones' sensors (non-commercial use).

    Features are standardised with the training rows of all people.
    """
    names = ("x", "y", "subject", "feature_names", "activity")
    x, y, subject, feature_names, activity = load_arrays("har.npz", *names)
    people = np.unique(subject)
    rows, sizes = by_group(subject, people)
    federation = Federation.from_flat(
        x[rows],
        activity[y[rows]],
        sizes=sizes,
        clients=people.tolist(),
        test_fraction=test_fraction,
        seed=seed,
        kind="classification",
        classes=activity[1:].tolist(),
        columns=feature_names.tolist(),
    )
    return standardised(federation)


def standardised(federation: Federation) -> Federation:
    """The same federation with every feature scaled by mean and standard deviation of all training rows."""
    columns = federation.columns or tuple(f"x{i}" for i in range(federation.x.shape[1]))
    frame = pd.DataFrame(federation.x.numpy(), columns=list(columns))
    rank = np.arange(len(frame)) - np.repeat(federation.offsets[:-1], federation.n_samples)
    train = np.flatnonzero(rank < np.repeat(federation.n_train, federation.n_samples))
    plan = fit_preprocessing(frame, columns, train)
    x = apply_preprocessing(frame, plan)
    kept = plan.loc[plan["kind"] != "dropped", "column"].tolist()
    return replace(federation, x=federation.x.new_tensor(x), columns=tuple(kept), preprocessing=plan)


class UserTokens(NamedTuple):
    """Word counts: one row per user (client), one column per word."""

    counts: Any
    """scipy.sparse.csr_array of int64."""
    users: pd.DataFrame
    vocabulary: npt.NDArray[np.str_]


def user_tokens(name: Literal["blogs", "imdb"] = "blogs") -> UserTokens:
    """How often each user uses each of the 1,000 commonest words: bloggers ("blogs") or film reviews ("imdb")."""
    about = {"blogs": ("age", "gender"), "imdb": ("label", "is_test")}
    if name not in about:
        raise DataError(f"user_tokens knows 'blogs' and 'imdb'; got {name!r}. Choose one of them.")
    file = f"user_tokens_{name}.npz"
    data, indices, indptr, shape, vocabulary, total = load_arrays(
        file, "data", "indices", "indptr", "shape", "vocab", "total_tokens"
    )
    parts: Any = (data.astype(np.int64), indices.astype(np.int32), indptr.astype(np.int32))
    counts = sparse.csr_array(parts, shape=(int(shape[0]), int(shape[1])))
    users = pd.DataFrame(
        {"total_tokens": total, **dict(zip(about[name], load_arrays(file, *about[name]), strict=True))}
    )
    if name == "imdb":  # 255 stands for a review without a label
        users = users.assign(
            label=users["label"].astype("Int64").where(users["label"] != 255), is_test=users["is_test"] == 1
        )
    return UserTokens(counts, users, vocabulary)


def _embedded(name: str) -> pd.DataFrame:
    return _read_embedded(name).copy()


@lru_cache(maxsize=4)
def _read_embedded(name: str) -> pd.DataFrame:
    with (files("coterie.datasets") / "data" / f"{name}.csv.gz").open("rb") as stream:
        return pd.read_csv(stream, compression="gzip", dtype={"fips": "str"})
