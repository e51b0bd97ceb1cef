"""Clients that changed since a run: who left its group, and whose rows no model fits as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import stats

from coterie.base.tree import Params, Tree
from coterie.data.federation import Federation
from coterie.errors import ConfigError, DataError
from coterie.exchange.messages import Context, Ints
from coterie.training.evaluation import Evaluation
from coterie.training.later_clients import evaluation_of

Floats = npt.NDArray[np.float64]
_TOGETHER = 512  # clients whose losses are in memory, padded to one length
FEWEST = 5  # with fewer rows, then or now, a client is not judged


def drifted(live: Evaluation, clusters: pd.Series[int], federation: Federation, level: float) -> pd.DataFrame:
    """A row per client that has new rows, all of which are used; `Result.drift` says what the columns mean.

    On the new rows the loss of a client's model is compared with that of the other groups' models (paired, a t-test per
    group), and with its own losses on the test rows of the run (Mann and Whitney's rank test, for losses of any shape).
    Each of the two may raise a false alarm at any client in half of the share `level` of quiet months (Bonferroni
    over clients and groups)."""
    if live.algorithm.predictor() is not None:
        raise ConfigError(
            f"Drift compares losses of one model per client, and clients of {type(live.algorithm).__name__} predict with "
            "more. Use another method."
        )
    known = federation.clients.intersection(live.federation.clients, sort=False)
    if not len(known):
        raise DataError(
            "Drift is seen at clients of the run; the new rows have none of them. Name clients as the run does."
        )
    new = evaluation_of(live, federation.subset(known))
    place = np.array([live.federation.index(c) for c in known])
    groups, own = np.unique(clusters.to_numpy()[place], return_inverse=True)
    grouped = live.algorithm.way not in ("alone", "shrunk") and len(groups) < len(known)
    mine = live.personal(place)
    before, now = _losses(live, mine, place, test_only=True), _losses(new, mine, new.everyone())
    table = pd.DataFrame({"cluster": clusters.to_numpy()[place]}, index=pd.Index(known, name="client"))
    table["loss before"], table["loss now"] = (
        [float(np.mean(v)) if len(v) else np.nan for v in w] for w in (before, now)
    )
    table["rows"] = [len(v) for v in now]
    judged = table["rows"].to_numpy() >= FEWEST
    table["changed"] = [
        len(b) >= FEWEST and len(a) >= FEWEST and _larger(a, b) <= level / 2 / len(known)
        for a, b in zip(now, before, strict=True)
    ]
    table["left"], table["place"] = False, table["cluster"]
    if not grouped or len(groups) < 2:
        return table
    members = np.array([int(place[own == g][0]) for g in range(len(groups))])
    models, best, least = live.personal(members), own.copy(), np.ones(len(known))
    for g in range(len(groups)):
        theirs = {name: t[g].expand(len(known), *t.shape[1:]) for name, t in models.items()}
        better = [a - b for a, b in zip(now, _losses(new, theirs, new.everyone()), strict=True)]
        p = np.where(judged & (own != g), [_above_zero(d) for d in better], 1.0)
        best, least = np.where(p < least, g, best), np.minimum(p, least)
    table["left"] = least <= level / 2 / (len(known) * (len(groups) - 1))
    table["place"] = np.where(table["left"], groups[best], table["cluster"])
    return table


def _losses(live: Evaluation, models: Params, clients: Ints, *, test_only: bool = False) -> list[Floats]:
    """The losses of client i's rows by row i of the models, for all rows or the test rows."""
    task, at = live.task, torch.zeros(len(live.federation), dtype=torch.int64)
    at[torch.from_numpy(clients)] = torch.arange(len(clients))

    def losses(ctx: Context, test: Context, state: Any) -> Tree:
        model = {name: t[at[ctx.index]] for name, t in models.items()}
        parts = (test,) if test_only else (ctx, test)
        found = [task.sample_losses(task.outputs(model, part.x), part.y).double() for part in parts]
        kept = [torch.where(part.mask > 0, one, torch.nan) for part, one in zip(parts, found, strict=True)]
        return {"losses": torch.cat(kept)}

    each: list[Floats] = []
    for client in np.array_split(clients, max(len(clients) // _TOGETHER, 1)):
        rows = live.each(losses, client, test=True)["losses"].numpy()
        each += [row[~np.isnan(row)] for row in rows]
    return each


def _above_zero(values: Floats) -> float:
    """One-sided p-value of a mean above zero."""
    return float(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue) if values.std() > 0 else 1.0


def _larger(now: Floats, before: Floats) -> float:
    """One-sided p-value of larger losses now."""
    return float(stats.mannwhitneyu(now, before, alternative="greater").pvalue)
