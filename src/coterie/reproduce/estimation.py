"""The estimation tables of the documentation: ``python -m coterie.reproduce.estimation [table ...]``.

Tables: bernoulli, elections (needs COTERIE_DATA), mixture, gaussian, linear, logistic, advise. Without names, all of them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import DataError
from coterie.estimation.advice import advise
from coterie.estimation.checks import Array
from coterie.estimation.generate import (
    bernoulli_clients,
    gaussian_clients,
    mixture_clients,
    regression_clients,
)
from coterie.estimation.means import GaussianMeans
from coterie.estimation.mixtures import MixtureMeans
from coterie.estimation.rates import BernoulliRates
from coterie.estimation.regression.linear import LinearModels
from coterie.estimation.regression.logistic import LogisticModels

WEIGHTS: dict[str, dict[str, Any]] = {
    "paper": {"variance": "paper"},
    "paper, no -1": {"variance": "paper", "minus_one": False},
    "corrected": {"variance": "corrected"},
}

PAPER: dict[str, Any] = {"fit_intercept": False, "covariance_type": "spherical"}

LOGISTIC = (  # clients, rows, features, σ_θ², deviation of each μ_j, data sets
    (1000, 30, 10, 0.3, 0.1, 20),
    (1000, 10, 10, 0.3, 0.1, 20),
    (1000, 6, 10, 1.0, 1.0, 20),
    (200, 100, 100, 0.05, 0.1, 5),
    (10_000, 10, 100, 0.05, 0.1, 5),
    (10_000, 10, 100, 0.2, 0.1, 5),
    (10_000, 10, 100, 0.2, 1.0, 5),
)


def _error(estimates: Array, truth: Array) -> float:
    return float(np.square(estimates - truth).reshape(len(truth), -1).sum(1).mean())


def bernoulli(runs: int = 20) -> pd.DataFrame:
    """MSE gain over local in percent, m = 10,000 clients, n = 14 trials: mean ± deviation over runs."""
    rows = []
    for population in ("normal", "uniform", "spikes", "beta"):
        gains: dict[str, list[float]] = {name: [] for name in WEIGHTS}
        for seed in range(runs):
            data = bernoulli_clients(10_000, 14, population, rng=np.random.default_rng(seed))
            local = _error(data.successes / data.trials, data.truth)
            for name, options in WEIGHTS.items():
                model = BernoulliRates(**options).fit(data.successes, data.trials)
                gains[name].append(100 * (1 - _error(model.rates_, data.truth) / local))
        rows.append(
            {"population": population, **{k: f"{np.mean(g):.1f} ± {np.std(g, ddof=1):.1f}" for k, g in gains.items()}}
        )
    return pd.DataFrame(rows)


def elections_gains(table: pd.DataFrame) -> dict[str, list[float]]:
    """Gain in percent over local on each held-out election, from the other five (winner bits of every county)."""
    wins = table[[c for c in table.columns if c.startswith("rep")]].to_numpy(dtype=np.float64)
    gains: dict[str, list[float]] = {name: [] for name in WEIGHTS}
    for held_out in range(wins.shape[1]):
        successes = np.delete(wins, held_out, axis=1).sum(1)
        local = _error(successes / 5, wins[:, held_out])
        for name, options in WEIGHTS.items():
            rates = BernoulliRates(**options).fit(successes, 5).rates_
            gains[name].append(100 * (1 - _error(rates, wins[:, held_out]) / local))
    return gains


def elections() -> pd.DataFrame:
    """Gain in percent over the local rate on a held-out election, mean ± deviation over the six folds (ddof = 0)."""
    folder = os.environ.get("COTERIE_DATA")
    if not folder:
        raise DataError("The elections table needs elections.csv; set COTERIE_DATA to the folder that holds it.")
    gains = elections_gains(pd.read_csv(Path(folder) / "elections.csv"))
    return pd.DataFrame({k: [f"{np.mean(g):.1f} ± {np.std(g):.1f}"] for k, g in gains.items()})


def mixture(runs: int = 10) -> pd.DataFrame:
    """Centres −1, 0, 1; m = 3000, n = 4, σ_x = 1: MSE by method (mean over runs) and the half width of the centres."""
    options: dict[str, MixtureMeans] = {
        f"Algorithm 1, {t} rounds": MixtureMeans(3, method="paper", noise_variance=1.0, max_iter=t)
        for t in (1, 2, 5, 10)
    }
    options["EM"] = MixtureMeans(3, noise_variance=1.0)
    centers = np.array([[-1.0], [0.0], [1.0]])
    options["known centres"] = MixtureMeans(prior=(np.full(3, 1 / 3), centers), noise_variance=1.0)
    errors: dict[str, list[float]] = {name: [] for name in ("local", *options)}
    widths: dict[str, list[float]] = {name: [] for name in options}
    for seed in range(runs):
        data = mixture_clients(3000, 4, centers, noise_variance=1.0, rng=np.random.default_rng(seed))
        errors["local"].append(_error(np.stack([s.mean(0) for s in data.samples]), data.truth))
        for name, model in options.items():
            model.fit(data.samples)
            errors[name].append(_error(model.estimates_, data.truth))
            widths[name].append(float(np.ptp(model.centers_)) / 2)
    return pd.DataFrame(
        [
            {
                "method": n,
                "MSE": round(float(np.mean(e)), 4),
                "half width": round(float(np.mean(widths.get(n, [1.0]))), 2),
            }
            for n, e in errors.items()
        ]
    )


def gaussian(runs: int = 2000) -> pd.DataFrame:
    """m = 10, n = 5, d = 3, unit variances: simulated risk against the closed form."""
    rng = np.random.default_rng(0)
    errors: dict[str, list[float]] = {"known variances": [], "estimated variances": []}
    for _ in range(runs):
        data = gaussian_clients(10, 5, 3, prior_variance=1.0, noise_variance=1.0, rng=rng)
        errors["known variances"].append(_error(GaussianMeans(1.0, 1.0).fit(data.samples).estimates_, data.truth))
        errors["estimated variances"].append(_error(GaussianMeans().fit(data.samples).estimates_, data.truth))
    rows = [
        {
            "estimator": name,
            "simulated": f"{np.mean(e):.4f} ± {np.std(e) / np.sqrt(runs):.4f}",
            "closed form": 0.51,
            "local": 0.6,
        }
        for name, e in errors.items()
    ]
    return pd.DataFrame(rows)


def linear() -> pd.DataFrame:
    """m = 10,000 clients of n = 10 rows: coefficient MSE, its closed form, and seconds with the prior unknown."""
    rows = []
    for d in (50, 100):
        for prior, noise in ((0.01, 0.05), (0.05, 0.01)):
            data = regression_clients(
                10_000,
                10,
                d,
                prior_variance=prior,
                noise_variance=noise,
                feature_variance=0.05,
                rng=np.random.default_rng(0),
            )
            known = LinearModels((data.mean, prior), noise, fit_intercept=False).fit(data.X, data.y, data.groups)
            start = time.perf_counter()
            model = LinearModels(**PAPER).fit(data.X, data.y, data.groups)
            seconds = time.perf_counter() - start
            rows.append(
                {
                    "d": d,
                    "prior, noise": f"{prior}, {noise}",
                    "local": round(known.local_risk_, 3),
                    "global": round(d * prior, 3),
                    "known prior": round(_error(known.coef_, data.truth), 3),
                    "closed form": round(known.risk_, 3),
                    "estimated prior": round(_error(model.coef_, data.truth), 3),
                    "seconds": round(seconds, 1),
                }
            )
    return pd.DataFrame(rows)


def logistic() -> pd.DataFrame:
    """Learned σ_θ² (geometric mean) and coverage of 90% intervals, mean ± deviation over data sets (seeds 0, 1, …)."""
    rows = []
    for m, n, d, variance, scale, sets in LOGISTIC:
        learned, covered, seconds = [], [], []
        for seed in range(sets):
            rng = np.random.default_rng(seed)
            data = regression_clients(m, n, d, prior_variance=variance, noise_variance=None, mean_scale=scale, rng=rng)
            start = time.process_time()
            model = LogisticModels(**PAPER).fit(data.X, data.y, data.groups)
            seconds.append(time.process_time() - start)
            low, high = model.interval(0.9)
            learned.append(float(np.mean(model.prior_variance_)))
            covered.append(float(((low < data.truth) & (data.truth < high)).mean()))
        rows.append(
            {
                "clients, rows, features": f"{m:,}, {n}, {d}",
                "prior variance": variance,
                "deviation of mu": scale,
                "data sets": sets,
                "learned": f"{np.exp(np.log(learned).mean()):.3g}",
                "coverage": f"{np.mean(covered):.3f} ± {np.std(covered, ddof=1):.3f}",
                "processor seconds": round(float(np.mean(seconds)), 1),
            }
        )
    return pd.DataFrame(rows)


def advice() -> pd.DataFrame:
    """Predicted squared error of each method on four kinds of synthetic clients (m = 300, d = 3), and the advice."""
    rows = []
    rng = np.random.default_rng(0)
    cases = {
        "clients differ a little": gaussian_clients(300, 5, 3, prior_variance=0.2, noise_variance=1.0, rng=rng),
        "clients are equal": gaussian_clients(300, 5, 3, prior_variance=0.0, noise_variance=1.0, rng=rng),
        "clients differ a lot, much data": gaussian_clients(
            300, 50, 3, prior_variance=100.0, noise_variance=1.0, rng=rng
        ),
        "three groups": mixture_clients(300, 5, [[-1, 0, 0], [1, 0, 0], [0, 2, 0]], noise_variance=1.0, rng=rng),
    }
    for name, data in cases.items():
        told = advise(samples=data.samples)
        risk = told.table.set_index("method")["risk"].round(4)
        rows.append(
            {
                "data": name,
                **{m: risk[m] for m in ("local", "global", "shrunk", "clustered")},
                "advice": told.recommendation,
            }
        )
    return pd.DataFrame(rows)


TABLES = {
    "gaussian": gaussian,
    "bernoulli": bernoulli,
    "elections": elections,
    "mixture": mixture,
    "linear": linear,
    "logistic": logistic,
    "advise": advice,
}


def main(names: list[str]) -> None:
    unknown = [n for n in names if n not in TABLES]
    if unknown:
        raise SystemExit(f"Unknown table {unknown[0]!r}; choose from {', '.join(TABLES)}.")
    for name in names or list(TABLES):
        table = TABLES[name]
        print(f"{name}: {(table.__doc__ or '').splitlines()[0]}")
        print(table().to_string(index=False), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
