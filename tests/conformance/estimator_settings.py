"""The estimators of the conformance table, on rows whose coding does not change: in memory, on an engine, and on sites."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from together import InProcess

import coterie as ct
from coterie.cli.estimates import ESTIMATORS as KNOWN
from coterie.cli.estimates import Estimate, estimate_job
from coterie.flower.studies import serve_study

ESTIMATORS = tuple(KNOWN)
TOLERANCE = 1e-8
DATA: dict[str, Any] = {
    "client": "who",
    "target": "y",
    "features": ["a", "b"],
    "dtype": "float64",
    "test_fraction": 0.0,
}
_MORE = {"mixture_means": {"clusters": 2, "random_state": 0}}


def rows(name: str) -> pd.DataFrame:
    """Nine clients whose slopes and means differ."""
    rng, parts = np.random.default_rng(4), []
    for i in range(9):
        x = rng.normal(size=(20 + 3 * i, 2)) + 2 * (i % 2)
        y = x @ (np.array([1.0, -1.0]) + 0.4 * rng.normal(size=2)) + rng.normal(size=len(x))
        parts.append(pd.DataFrame(x, columns=["a", "b"]).assign(y=y, who=f"c{i}"))
    whole = pd.concat(parts, ignore_index=True)
    return whole.assign(y=np.where(whole["y"] > 0, "yes", "no")) if classes(name) else whole


def classes(name: str) -> bool:
    return name in ("bernoulli_rates", "logistic_models")


def options(name: str) -> dict[str, Any]:
    return DATA | {"kind": "classification" if classes(name) else "regression"}


def federation(name: str) -> ct.Federation:
    return ct.Federation.from_frame(rows(name), **options(name))


def in_memory(name: str) -> Any:
    fed, made = federation(name), KNOWN[name](**_MORE.get(name, {}))
    x, y, owner = fed.rows("train")
    who = fed.clients.to_numpy()[owner]
    if name == "bernoulli_rates":
        each = [y[who == c] for c in fed.clients]
        return made.fit([v.sum() for v in each], [len(v) for v in each])
    return made.fit(x, y, who) if name.endswith("models") else made.fit({c: x[who == c] for c in fed.clients})


def fitted(name: str, engine: Any) -> Any:
    return ct.fit(KNOWN[name](**_MORE.get(name, {})), federation(name), engine=engine)


def on_sites(name: str) -> Any:
    """The estimator that the server of three sites has fitted."""
    made: list[Any] = []

    class Kept(Estimate):
        def decide(self, found: Any, job: Any, federation: Any, trials: Any, tell: Any) -> Any:
            told = super().decide(found, job, federation, trials, tell)
            made.append(job.algorithm.estimator)
            return told

    table = rows(name)
    job = estimate_job(options(name), {"name": name, **_MORE.get(name, {})}, {}, least=1)
    object.__setattr__(job, "ends", Kept())
    parts = [table[table["who"].isin([f"c{j}" for j in range(i, 9, 3)])] for i in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        nodes = InProcess(job, parts, Path(folder))
        serve_study(job, nodes, Path(folder) / "server", sites=3, tell=lambda _: None)
    return made[0]


def far(one: Any, other: Any) -> float:
    """The largest difference in anything learned."""
    names = [k for k, v in vars(one).items() if k.endswith("_") and np.asarray(v).dtype.kind == "f"]
    parts = [(np.asarray(getattr(one, k)), np.asarray(getattr(other, k))) for k in names]
    return max(float((np.abs(a - b) / np.maximum(np.abs(a), 1)).max(initial=0.0)) for a, b in parts)
