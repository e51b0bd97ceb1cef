"""Saved runs as a comparison without a recommendation, from folders alone. Nothing is trained.

Runs of one algorithm with different seeds are one method, with intervals over its seeds (`evidence/gains.py`). They show how
much training varies, and not how much other test rows would change it: no client is marked, and nothing is recommended."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.base.text import listed
from coterie.comparison.result import Comparison
from coterie.errors import ConfigError
from coterie.evidence.gains import NO_SCORE, UNCLEAR, Gains, intervals
from coterie.learning.metrics import LOWER_IS_BETTER
from coterie.training.result import Result


@dataclass(frozen=True)
class Run:
    """One saved run, or one method of a saved comparison."""

    folder: Path
    method: str
    seed: int
    rounds: int | None
    finished: bool
    metric: str
    scores: pd.DataFrame
    """By client: score, alone, gain, and standard error and half the interval where they are known."""
    clusters: pd.Series[Any]
    history: pd.DataFrame
    algorithm: str
    result: Result | None = None


def load(folder: Path) -> list[Run]:
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}. Name the folder of a run or a comparison.")
    if (folder / "comparison.json").is_file():
        return _comparison(folder)
    if not any((folder / name).exists() for name in ("result.json", "checkpoint.safetensors", "config.toml")):
        raise ConfigError(
            f"{folder} holds neither a run nor a comparison. Name a folder that `coterie run` or compare wrote."
        )
    result = Result.load(folder)
    told, metric = result.evaluate(), result.about["metrics"][0]
    scores = pd.DataFrame({"score": told[metric], "alone": told["alone"], "gain": told["gain"]}).assign(
        error=np.nan, half=np.nan
    )
    scores["train"], scores["test"] = told["n_train"], told["n_test"]
    about, text = result.about, str(result.about["algorithm"])
    return [
        Run(folder, text.split("(")[0], int(about["seed"]), int(about["rounds"]), bool(about["finished"]), metric,
            _by_name(scores), _by_name(result.clusters), result.history, text, result)
    ]  # fmt: skip


def _comparison(folder: Path) -> list[Run]:
    """The methods of a saved comparison, but for its baselines."""
    try:
        told = json.loads((folder / "comparison.json").read_text("utf-8"))
        parts = {k: pd.DataFrame(told[k]).T.astype(float) for k in ("table", "gains", "errors", "half_widths")}
        groups, metric = told["groups"], str(told["metric"])
        seed = int(told["about"]["seeds"][0])
        base = "alone" if "alone" in parts["table"].index else "local"
        names = [m for m in parts["table"].index if m not in ("alone", "local")]
        runs = []
        for method in names:
            scores = pd.DataFrame({"score": parts["table"].loc[method], "alone": parts["table"].loc[base]})
            named = zip(("gain", "error", "half"), ("gains", "errors", "half_widths"), strict=True)
            scores = scores.assign(**{name: parts[part].loc[method] for name, part in named})
            mine = groups if groups and method == "groups" else dict.fromkeys(scores.index, 0)
            clusters = pd.Series(mine).reindex(scores.index).fillna(0).astype(int)
            runs.append(
                Run(folder, method, seed, None, True, metric, scores, clusters, pd.DataFrame(), "exact or tuned")
            )
        return runs
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{folder / 'comparison.json'} is damaged ({error}). Make the comparison again.") from None


def _by_name(table: Any) -> Any:
    return table.set_axis([str(c) for c in table.index], axis=0).rename_axis("client")


def named(runs: list[Run]) -> list[Run]:
    """Methods with different names: runs that differ in more than the seed are named by their folders."""
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        raise ConfigError(f"Runs side by side need one metric; got {listed(metrics)}. Name runs measured alike.")
    if not runs:
        raise ConfigError("There is nothing to show: the comparison has no method besides training alone.")
    shared = set.intersection(*(set(run.scores.index) for run in runs))
    if not shared:
        raise ConfigError("Runs side by side need clients in common; these have none. Name runs on the same data.")
    kinds: dict[str, set[Any]] = {}
    for run in runs:
        kinds.setdefault(run.method, set()).add((run.algorithm, run.rounds, run.folder if run.result is None else None))
    seeds = pd.Series([(run.method, run.seed) for run in runs]).duplicated(keep=False)
    again = {run.method for run, twice in zip(runs, seeds, strict=True) if twice}
    mixed = {method for method, found in kinds.items() if len(found) > 1} | again
    return [
        replace(run, method=f"{run.method} in {run.folder.name or run.folder}") if run.method in mixed else run
        for run in runs
    ]


def side_by_side(runs: list[Run]) -> Comparison:
    """The runs as a comparison without a recommendation; clients that a run lacks have no score there."""
    clients = list(dict.fromkeys(c for run in runs for c in run.scores.index))
    by: dict[str, list[Run]] = {}
    for run in runs:
        by.setdefault(run.method, []).append(run)

    def mean(column: str) -> pd.DataFrame:
        return _frame({m: _stack(some, column, clients).mean(axis=0) for m, some in by.items()}, clients)

    table, gains = mean("score"), mean("gain")
    spread = {m: _spread(some, clients) for m, some in by.items()}
    errors, half = (_frame({m: pair[i] for m, pair in spread.items()}, clients) for i in (0, 1))
    alone = pd.concat([run.scores["alone"].reindex(clients) for run in runs], axis=1).mean(axis=1)
    if alone.notna().any():
        table.loc["alone"], gains.loc["alone"], errors.loc["alone"], half.loc["alone"] = alone, 0.0, 0.0, 0.0
    marks = gains.map(lambda g: NO_SCORE if np.isnan(g) else UNCLEAR).astype(object)
    groups = {m: some[0].clusters.reindex(clients).fillna(-1).astype(int) for m, some in by.items()}
    groups |= {"alone": pd.Series(0, index=clients)} if "alone" in table.index else {}
    histories = [r.history.assign(method=r.method, seed=r.seed) for r in runs if len(r.history)]
    sized = [r.scores[["train", "test"]].reindex(clients) for r in runs if "train" in r.scores]
    settings = [{"method": r.method, "seed": r.seed, "rounds": r.rounds, "algorithm": r.algorithm} for r in runs]
    metric = runs[0].metric
    return Comparison(
        table=table, gains=gains, errors=errors, half_widths=half, marks=marks, metric=metric, scores=pd.DataFrame(),
        curves=pd.concat(histories, ignore_index=True) if histories else pd.DataFrame(),
        settings=pd.DataFrame(settings),
        clusters=pd.DataFrame(groups).T.rename_axis("method"),
        overview=sized[0].fillna(0) if sized else pd.DataFrame(index=clients),
        about={"lower_is_better": metric in LOWER_IS_BETTER, "clients": len(clients), "kind": "", "seeds": []},
        regrouped={m: pd.DataFrame({r.seed: r.clusters.reindex(clients) for r in s}).T for m, s in by.items() if len(s) > 1},
    )  # fmt: skip


def _stack(runs: list[Run], column: str, clients: list[str]) -> pd.DataFrame:
    return pd.DataFrame([run.scores[column].reindex(clients) for run in runs])


def _spread(runs: list[Run], clients: list[str]) -> tuple[Any, Any]:
    """The standard error of every client's gain over the seeds, and half its interval; of one run, what it says itself."""
    if len(runs) == 1:
        kept = runs[0].scores.reindex(clients)
        return kept["error"], kept["half"]
    each, count = _stack(runs, "gain", clients), np.full(len(clients), float(len(runs)))
    error = each.std(ddof=1) / np.sqrt(len(runs))
    low, high = intervals(Gains(each.mean().to_numpy(), error.to_numpy(), count - 1, count), fewest=2)
    return error, pd.Series((high - low) / 2, index=clients)


def _frame(parts: dict[str, Any], clients: list[str]) -> pd.DataFrame:
    return pd.DataFrame(parts).T.reindex(columns=clients).rename_axis("method")
