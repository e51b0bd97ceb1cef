"""A floor under collaboration: a client keeps the shared model only if it beats training alone on rows that it held out.

Liars cannot reach the choice: each client makes it, on rows that no message saw. It promises nothing of other kinds of rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from coterie.algorithms.local import Local
from coterie.base.annotations import guarded
from coterie.base.arguments import Count
from coterie.data.federation import Federation
from coterie.errors import ConfigError, Diverged
from coterie.exchange.messages import Algorithm
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.training.result import Result
from coterie.training.row_losses import row_losses
from coterie.training.run import fit


@dataclass(frozen=True)
class Guarded:
    """`table` has a row per client: both losses on its held-out rows, how many these are, and which model it uses."""

    table: pd.DataFrame
    shared: Result | None  # None: the run ended in no numbers
    alone: Result

    def model(self, client: Hashable) -> nn.Module:
        """The model that the client uses."""
        chosen = self.shared if self.shared and self.table["uses"].to_dict().get(client) == "shared" else self.alone
        return chosen.model(client)

    def scores(self) -> pd.DataFrame:
        """Every client's chosen model on its own test rows."""
        found, data, task = self.alone.scores(), self.alone.federation, self.alone.task
        for client in self.table.index[self.table["uses"] == "shared"]:
            x, y = data.test(client)
            if len(y):
                with torch.no_grad():
                    out = self.model(client)(x)
                out, mask = out.reshape(1, len(y), -1), torch.ones(1, len(y), dtype=out.dtype)
                found.loc[client] = {s.name: float(s(out, y[None], mask)) for s in task.scorers}
        return found


@guarded
def fit_guarded(
    algorithm: Algorithm,
    federation: Federation,
    task: Task,
    *,
    rounds: Count,
    holdout: float = 0.2,
    alone: Local | None = None,
    alone_rounds: Count | None = None,
    seed: int = 0,
    **options: Any,
) -> Guarded:
    """`fit` without a share `holdout` of each client's training rows, on which it then chooses between this model and one of
    its own, trained without them, too. A client that chooses its own uses one that is trained on all of its rows.

    `options` are those of `fit`, such as channels; `alone` (by default the algorithm's own local steps, for as many rounds)
    says how to train alone. A client shares if its held-out rows lose less by more than a standard error of the difference;
    with fewer than two such rows it stays alone."""
    if alone is None:
        steps = getattr(algorithm, "local", None)
        if not isinstance(steps, LocalSteps):
            raise ConfigError(
                f"fit_guarded needs alone=ct.Local(…), because {type(algorithm).__name__} has no local steps."
            )
        alone = Local(steps)
    many = alone_rounds or rounds
    inner = federation.holdout(holdout, seed)
    lone, final = (fit(alone, f, task, rounds=many, seed=seed, alone=False) for f in (inner, federation))
    without = row_losses(lone)
    try:
        shared = fit(algorithm, inner, task, rounds=rounds, seed=seed, alone=False, **options)
        losses = row_losses(shared)
    except Diverged:
        shared, losses = None, [np.full(len(one), np.nan) for one in without]
    lines = []
    for theirs, mine in zip(losses, without, strict=True):
        n, less = len(mine), mine - theirs
        clear = n > 1 and less.mean() > less.std(ddof=1) / np.sqrt(n)
        lines.append((theirs.mean() if n else np.nan, mine.mean() if n else np.nan, n, "shared" if clear else "alone"))
    table = pd.DataFrame(lines, columns=["shared", "alone", "rows", "uses"], index=pd.Index(federation.clients))
    return Guarded(table, shared, final)
