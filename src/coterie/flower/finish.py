"""The end of a run at a site: every client's model, group and scores, in a folder that `Result.load` reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.base.disk import private_folder, write_text
from coterie.engines.base import Env
from coterie.exchange.messages import Ints
from coterie.learning import module_json, predictors
from coterie.training import files
from coterie.training.evaluation import Evaluation

COLUMNS = "columns.json"  # how new rows are prepared for the models


@dataclass(frozen=True)
class HereAlone(Evaluation):
    """The evaluation of the clients whose rows are here."""

    own: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def everyone(self) -> Ints:
        return self.own


def keep_results(algorithm: Any, env: Env, state: Any, own: Ints, engine: Any, folder: Path) -> dict[str, list[float]]:
    """Write the result of the clients here; returns the sum of every test score and the number of clients that have it."""
    live = HereAlone(algorithm, env.federation, env.task, state, env, engine, own=own)
    table = live.scores(own).reset_index(drop=True)
    told = {m: [float(table[m].sum()), int(table[m].notna().sum())] for m in env.task.metrics}
    fed, groups = env.federation, live.clusters()
    table = table.assign(alone=np.nan, gain=np.nan, cluster=groups, n_train=fed.n_train[own], n_test=fed.n_test[own])
    models = live.personal(own)
    tensors = {f"model/{k}": t for k, t in models.items()} | {"model_of": torch.arange(len(own))}
    about: dict[str, Any] = {
        "algorithm": repr(algorithm), "seed": env.seed, "rounds": env.round, "finished": True, "yardstick": "none",
        "architecture": module_json.describe(env.task.skeleton), "metrics": list(env.task.metrics),
        "clients": fed.clients[own].tolist(), "clusters": groups.tolist(), "heading": "none",
    }  # fmt: skip
    if (special := algorithm.predictor()) is not None:
        about["predictor"] = predictors.describe(special)
    private_folder(folder)
    plan = None if fed.preprocessing is None else json.loads(fed.preprocessing.to_json(orient="records"))
    write_text(folder / COLUMNS, json.dumps({"columns": plan, "classes": fed.classes}), private=True)
    files.save(folder, about, tensors, pd.DataFrame({"round": np.arange(1, env.round + 1)}), table)
    return told
