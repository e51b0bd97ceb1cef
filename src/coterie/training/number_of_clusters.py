"""How many clusters? Held-out loss over a small range decides, and the evidence is kept.

Part of every client's *training* data is held out; the algorithm is fitted with each number of clusters on the rest; the
smallest number whose held-out loss is within two standard errors of the best (of the difference, paired over clients) or
within one per cent of it wins. One standard error, the usual rule, split homogeneous clients too often: the best
of several candidates is ahead by chance. Test data are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.base.annotations import guarded
from coterie.base.arguments import check_arguments, whole_number
from coterie.base.settings import setting, with_setting
from coterie.data.federation import Federation
from coterie.errors import ConfigError, DataError
from coterie.learning.task import Task
from coterie.training.run import fit
from coterie.training.validity import looked_at

_FIRST, _MORE, _MOST = 6, 3, 24  # numbers tried first, how many more at a time, and the largest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Choice:
    """`clusters` is the choice. `table` is the evidence: held-out loss, its excess over the best and that excess's error.
    `note` is a warning about the evidence (empty if there is none)."""

    clusters: int
    table: pd.DataFrame
    note: str = ""

    def plot(self, ax: Axes | None = None) -> Axes:
        from coterie.training.plots import NEUTRAL, axes

        ax = axes(ax)
        t = self.table
        ax.errorbar(t.index, t["loss"], yerr=t["excess_error"], color=NEUTRAL, marker="o", capsize=3)
        ax.axvline(self.clusters, color="black", linewidth=0.8, linestyle=":")
        ax.set(xlabel="clusters", ylabel="held-out loss", xticks=list(t.index))
        ax.spines[["top", "right"]].set_visible(False)
        return ax


@guarded
def choose_clusters(
    algorithm: Any,
    federation: Federation,
    task: Task | None = None,
    *,
    candidates: Sequence[int] | None = None,
    holdout: float = 0.25,
    **options: Any,
) -> Choice:
    """Try each number of clusters with `fit(…, **options)` and choose by held-out loss.

    candidates: None tries 1 to 6, and three more as long as the best or the chosen number is one of the two largest, up to
    24. Numbers above the largest candidate are not tried; when that one wins, the choice's `note` says so."""
    check_arguments(locals())
    if setting(algorithm, "clusters", 0) is not None:
        raise ConfigError(f"{type(algorithm).__name__} has no clusters=None to choose. Pass the number yourself.")
    looked_at(federation, "choose_clusters")
    fitting = federation.holdout(holdout)
    if not fitting.n_test.any():
        raise DataError(
            "Choosing the number of clusters needs a client with two training rows or more, to hold one out; here every "
            "client has one. Pass clusters=…."
        )
    given = tuple(range(1, _FIRST + 1)) if candidates is None else candidates
    counts = [whole_number("Every candidate", k) for k in given if k <= len(federation)]
    if not counts:
        raise ConfigError(f"No candidate is at most the number of clients; got {list(given)}, {len(federation)}.")
    most = min(_MOST, len(federation)) if candidates is None else max(counts)
    losses: dict[int, npt.NDArray[np.float64]] = {}
    while True:
        for k in counts:
            result = fit(with_setting(algorithm, "clusters", k), fitting, task, alone=False, **options)
            losses[k] = result.evaluation.test_losses()
        table, chosen = _judged(losses)
        last, near = max(losses), max(chosen, int(str(table["loss"].idxmin())))
        if last >= most or near < last - 1:
            break
        counts = list(range(last + 1, min(last + _MORE, most) + 1))
    note = ""
    if near == last < len(federation):
        won = "won" if chosen == last else f"had the smallest loss, though {chosen} did about as well"
        note = f"The largest number of clusters tried, {last}, {won}; more may be better. Pass candidates=… up to more."
    return Choice(chosen, table, note)


def _judged(losses: dict[int, npt.NDArray[np.float64]]) -> tuple[pd.DataFrame, int]:
    """The evidence, and the smallest number of clusters that is about as good as the best."""
    means = {k: float(np.nanmean(v)) for k, v in losses.items()}
    best = min(means, key=means.__getitem__)
    excess = {k: v - losses[best] for k, v in losses.items()}
    rows = [(k, means[k], float(np.nanmean(v)), _error(v)) for k, v in excess.items()]
    table = pd.DataFrame(rows, columns=["clusters", "loss", "excess", "excess_error"]).set_index("clusters")
    return table, min(k for k, _, more, error in rows if more <= max(2 * error, 0.01 * abs(means[best])))


def _error(values: npt.NDArray[np.float64]) -> float:
    """Standard error of a mean over clients."""
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else 0.0


def fill_in_clusters(
    algorithm: Any, federation: Federation, task: Task, rounds: int, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Fill in clusters=None; the evidence goes into the result."""
    if setting(algorithm, "clusters", 0) is not None:
        return algorithm, {}
    choice = choose_clusters(algorithm, federation, task, rounds=rounds, progress=False, **options)
    about = {"choice": choice.table.reset_index().to_dict("records"), "clusters": choice.clusters}
    algorithm = with_setting(algorithm, "clusters", choice.clusters)
    return algorithm, about | ({"choice_note": choice.note} if choice.note else {})
