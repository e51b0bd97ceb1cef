"""Predictions at a site for new rows, by the models that the newest run left there; nothing leaves."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from coterie.base.text import listed
from coterie.data.preprocessing import PLAN_COLUMNS, apply_preprocessing
from coterie.data.reading import read_table
from coterie.errors import ConfigError, DataError
from coterie.flower.finish import COLUMNS
from coterie.flower.roles.site import APPROVED
from coterie.training.result import Result

MODELS = "models.json"  # of a study
Scores = Callable[[str, npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""A client's model on prepared rows: a number per row, or one per row and class."""


def predicted(folder: Path, new: Path, client: str | None = None) -> pd.DataFrame:
    """A prediction for each row; of classes also their chances."""
    results = sorted(folder.glob("*/result"), key=lambda path: path.stat().st_mtime)
    if not results:
        raise ConfigError(f"{folder} has no results yet: no run has been finished here. Name a site's folder.")
    column = tomllib.loads((folder / APPROVED).read_text("utf-8"))["data"]["client"]
    frame = read_table(new, client=column if client is None else None)
    owners = pd.Series(client, index=frame.index) if client is not None else frame[column].astype(str)
    about, known, scores = _trained(results[-1]) if (results[-1] / COLUMNS).exists() else _studied(results[-1])
    if foreign := sorted(set(owners) - set(known)):
        raise DataError(
            f"This site has models of {listed(sorted(known))}; the rows are of {listed(foreign)}. Check them."
        )
    if about["columns"] is None:
        raise ConfigError('Every client scaled its own rows (scaling = "own"), so new rows cannot be prepared here.')
    plan = pd.DataFrame(about["columns"], columns=list(PLAN_COLUMNS)).astype(
        dict.fromkeys(("fill", "mean", "scale"), float)
    )
    x = apply_preprocessing(frame, plan, dtype="float64")
    classes = about["classes"]
    made = np.zeros((len(frame), len(classes) if classes else 1))
    for owner in sorted(set(owners)):
        rows = (owners == owner).to_numpy()
        made[rows] = scores(owner, x[rows]).reshape(rows.sum(), -1)
    if not classes:
        return pd.DataFrame({column: owners, "prediction": made[:, 0]})
    best = [classes[i] for i in made.argmax(1)]
    return pd.DataFrame(
        {column: owners, "prediction": best} | {f"chance {c}": made[:, i] for i, c in enumerate(classes)}
    )


def _trained(folder: Path) -> tuple[dict[str, Any], set[str], Scores]:
    """A training's models of the clients here."""
    about, result = json.loads((folder / COLUMNS).read_text("utf-8")), Result.load(folder)

    def scores(client: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        model = result.model(client).eval()
        with torch.no_grad():
            out = model(torch.from_numpy(x).to(next(model.parameters()).dtype)).double()
        return np.asarray((out.softmax(1) if about["classes"] else out).numpy())

    return about, {str(c) for c in result.clients}, scores


def _studied(folder: Path) -> tuple[dict[str, Any], set[str], Scores]:
    """A study's models, by the way that it recommends."""
    about = json.loads((folder / MODELS).read_text("utf-8"))

    def scores(client: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        ways = about["clients"][client]
        model = ways.get(about["use"], ways["alone"])
        made = model["intercept"] + x @ np.array(list(model["coefficients"].values()))
        chance = 1 / (1 + np.exp(-made))
        return np.column_stack([1 - chance, chance]) if about["classes"] else np.asarray(made)

    return about, set(about["clients"]), scores
