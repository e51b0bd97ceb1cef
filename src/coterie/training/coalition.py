"""Which groups of clients would hold, when every group is trained by the same algorithm as all together.

Leavers leave one at a time, worst first, and the rest is trained again; groups found in the clients' gradients, neighbours
of lone clients and greedy merges are tried as coalitions of their own. The search, its statistical rule and its limits are
in `evidence/coalitions`; here a training is `Result.again` with some of the clients, and test rows judge, which the
gradients (of training rows) never saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from coterie.algorithms.fedavg import FedAvg
from coterie.engines.devices import Holding
from coterie.errors import ConfigError
from coterie.evidence.coalitions.find import find
from coterie.evidence.coalitions.search import SPLIT_Z, Block
from coterie.evidence.coalitions.search import Settings as SearchSettings
from coterie.evidence.gains import Floats, widening
from coterie.exchange.messages import Context
from coterie.learning.local_sgd import LocalSGD
from coterie.training.participation import Coalition, Participation, judge, several_splits
from coterie.training.row_losses import pool, row_losses, row_names
from coterie.tree import Params, Tree

if TYPE_CHECKING:
    from coterie.training.result import Result


def find_coalition(
    audit: Participation, max_rounds: int | None = None, *, brings: bool = False, thorough: bool = False
) -> Coalition:
    """See `Participation.coalition`."""
    if max_rounds is not None and max_rounds < 1:
        raise ConfigError(f"max_rounds must be at least 1; got {max_rounds}.")
    if len(audit.table) < 2:
        raise ConfigError("A coalition needs at least two clients; got one.")
    runs, clients = audit.results, list(audit.table.index)
    names = row_names(runs) if len(runs) > 1 else None
    kept: dict[Block, tuple[Result, ...]] = {frozenset(range(len(clients))): runs}

    def train(block: Block) -> list[Floats | None]:
        members = sorted(block)
        if block not in kept:
            some = [clients[i] for i in members]
            kept[block] = tuple(run.again(run.federation.subset(some)) for run in runs)
        mine = None if names is None else [[own[i] for i in members] for own in names]
        rows = pool([row_losses(run) for run in kept[block]], mine)
        parts: list[Floats | None] = [None] * len(clients)
        for i, losses in zip(members, rows, strict=True):
            parts[i] = losses
        return parts

    place = [int(i) for i in audit.alone[0].clients.get_indexer(pd.Index(clients))]
    alone = pool([[losses[i] for i in place] for losses in map(row_losses, audit.alone)], names)
    s = audit.settings
    widen = widening(audit.metric, several_splits(runs, np.array([len(rows) for rows in alone])))
    settings = SearchSettings(s.level, s.fewest, audit.worth, SPLIT_Z, departures=max_rounds, widen=widen)
    found = find(
        train, alone, lambda: shared_gradients(runs[0]), clients, settings,
        brings=brings, thorough=thorough, seed=s.seed,
    )  # fmt: skip
    steps = [audit]
    if found.groups and not found.together:
        main = frozenset(clients.index(c) for c in found.groups[0])
        train(main)
        steps.append(judge(kept[main], audit.alone, s))
    return Coalition(tuple(steps), found)


def shared_gradients(run: Result) -> Floats:
    """The gradient of every client's training loss at a shared model: that of the run, or of a FedAvg run of equal length
    if the run gives clients personal models."""
    live = run.evaluation
    local = getattr(live.algorithm, "local", None)
    one = len(next(iter(live.distinct_models()[0].values()))) == 1
    if not one and isinstance(local, LocalSGD):
        from coterie.training.run import fit

        live = fit(
            FedAvg(local), live.federation, live.task, rounds=max(int(run.about["rounds"]), 1), seed=live.env.seed,
            engine=live.engine, alone=False, progress=False,
        ).evaluation  # fmt: skip
    everyone = live.ready(live.everyone())
    models = live.personal(everyone)
    centre = {name: t.mean(0) for name, t in models.items()}

    def gradient(ctx: Context, model: Params) -> Tree:
        return dict(ctx.grad(model))

    tree: Any = live.engine.map(Holding(gradient, centre), everyone, live.env, test=False)
    return np.concatenate([t.reshape(len(everyone), -1).double().numpy() for t in tree.values()], axis=1)
