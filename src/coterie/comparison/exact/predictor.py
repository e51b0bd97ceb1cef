"""Final fits on all rows, with the names and units of the user's table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from coterie.comparison.exact.candidates import CANDIDATES
from coterie.comparison.exact.candidates.rows import Floats
from coterie.comparison.exact.fitting import Model, learn
from coterie.data.client_names import client_text, places
from coterie.data.coded_table import Table
from coterie.errors import DataError


@dataclass(frozen=True)
class Predictor:
    """One method fitted to all rows; it holds none of them. A client it has never seen gets the population's model."""

    name: str
    model: Model = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    clients: pd.Index[Any] = field(repr=False)
    classes: pd.Index[Any] | None = field(repr=False)

    def outputs(self, X: Any, clients: Any) -> Floats:
        """Predicted targets (rows, 1), or probabilities (rows, classes) in the order of the sorted labels."""
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.names):
            raise DataError(f"X must have {len(self.names)} columns, as in training, but has shape {values.shape}.")
        owner = places(map(client_text, self.clients), pd.Series(np.asarray(clients)))
        return self.model.outputs(values, owner)

    def predict(self, X: Any, clients: Any) -> np.ndarray:
        """Predicted targets, or the likeliest class of every row."""
        outputs = self.outputs(X, clients)
        if self.classes is None:
            return np.asarray(outputs[:, 0])
        return np.asarray(self.classes.to_numpy()[outputs.argmax(1)])

    def predict_proba(self, X: Any, clients: Any) -> Floats:
        if self.classes is None:
            raise DataError("A regression has no probabilities; use predict.")
        return self.outputs(X, clients)

    def coefficients(self) -> pd.DataFrame:
        """Clients × (intercept and columns) in the units of the table; with several classes × classes."""
        scaling, coef = self.model.scaling, self.model.fit.client_coefficients()
        slope = coef[:, 1:] * scaling.inverse[None, :, None] * scaling.y_scale
        intercept = coef[:, 0] * scaling.y_scale + scaling.y_mean - (slope * scaling.mean[None, :, None]).sum(1)
        values = np.concatenate([intercept[:, None], slope], 1)  # (clients, 1 + features, outputs)
        columns = pd.Index(["intercept", *self.names])
        if values.shape[2] == 1:
            return pd.DataFrame(values[..., 0], index=self.clients, columns=columns)
        assert self.classes is not None
        both = pd.MultiIndex.from_product([self.classes, columns], names=["class", "column"])
        return pd.DataFrame(values.transpose(0, 2, 1).reshape(len(values), -1), index=self.clients, columns=both)


def learn_all(table: Table, seed: int) -> dict[str, Predictor]:
    """Every candidate fitted to all rows."""
    models = learn(table, np.ones(len(table.y), bool), CANDIDATES, np.random.default_rng([seed, 3]))
    return {name: Predictor(name, model, table.names, table.clients, table.classes) for name, model in models.items()}
