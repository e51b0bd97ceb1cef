"""Methods side by side for a paper: means with intervals over seeds and clients, paired differences, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from coterie.base.annotations import guarded
from coterie.base.arguments import Level
from coterie.errors import ConfigError
from coterie.learning.metrics import LOWER_IS_BETTER
from coterie.training.result import Result
from coterie.training.sweeps import Seeds

Floats = npt.NDArray[np.float64]
FEWEST_SEEDS = 3  # fewer do not show how much training varies
UNDECIDED = "undecided"


@guarded
def table(
    runs: Mapping[str, Result | Seeds | Sequence[Result]],
    *,
    test: Literal["paired"] | None = None,
    against: str | None = None,
    level: Level = 0.95,
    target: float | None = None,
    latex: bool = False,
) -> pd.DataFrame | str:
    """A row per method. A method is a result, several results with other seeds, or what `fit_seeds` returns.

    Columns: the mean of the first metric over clients and seeds with its interval (`low`, `high`), the mean of the `worst
    tenth` of the clients, the `spread` between clients (a standard deviation), the mean of `new clients` where the runs kept
    some apart, `seeds`, `rounds`, `seconds` and `MB`. With `target` also the rounds, seconds and MB until the mean
    test score reached it (NaN: never, or the runs had no `evaluate_every`).

    test="paired": the `difference` from the method `against` (the first one), client by client, its interval, and a
    `verdict`: better, worse or undecided. Intervals are corrected for the number of methods (Bonferroni), and fewer
    than three seeds decide nothing. Errors are those over clients and over seeds together, which is cautious."""
    methods = {name: _results(name, given) for name, given in runs.items()}
    if not methods:
        raise ConfigError("A table needs at least one run; got none. Pass {'FedAvg': ct.fit(…), …}.")
    metrics = {next(iter(result.scores().columns)) for some in methods.values() for result in some}
    if len(metrics) > 1:
        raise ConfigError(
            f"Methods side by side need one first metric; got {sorted(metrics)}. Give every task the same."
        )
    metric = metrics.pop()
    first = next(iter(methods)) if against is None else against
    if first not in methods:
        raise ConfigError(f"against must be one of {', '.join(methods)}; got {first!r}.")
    scores = {name: _scores(some, metric) for name, some in methods.items()}
    rows = {name: _row(methods[name], scores[name], metric, level, target) for name in methods}
    if test is not None:
        part = 1 - (1 - level) / max(len(methods) - 1, 1)
        for name in methods:
            rows[name] |= {} if name == first else _paired(scores[name], scores[first], metric, part)
    found = pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").dropna(axis=1, how="all")
    return _latex(found, metric) if latex else found


def _results(name: str, given: Result | Seeds | Sequence[Result]) -> list[Result]:
    some = list(given.results) if isinstance(given, Seeds) else [given] if isinstance(given, Result) else list(given)
    if not some or not all(isinstance(one, Result) for one in some):
        raise ConfigError(f"The runs of {name!r} must be results of fit or fit_seeds. Pass these.")
    return some


def _scores(some: list[Result], metric: str) -> pd.DataFrame:
    """Seeds × clients that all of these runs scored."""
    return pd.concat([result.scores()[metric] for result in some], axis=1).dropna().T.reset_index(drop=True)


def _row(some: list[Result], scores: pd.DataFrame, metric: str, level: float, target: float | None) -> dict[str, Any]:
    each = np.sort(scores.mean(axis=0).to_numpy())
    worst = each[::-1] if metric in LOWER_IS_BETTER else each
    mean, half = mean_with_interval(scores.to_numpy(), level)
    new = [r.evaluate_new()[metric].mean() for r in some if r.kept_apart]
    costs = pd.DataFrame([_costs(r, metric, target) for r in some]).mean()
    return {
        metric: mean,
        "low": mean - half,
        "high": mean + half,
        "worst tenth": float(worst[: max(len(worst) // 10, 1)].mean()),
        "spread": float(each.std(ddof=1)) if len(each) > 1 else float("nan"),
        "new clients": float(np.mean(new)) if new else float("nan"),
        "seeds": len(scores),
        **{str(name): float(value) for name, value in costs.items()},
    }


def _costs(result: Result, metric: str, target: float | None) -> dict[str, float]:
    """Rounds, seconds and megabytes of a run, and until its mean test score reached the target."""
    history = result.history
    bytes_ = (history["bytes_up"] + history["bytes_down"]).cumsum() / 1e6
    seconds = history["seconds"].cumsum()
    found = {"rounds": float(len(history)), "seconds": _last(seconds), "MB": _last(bytes_)}
    if target is None:
        return found
    seen = history.get(f"test_{metric}", pd.Series(np.nan, history.index))
    there = np.flatnonzero(seen <= target if metric in LOWER_IS_BETTER else seen >= target)
    at = int(there[0]) if len(there) else None
    until = dict.fromkeys(("rounds to target", "seconds to target", "MB to target"), float("nan"))
    if at is not None:
        until = dict(zip(until, (float(history["round"].iloc[at]), seconds.iloc[at], bytes_.iloc[at]), strict=True))
    return found | until


def _last(column: pd.Series[float]) -> float:
    return float(column.iloc[-1]) if len(column) else 0.0


def mean_with_interval(scores: Floats, level: float) -> tuple[float, float]:
    """The mean of a table (seeds × clients), and half its interval on other seeds and clients.

    The error is √(s²_clients/m + s²_seeds/S), of the means per client and per seed, with the degrees of freedom of Welch and
    Satterthwaite. It counts what is left beside the two twice, so that it is never too small. One seed adds nothing."""
    parts, freedom = [], []
    for axis in (0, 1):
        means = scores.mean(axis=axis)
        if len(means) > 1:
            parts.append(float(means.var(ddof=1)) / len(means))
            freedom.append(len(means) - 1)
    total = sum(parts)
    if not parts:
        return float(scores.mean()), float("nan")
    if total == 0:
        return float(scores.mean()), 0.0
    df = total**2 / sum(p**2 / f for p, f in zip(parts, freedom, strict=True))
    return float(scores.mean()), float(stats.t.ppf((1 + level) / 2, df) * np.sqrt(total))


def _paired(mine: pd.DataFrame, theirs: pd.DataFrame, metric: str, level: float) -> dict[str, Any]:
    """What a method gains over another one on the same clients and seeds; positive is better."""
    shared = mine.columns.intersection(theirs.columns)
    if not len(shared):
        raise ConfigError("A paired test needs clients that both methods scored; these have none in common.")
    seeds = min(len(mine), len(theirs))
    gain = (mine[shared][:seeds] - theirs[shared][:seeds]).to_numpy() * (-1 if metric in LOWER_IS_BETTER else 1)
    mean, half = mean_with_interval(gain, level)
    verdict = "better" if mean - half > 0 else "worse" if mean + half < 0 else UNDECIDED
    decided = seeds >= FEWEST_SEEDS and len(shared) > 1
    return {
        "difference": mean,
        "difference low": mean - half,
        "difference high": mean + half,
        "verdict": verdict if decided else UNDECIDED,
    }


def _latex(found: pd.DataFrame, metric: str) -> str:
    """The table for a paper: means with half their intervals, the best mean in bold."""
    best = found[metric].idxmin() if metric in LOWER_IS_BETTER else found[metric].idxmax()
    shown = pd.DataFrame(index=found.index.map(_escaped))
    cells = [f"{m:.3f} \\pm {(h - low) / 2:.3f}" for m, low, h in found[[metric, "low", "high"]].to_numpy()]
    shown[_escaped(metric)] = [
        f"$\\mathbf{{{c}}}$" if name == best else f"${c}$" for name, c in zip(found.index, cells, strict=True)
    ]
    for column in [c for c in found.columns if c not in (metric, "low", "high", "difference low", "difference high")]:
        shown[_escaped(column)] = [v if isinstance(v, str) else "" if pd.isna(v) else f"{v:.4g}" for v in found[column]]
    return shown.reset_index(names="method").to_latex(index=False, escape=False)


def _escaped(text: Any) -> str:
    return str(text).replace("\\", "").replace("_", "\\_").replace("%", "\\%").replace("&", "\\&").replace("#", "\\#")
