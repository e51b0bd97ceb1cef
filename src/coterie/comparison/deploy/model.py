"""The deployed model: raw rows in, predictions with intervals out. It holds no training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from coterie.base.text import listed
from coterie.comparison.deploy.coding import Coding
from coterie.comparison.deploy.intervals import LEVEL, Intervals
from coterie.comparison.deploy.stack import Stack
from coterie.data.client_names import places
from coterie.data.coded_table import Floats, Ints
from coterie.errors import ConfigError, DataError

if TYPE_CHECKING:
    from coterie.comparison.deploy.statistics import Statistics

OF_ALL = ("constant", "together", "trees together")
OF_GROUPS = ("groups", "trees per group")
BASES = ("own", "group", "population", "covariates")


@dataclass(frozen=True, eq=False)
class TableModel:
    """What `Comparison.model` holds and `coterie.load_model` reads.

    ``client`` is the column of clients. ``about`` describes the model in plain values: the target, the expected loss, the
    number of rows and clients, and the columns that place new clients. ``statistics`` are the clients' sums, which
    `update` needs and predictions do not."""

    stack: Stack = field(repr=False)
    coding: Coding = field(repr=False)
    clients: tuple[str, ...] = field(repr=False)
    classes: tuple[Any, ...] | None
    intervals: Intervals = field(repr=False)
    client: str
    about: Mapping[str, Any]
    statistics: Statistics | None = field(default=None, repr=False)

    # ---- predictions -----------------------------------------------------------------------------------------------------

    def predict(self, frame: pd.DataFrame) -> pd.Series[Any]:
        """The expected target of every row, or its likeliest class; rows of raw columns, with the column of clients."""
        return self._answers(self.outputs(frame), frame)

    def predict_proba(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The probability of every class."""
        if self.classes is None:
            raise DataError("This model predicts numbers, which have no probabilities; use predict.")
        return pd.DataFrame(self.outputs(frame), index=frame.index, columns=list(self.classes))

    def predict_interval(self, frame: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
        """Columns `prediction`, `low` and `high`.

        For numbers, the target of a new row lies between low and high with the chance `level`. For classes, low and high
        bound the chance that the predicted class is right."""
        return self.table(frame, level)[["prediction", "low", "high"]]

    def table(self, frame: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
        """The column of clients, `prediction`, `low`, `high`, and `basis`: what the prediction of a row rests on.

        "own": mostly models of the client's own; "group": mostly models of its group; "population": models for all;
        "covariates": a client never seen, placed by columns that are constant per client."""
        if not 0.5 <= level < 1:
            raise ConfigError(f"level must lie between 0.5 and 1; got {level}. A common choice is 0.9.")
        outputs, owner = self.outputs(frame), self.owners(frame)
        if self.classes is None:
            low, high = self.intervals.numbers(outputs[:, 0], owner, level)
            judged_as = self.about.get("judged_as")
            low = np.maximum(low, 0) if judged_as in ("count", "amount", "share") else low
            high = np.minimum(high, 1) if judged_as == "share" else high
        else:
            low, high = self.intervals.chances(outputs, level)
        made = pd.DataFrame({"prediction": self._answers(outputs, frame), "low": low, "high": high}, index=frame.index)
        made["basis"] = self.basis(owner)
        made.insert(0, self.client, frame[self._client_column(frame)].to_numpy(), allow_duplicates=True)
        return made

    def outputs(self, frame: pd.DataFrame) -> Floats:
        """Expected targets (rows, 1), or probabilities (rows, classes)."""
        owner = self.owners(frame)
        with threadpool_limits(1, "blas"):  # the same numbers, whatever the number of threads
            return self.stack.outputs(self.coding.inputs(frame), owner)

    def owners(self, frame: pd.DataFrame) -> Ints:
        """The position of every row's client among `clients`; −1 for a client never seen."""
        values = frame[self._client_column(frame)]
        return places(self.clients, values, alike=bool(self.about.get("alike")))

    def basis(self, owner: Ints) -> np.ndarray:
        """What the predictions for these clients rest on."""
        names = list(self.stack.parts)
        kind = np.array([0 if n in OF_ALL else 1 if n in OF_GROUPS else 2 for n in names])
        shares = np.stack([self.stack.weights[:, kind == k].sum(1) for k in range(3)], 1)
        words = np.array(["population", "group", "own"], dtype=object)[shares.argmax(1)]
        words[-1] = "covariates" if self.about.get("covariates") else "population"
        return np.asarray(words[owner])

    def told(self, frame: pd.DataFrame) -> list[str]:
        """Sentences on rows that the model knows less about: of clients never seen, and with categories never seen."""
        found = []
        new = self.owners(frame) < 0
        if new.any():
            names = frame.loc[new, self._client_column(frame)].map(str).unique()
            by = "columns that are constant per client" if self.about.get("covariates") else "the population's model"
            found.append(
                f"{int(new.sum())} of {len(frame)} rows are of {len(names)} clients never seen ({listed(names, 3)}); "
                f"they are predicted by {by}."
            )
        for column, count in self.coding.unseen_categories(frame).items():
            found.append(f"{count} rows have a category in {column!r} that training did not see; it counts as none.")
        return found

    def _answers(self, outputs: Floats, frame: pd.DataFrame) -> pd.Series[Any]:
        if self.classes is None:
            return pd.Series(outputs[:, 0], index=frame.index, name="prediction")
        labels = pd.Series(list(self.classes))
        return pd.Series(labels.to_numpy()[outputs.argmax(1)], index=frame.index, name="prediction")

    def _client_column(self, frame: pd.DataFrame) -> Any:
        if not isinstance(frame, pd.DataFrame):
            raise DataError(f"The model needs a DataFrame of raw columns; got {type(frame).__name__}. Pass a table.")
        found = [c for c in frame.columns if str(c) == self.client]
        if not found:
            raise DataError(
                f"The model finds every row's client in the column {self.client!r}; the table lacks it. Add it."
            )
        return found[0]

    # ---- more rows, and files --------------------------------------------------------------------------------------------

    def update(self, frame: pd.DataFrame) -> TableModel:
        """A model that has also learned from these rows, which hold the target; see `statistics.updated`."""
        from coterie.comparison.deploy.statistics import updated

        return updated(self, frame, prior=True)

    def adapt(self, frame: pd.DataFrame) -> TableModel:
        """A model that knows the clients of these first rows, too. What was learned of all clients stays as it is."""
        from coterie.comparison.deploy.statistics import updated

        return updated(self, frame, prior=False)

    def save(self, path: str | Path) -> Path:
        """Write a folder that `coterie.load_model` reads: JSON and arrays with checksums, no pickle, no training rows."""
        from coterie.comparison.deploy.stored import save

        return save(self, Path(path))
