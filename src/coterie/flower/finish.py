"""The end of a run at a site: every client's model, group and scores, in a folder that `Result.load` reads."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.base.disk import private_folder, write_text
from coterie.engines.base import Env
from coterie.errors import CoterieError
from coterie.evidence.gains import paired_gains
from coterie.evidence.participation import Participation, Settings
from coterie.evidence.participation import participation as audited
from coterie.exchange.messages import Ints
from coterie.flower.job import Job
from coterie.learning import module_json, predictors
from coterie.learning.local_steps import LocalSteps
from coterie.training import files
from coterie.training.cohorts import sampler
from coterie.training.evaluation import Evaluation
from coterie.training.private_run import participation
from coterie.training.result import Result
from coterie.training.row_losses import losses_of
from coterie.training.yardstick import Alone

log = logging.getLogger("coterie.flower")

COLUMNS = "columns.json"  # how new rows are prepared for the models


@dataclass(frozen=True)
class HereAlone(Evaluation):
    """The evaluation of the clients whose rows are here."""

    own: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def everyone(self) -> Ints:
        return self.own


def keep_results(
    algorithm: Any, env: Env, state: Any, own: Ints, engine: Any, folder: Path, alone: Result | None = None
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Write the result of the clients here, with their gains over training alone. Returns the sum of every test score with
    the number of clients that have it, and how many clients would stay."""
    live = HereAlone(algorithm, env.federation, env.task, state, env, engine, own=own)
    table = live.scores(own).reset_index(drop=True)
    told = {m: [float(table[m].sum()), int(table[m].notna().sum())] for m in env.task.metrics}
    fed, groups = env.federation, live.clusters()
    table = table.assign(alone=np.nan, gain=np.nan)
    audit = None if alone is None else _audit(live, alone, table)
    if audit is not None:
        table["alone"], table["gain"] = (audit.table[name].to_numpy() for name in ("alone", "gain"))
    table = table.assign(cluster=groups, n_train=fed.n_train[own], n_test=fed.n_test[own])
    models = live.personal(own)
    tensors = {f"model/{k}": t for k, t in models.items()} | {"model_of": torch.arange(len(own))}
    how = "none" if audit is None else "tuned"
    about: dict[str, Any] = {
        "algorithm": repr(algorithm), "seed": env.seed, "rounds": env.round, "finished": True, "yardstick": how,
        "architecture": module_json.describe(env.task.skeleton), "metrics": list(env.task.metrics),
        "clients": fed.clients[own].tolist(), "clusters": groups.tolist(), "heading": how,
    }  # fmt: skip
    if (special := algorithm.predictor()) is not None:
        about["predictor"] = predictors.describe(special)
    private_folder(folder)
    plan = None if fed.preprocessing is None else json.loads(fed.preprocessing.to_json(orient="records"))
    write_text(folder / COLUMNS, json.dumps({"columns": plan, "classes": fed.classes}), private=True)
    files.save(folder, about, tensors, pd.DataFrame({"round": np.arange(1, env.round + 1)}), table)
    if audit is None:
        return told, {}
    known = audit.table["gain"].notna()
    stay = {"leave": len(audit.leavers), "stay": int(known.sum()) - len(audit.leavers), "unknown": int((~known).sum())}
    return told, stay | {"gain": float(audit.table["gain"].sum())}


def trained_alone(job: Job, env: Env, own: Ints, engine: Any) -> Result | None:
    """The clients here trained alone, with no exchange: each chooses rate and stopping time on its own validation rows."""
    local, fed = getattr(job.algorithm, "local", None), env.federation
    if not (job.alone and isinstance(local, LocalSteps) and fed.n_test[own].any()):
        return None
    _, expected = participation(sampler(job.cohort), len(fed))
    rounds = min(env.round, max(round(env.round * expected / len(fed)), 1))
    some = fed.subset([fed.clients[i] for i in own])
    try:
        return Alone(local, some, env.task, rounds, env.seed, engine)()
    except CoterieError as error:
        log.warning("the clients here could not be trained alone: %s", error)
        return None


def _audit(live: HereAlone, alone: Result, table: pd.DataFrame) -> Participation:
    """Who would stay, by the test rows of the clients here."""
    task, own, n_test = live.task, live.own, live.federation.n_test
    metric, sign = task.metrics[0], task.sign
    score, base = table[metric].to_numpy()[None], alone.scores()[metric].to_numpy()[None]
    rows = [b - a for a, b in zip(losses_of(live), losses_of(alone.evaluation), strict=True)]
    gains = paired_gains(rows, sign * (score - base), n_test[own][None], metric)
    return audited(
        score, base, gains, live.federation.clients[own], sign < 0, Settings(),
        metric=metric, method=type(live.algorithm).__name__, results=(), alone=(), search=lambda *_: None,
    )  # fmt: skip
