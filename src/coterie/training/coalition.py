"""Who would stay, and which groups of clients would hold, when every group is trained by the same algorithm as all together.

`audit` compares runs with the same clients trained alone; `evidence/participation.py` judges.

Leavers leave one at a time, worst first, and the rest is trained again; groups found in the clients' gradients, neighbours
of lone clients and greedy merges are tried as coalitions of their own. The search, its statistical rule and its limits are
in `evidence/coalitions`; here a training is `Result.again` with some of the clients, and test rows judge, which the
gradients (of training rows) never saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from coterie.algorithms.fedavg import FedAvg
from coterie.base.tree import Params, Tree
from coterie.engines.devices import Holding
from coterie.errors import ConfigError, DataError
from coterie.evidence.coalitions.find import find
from coterie.evidence.coalitions.search import SPLIT_Z, Block
from coterie.evidence.coalitions.search import Settings as SearchSettings
from coterie.evidence.gains import FEWEST, Floats, paired_gains, several_splits, widening
from coterie.evidence.participation import Coalition, Participation, Rule, Settings, participation
from coterie.exchange.messages import Context
from coterie.learning.local_sgd import LocalSGD
from coterie.training.row_losses import pool, pooled_rows, row_losses, row_names

if TYPE_CHECKING:
    from coterie.training.result import Result


def audit(
    results: Result | Sequence[Result],
    *,
    level: float = 0.9,
    rule: Rule = "interval",
    fewest: int = FEWEST,
    seed: int = 0,
) -> Participation:
    """Compare every client's score with its score alone.

    results: one run, or several of the same clients (one per seed or split). rule: a client with at least `fewest` test rows
    leaves when the whole interval of its gain is below zero and the loss is worth it ("interval"), or as soon as its gain
    is negative ("mean").
    """
    runs = tuple(results) if isinstance(results, Sequence) else (results,)
    if not runs:
        raise ConfigError("A participation audit needs at least one result; got none.")
    return judge(runs, tuple(_alone(run) for run in runs), Settings(level, rule, fewest, seed))


def _alone(run: Result) -> Result:
    if run.loaded:
        raise ConfigError("A loaded result has no participation audit. Audit the result that fit returned.")
    alone = run.alone()
    if alone is None:
        raise ConfigError(
            f"There is nothing to compare {type(run.evaluation.algorithm).__name__} with: the clients were not trained "
            "alone. Call fit with alone=True, or with alone=fit(Local(…), federation, …) for an algorithm without local "
            "steps."
        )
    return alone


def judge(runs: tuple[Result, ...], alone: tuple[Result, ...], settings: Settings) -> Participation:
    """The audit of runs against given runs alone, which may have more clients."""
    live = runs[0].evaluation
    clients, metric, sign = runs[0].clients, live.task.metrics[0], live.task.sign
    if any(not run.clients.equals(clients) for run in runs):
        raise DataError("The audited runs must have the same clients in the same order. Split rows, not clients.")
    score, base = (
        np.stack([run.scores().iloc[:, 0].loc[list(clients)].to_numpy(np.float64) for run in group])
        for group in (runs, alone)
    )
    names = row_names(runs) if len(runs) > 1 else None
    rows = [b - a for a, b in zip(pooled_rows(runs, names), _among(alone, clients, names), strict=True)]
    gains = paired_gains(rows, sign * (score - base), np.stack([run.federation.n_test for run in runs]), metric)
    return participation(
        score, base, gains, clients, sign < 0, settings,
        metric=metric, method=type(live.algorithm).__name__, results=runs, alone=alone, search=find_coalition,
    )  # fmt: skip


def _among(runs: Sequence[Result], clients: pd.Index[Any], names: list[list[np.ndarray]] | None) -> list[Floats]:
    """Pooled row losses of some of the clients of runs."""
    place = [int(i) for i in runs[0].clients.get_indexer(clients)]
    return pool([[losses[i] for i in place] for losses in map(row_losses, runs)], names)


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

    alone, s = _among(audit.alone, audit.table.index, names), audit.settings
    sizes = np.stack([run.federation.n_test for run in runs])
    widen = widening(audit.metric, several_splits(np.array([len(rows) for rows in alone], np.float64), sizes))
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
