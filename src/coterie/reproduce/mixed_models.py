"""`LinearModels` and `LogisticModels` against lme4, and the coverage of their intervals with few clients.

``python -m coterie.reproduce.mixed_models [lme4] [coverage]``. The first needs Rscript with the R packages lme4 and, for the
data, nlme and mlmRev; tables whose package is missing are left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import DataError
from coterie.estimation.regression.linear import LinearModels
from coterie.estimation.regression.logistic import LogisticModels

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


def lme4() -> pd.DataFrame:
    """Five folds of rows (seed 0): held-out mean squared error, or log loss, of lme4's diagonal fit and of ours."""
    rows = []
    for name, (package, client, target, columns, classes) in TABLES.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "table.csv"
            named = ", ".join(f'"{c}"' for c in columns)
            settings: dict[str, Any] = {"package": package, "name": name, "client": client, "target": target}
            if _run_r(EXPORT.format(columns=named, file=file, **settings)):
                print(f"{name} left out: R could not read it from the package {package}.")
                continue
            table = pd.read_csv(file)
            table["fold"] = np.random.default_rng(0).permutation(len(table)) % 5
            table.to_csv(file, index=False)
            if _run_r(FIT.format(file=file, classes="TRUE" if classes else "FALSE")):
                raise DataError(f"lme4 could not fit {name}; got an error from Rscript. Run the formula by hand.")
            theirs = _loss(pd.read_csv(file)["made"].to_numpy(), table["y"].to_numpy(), classes)
        losses = {
            k: _loss(_ours(table, classes, k), table["y"].to_numpy(), classes) for k in ("diag", "full", "spherical")
        }
        gap = f"{100 * (losses['diag'] / theirs - 1):+.3f} %"
        row = {
            "data": name,
            "rows": len(table),
            "clients": table["client"].nunique(),
            "lme4, diagonal": round(theirs, 4),
        }
        rows.append(
            row
            | {"ours, diag": round(losses["diag"], 4), "difference": gap}
            | {k: round(losses[k], 4) for k in ("full", "spherical")}
        )
    return pd.DataFrame(rows)


def coverage(sets: int = 40) -> pd.DataFrame:
    """Coverage of 90% intervals of slopes and intercepts, ± standard error over data sets (seeds 0, 1, …).

    Two columns; deviations of the clients' slopes .5 and .2 and of their intercepts 1; unit noise, or labels."""
    rows = []
    for kind, sizes in ((LinearModels, (6, 15)), (LogisticModels, (15, 40))):
        for m in (10, 30):
            for n in sizes:
                found: list[tuple[float, float]] = []
                for seed in range(sets):
                    rng = np.random.default_rng(seed)
                    owner, X = np.repeat(np.arange(m), n), rng.normal(size=(m * n, 2))
                    truth = rng.normal([1.0, -1.0, 0.5], [0.5, 0.2, 1.0], (m, 3))
                    score = truth[owner, 2] + (X * truth[owner, :2]).sum(1)
                    y = score + rng.normal(size=m * n) if kind is LinearModels else score + rng.logistic(size=m * n) > 0
                    model = kind().fit(X, y, owner)
                    inside = [
                        ((low < t) & (t < high)).mean()
                        for (low, high), t in (
                            (model.interval(0.9), truth[:, :2]),
                            (model.intercept_interval(0.9), truth[:, 2]),
                        )
                    ]
                    found.append((float(inside[0]), float(inside[1])))
                values = np.array(found)
                both = values @ [2 / 3, 1 / 3]
                cells = [f"{v.mean():.3f} ± {v.std(ddof=1) / np.sqrt(sets):.3f}" for v in (*values.T, both)]
                rows.append(
                    {"models": kind.__name__, "clients": m, "rows": n}
                    | dict(zip(("slopes", "intercepts", "all"), cells, strict=True))
                )
    return pd.DataFrame(rows)


STUDIES = {"lme4": lme4, "coverage": coverage}


def main(names: list[str]) -> None:
    unknown = [n for n in names if n not in STUDIES]
    if unknown:
        raise SystemExit(f"Unknown table {unknown[0]!r}; choose from {', '.join(STUDIES)}.")
    warnings.simplefilter("ignore")
    for name in names or list(STUDIES):
        study = STUDIES[name]
        print(f"{name}: {(study.__doc__ or '').splitlines()[0]}")
        print(study().to_string(index=False), end="\n\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
