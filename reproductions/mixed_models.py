"""`LinearModels` and `LogisticModels` against lme4, and the coverage of their intervals with few clients.

The first experiment needs Rscript with the R packages lme4 and, for the data, nlme and mlmRev.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.errors import DataError
from coterie.estimation.regression.linear import LinearModels
from coterie.estimation.regression.logistic import LogisticModels
from reproductions.claims import Claim, Margin
from reproductions.drawing import beside
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale

TABLES = {  # package, client, target, columns, classes
    "sleepstudy": ("lme4", "Subject", "Reaction", ("Days",), False),
    "MathAchieve": ("nlme", "School", "MathAch", ("SES", "Sex"), False),
    "Exam": ("mlmRev", "school", "normexam", ("standLRT", "sex"), False),
    "Contraception": ("mlmRev", "district", "use", ("age", "urban"), True),
}
EXPORT = """
if (!requireNamespace("{package}", quietly=TRUE)) quit(status=7)
d <- as.data.frame(get(data("{name}", package="{package}")))[, c("{client}", "{target}", {columns})]
names(d) <- c("client", "y", paste0("x", seq_len(ncol(d) - 2)))
for (n in names(d)[-1]) if (!is.numeric(d[[n]])) d[[n]] <- as.numeric(as.factor(as.character(d[[n]]))) - 1
d$client <- as.character(d$client)
write.csv(d, "{file}", row.names=FALSE)
"""
FIT = """
suppressMessages(library(lme4)); d <- read.csv("{file}")
d$client <- as.character(d$client); x <- grep("^x", names(d), value=TRUE)
f <- as.formula(paste("y ~", paste(x, collapse="+"), "+ (", paste(x, collapse="+"), "|| client)"))
d$made <- NA
for (k in unique(d$fold)) {{
  train <- d[d$fold != k, ]
  m <- suppressMessages(suppressWarnings(if ({classes}) glmer(f, train, family=binomial) else lmer(f, train)))
  d$made[d$fold == k] <- predict(m, d[d$fold == k, ], type="response", allow.new.levels=TRUE)
}}
write.csv(d, "{file}", row.names=FALSE)
"""


def _run_r(code: str) -> int:
    try:
        return subprocess.run(["Rscript", "-e", code], check=False, capture_output=True).returncode
    except FileNotFoundError:
        raise DataError("The comparison with lme4 needs Rscript; got none. Install R with the package lme4.") from None


def _loss(made: Any, y: Any, classes: bool) -> float:
    if not classes:
        return float(np.square(made - y).mean())
    chance = np.clip(made, 1e-9, 1 - 1e-9)
    return float(-np.where(y == 1, np.log(chance), np.log(1 - chance)).mean())


def _ours(table: pd.DataFrame, classes: bool, kind: str) -> Any:
    X, made = table.filter(regex="^x").to_numpy(dtype=float), np.empty(len(table))
    y, client, fold = table["y"].to_numpy(), table["client"].to_numpy().astype(str), table["fold"].to_numpy()
    for f in np.unique(fold):
        train, test = fold != f, fold == f
        model = (LogisticModels if classes else LinearModels)(covariance_type=kind)
        model.fit(X[train], y[train], client[train])
        made[test] = (
            model.predict_proba(X[test], client[test])[:, 1] if classes else model.predict(X[test], client[test])
        )
    return made


KINDS = ("diag", "full", "spherical")


def against_lme4(name: Any, seed: int, scale: Scale) -> Measured:
    """Five folds of rows: held-out mean squared error, or log loss, of lme4's diagonal fit and of ours."""
    package, client, target, columns, classes = TABLES[name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        named = ", ".join(f'"{c}"' for c in columns)
        settings: dict[str, Any] = {"package": package, "name": name, "client": client, "target": target}
        if _run_r(EXPORT.format(columns=named, file=file, **settings)):
            raise DataError(f"R could not read {name} from the package {package}. Install the package in R.")
        table = pd.read_csv(file)
        table["fold"] = np.random.default_rng(seed).permutation(len(table)) % 5
        table.to_csv(file, index=False)
        if _run_r(FIT.format(file=file, classes="TRUE" if classes else "FALSE")):
            raise DataError(f"lme4 could not fit {name}; got an error from Rscript. Run the formula by hand.")
        theirs = _loss(pd.read_csv(file)["made"].to_numpy(), table["y"].to_numpy(), classes)
    losses = {kind: _loss(_ours(table, classes, kind), table["y"].to_numpy(), classes) for kind in KINDS}
    return {"lme4": theirs, "rows": len(table), "clients": int(table["client"].nunique())} | losses


def lme4_rows(found: Records) -> list[Row]:
    return [
        Row(
            f"{name}: {kind}",
            found.mean(name, "lme4") if kind == "diag" else None,
            found.numbers(name, kind),
            tolerance=1e-4 * abs(found.mean(name, "lme4")),
            digits=4,
            reference="lme4",
            exact=True,
        )
        for name in found.values
        for kind in KINDS
    ]


def lme4_claims(found: Records) -> list[Claim]:
    gap = max(abs(found.mean(name, "diag") / found.mean(name, "lme4") - 1) for name in found.values)
    says = "A variance for every coefficient predicts as well as lme4's diagonal fit."
    return [
        Claim(
            says,
            [Margin("0.1 % less the gap", [0.1 - 100 * gap], exact=True)],
            f"The losses differ by at most {100 * gap:.3f} %.",
        )
    ]


def few_clients(cell: Any, seed: int, scale: Scale) -> Measured:
    """Share of slopes and intercepts inside their 90 % intervals, in one data set."""
    kind, m, n = cell
    rng = np.random.default_rng(seed)
    owner, X = np.repeat(np.arange(m), n), rng.normal(size=(m * n, 2))
    truth = rng.normal([1.0, -1.0, 0.5], [0.5, 0.2, 1.0], (m, 3))
    score = truth[owner, 2] + (X * truth[owner, :2]).sum(1)
    y = score + rng.normal(size=m * n) if kind is LinearModels else score + rng.logistic(size=m * n) > 0
    model = kind().fit(X, y, owner)
    (low, high), (under, over) = model.interval(0.9), model.intercept_interval(0.9)
    slopes = float(((low < truth[:, :2]) & (truth[:, :2] < high)).mean())
    intercepts = float(((under < truth[:, 2]) & (truth[:, 2] < over)).mean())
    return {"slopes": slopes, "intercepts": intercepts, "all": (2 * slopes + intercepts) / 3}


def coverage_cells(scale: Scale) -> Cells:
    kinds = ((LinearModels, (6, 15)), (LogisticModels, (15, 40)))
    return {
        f"{kind.__name__}, {m} clients, {n} rows": (kind, m, n)
        for kind, sizes in kinds
        for m in (10, 30)
        for n in sizes
    }


def coverage_rows(found: Records) -> list[Row]:
    parts = ("slopes", "intercepts", "all")
    return [Row(f"{cell}: {part}", None, found.numbers(cell, part)) for cell in found.values for part in parts]


def coverage_claims(found: Records) -> list[Claim]:
    covered = {cell: found.mean(cell, "all") for cell in found.values}
    worst = max(covered, key=lambda cell: abs(covered[cell] - 0.9))
    return [
        Claim(
            "90 % intervals cover within five points of their level, also with few clients.",
            [
                found.margin(
                    f"0.05 less {sign:+d} × (coverage less 0.9), {cell}",
                    lambda of, cell=cell, sign=sign: 0.05 - sign * (of(cell)["all"] - 0.9),
                )
                for cell in found.values
                for sign in (1, -1)
            ],
            f"Furthest from it: {worst}, {covered[worst]:.3f}.",
        )
    ]


def _draw(rows: list[Row], label: str) -> Figure:
    return beside(rows, label, zero=False)


def coverage_table(found: Records) -> pd.DataFrame:
    parts = ("slopes", "intercepts", "all")
    lines = []
    for cell, (kind, m, n) in coverage_cells(found.scale).items():
        shown = [Row("", None, found.numbers(cell, part)) for part in parts]
        values = {part: row.shown for part, row in zip(parts, shown, strict=True)}
        lines.append({"models": f"`{kind.__name__}`", "clients": m, "rows": n} | values)
    return pd.DataFrame(lines)


LME4 = Experiment(
    name="mixed-models",
    work="Beyond the papers",
    shows="Linear and logistic models against lme4",
    cells=lambda scale: {name: name for name in TABLES},
    measure=against_lme4,
    rows=lme4_rows,
    claims=lme4_claims,
    draw=lambda found: _draw([r for r in lme4_rows(found) if not r.what.startswith("sleep")], "held-out loss"),
    needs=("Rscript with lme4, nlme, mlmRev",),
    seeds={"quick": 1, "paper": 1},
    setting=lambda scale: "Five folds of rows, held-out squared error (Contraception: log loss).",
    drawn=False,
    size="not in the paper",
)
COVERAGE = Experiment(
    name="coverage",
    work="Beyond the papers",
    shows="Coverage of intervals with few clients",
    cells=coverage_cells,
    measure=few_clients,
    rows=coverage_rows,
    claims=coverage_claims,
    draw=lambda found: _draw(coverage_rows(found), "coverage of 90 % intervals"),
    size="not in the paper",
    wide=coverage_table,
    seeds={"quick": 10, "paper": 40},
    setting=lambda scale: (
        "Two columns; deviations of the clients' slopes .5 and .2, of their intercepts 1. A seed is a data set."
    ),
)
