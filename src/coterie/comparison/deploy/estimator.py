"""The model to deploy as a scikit-learn estimator: `fit(X, y, clients=…)`.

It learns what `coterie.compare(…).model` holds, without the question of what is proven. With metadata routing enabled
(`sklearn.set_config(enable_metadata_routing=True)`) pipelines and searches hand `clients` on without further requests.
Without clients it refuses: all rows as one client would be another model."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from coterie.base.annotations import check_settings
from coterie.base.arguments import one_of
from coterie.comparison.deploy.coding import Coding
from coterie.comparison.deploy.fitted import fitted
from coterie.comparison.deploy.intervals import LEVEL
from coterie.comparison.deploy.model import TableModel
from coterie.comparison.exact.evaluation import FEWEST
from coterie.comparison.exact.levels import Blocks
from coterie.comparison.exact.plan import narrowed
from coterie.data.client_names import client_text, places
from coterie.data.coded_table import Floats, Ints, make_table
from coterie.data.preprocessing import MANY, fit_preprocessing, most_categories
from coterie.errors import ConfigError, DataError
from coterie.estimation.conventions import columns, target

_ROUTED = {"clients": True}
_CLIENT, _TARGET = "client", "target"


class _Coterie(BaseEstimator):  # type: ignore[misc]
    __metadata_request__fit: ClassVar[dict[str, bool]] = _ROUTED
    __metadata_request__predict: ClassVar[dict[str, bool]] = _ROUTED
    __metadata_request__score: ClassVar[dict[str, bool]] = _ROUTED

    def __init__(
        self,
        *,
        client: str | None = None,
        family: Annotated[str, one_of("auto", "linear", "trees")] = "auto",
        random_state: int = 0,
    ) -> None:
        self.client = client
        self.family = family
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, clients: Any, kind: str) -> Self:
        check_settings(self)
        goal = target(self, y)
        rows, owners = self._parted(X, clients, reset=True)
        if isinstance(rows, pd.DataFrame):
            validate_data(self, rows, skip_check_array=True, reset=True)
            several = kind == "classification" and len(np.unique(goal)) > 2
            most = MANY if several else most_categories(len(rows))
            plan = fit_preprocessing(rows, list(rows.columns), np.arange(len(rows)), max_categories=most)
            coding = Coding(plan, tuple(plan.loc[plan["kind"] != "dropped", "column"]), "float64")
            values: Floats = coding.inputs(rows)
        else:
            values = columns(self, rows, reset=True)
            coding = Coding(None, tuple(f"x{j}" for j in range(values.shape[1])), "float64")
        if len(goal) != len(values) or len(owners) != len(values):
            raise DataError(
                f"X, y and clients must have one entry per row; got {len(values)}, {len(goal)} and {len(owners)}. "
                "Pass as many."
            )
        if not values.shape[1]:
            raise DataError("No column of X varies, so there is nothing to learn from. Pass one that does.")
        if len(np.unique(goal)) < 2:
            raise DataError(
                "The target needs at least 2 values; got one class, or one number in all rows. Pass more rows."
            )
        sizes = owners.map(client_text).value_counts()
        if (sizes >= FEWEST).sum() < 2:
            raise DataError(
                f"At least 2 clients need {FEWEST} rows each; got n_samples={len(values)} of {len(sizes)} client(s), the "
                f"largest with {sizes.max()}. Pass more."
            )
        table = make_table(values, goal, owners.map(client_text), kind, coding.names)
        blocks = Blocks.of(coding.plan)
        table, projection, _ = narrowed(table, blocks)
        coding = replace(coding, projection=projection, blocks=blocks if table.levels else None)
        column = _CLIENT if self.client is None else self.client
        name = str(getattr(y, "name", None) or _TARGET)
        self.model_, self.deploy_ = fitted(table, coding, column, name, self.family, self.random_state)  # type: ignore[arg-type]
        return self

    def _parted(self, X: Any, clients: Any, reset: bool = False) -> tuple[Any, pd.Series[Any]]:
        """The rows without the column of clients, and every row's client."""
        if clients is None and self.client is None:
            columns(self, X, reset=reset)  # what is wrong with X comes first
            raise ConfigError(
                f"{type(self).__name__} needs the client of every row. Pass clients=…, name their column with client=…, or, "
                "in pipelines and searches, pass clients and call sklearn.set_config(enable_metadata_routing=True)."
            )
        if clients is not None:
            return X, pd.Series(np.asarray(clients).ravel())
        if not isinstance(X, pd.DataFrame) or self.client not in X.columns:
            raise DataError(f"client={self.client!r} must name a column of a DataFrame X; X has none. Pass clients=….")
        return X.drop(columns=self.client), X[self.client].reset_index(drop=True)

    def _coded(self, X: Any, clients: Any) -> tuple[Floats, Ints]:
        check_is_fitted(self)
        rows, owners = self._parted(X, clients)
        model: TableModel = self.model_
        if model.coding.plan is not None:
            if not isinstance(rows, pd.DataFrame):
                raise DataError("The estimator was fitted to a DataFrame; predict needs one with the same columns.")
            values: Floats = model.coding.inputs(rows)
        else:
            values = columns(self, rows, reset=False)
            projection = model.coding.projection
            values = values if projection is None else projection.columns(values)
        if len(owners) != len(values):
            raise DataError(f"X and clients must have one entry per row; got {len(values)} and {len(owners)}.")
        return values, places(model.clients, owners)

    def _outputs(self, X: Any, clients: Any) -> tuple[Floats, Ints]:
        values, owner = self._coded(X, clients)
        return self.model_.stack.outputs(values, owner), owner

    def basis(self, X: Any, clients: ArrayLike | None = None) -> np.ndarray:
        """What every prediction rests on: "own", "group", "population" or "covariates"."""
        return np.asarray(self.model_.basis(self._coded(X, clients)[1]))


class CoterieRegressor(RegressorMixin, _Coterie):  # type: ignore[misc]
    """A number per row, from every client's own rows and those of the others.

    client: the name of the column of clients in a DataFrame X; or pass `clients` to `fit` and `predict`.
    family: "linear", "trees" (boosted) or "auto" for both. `model_` can be saved; `deploy_` holds the expected losses."""

    def fit(self, X: Any, y: Any, clients: ArrayLike | None = None) -> Self:
        """X: rows of numbers, or a DataFrame of numbers and categories."""
        return self._fit(X, y, clients, "regression")

    def predict(self, X: Any, clients: ArrayLike | None = None) -> Floats:
        """Clients never seen get what left-out clients of the training rows got."""
        return np.asarray(self._outputs(X, clients)[0][:, 0])

    def predict_interval(self, X: Any, clients: ArrayLike | None = None, level: float = LEVEL) -> Floats:
        """Bounds (rows, 2) that hold the target of a new row with the chance `level`."""
        outputs, owner = self._outputs(X, clients)
        return np.stack(self.model_.intervals.numbers(outputs[:, 0], owner, level), 1)

    def score(self, X: Any, y: Any, clients: ArrayLike | None = None, sample_weight: Any = None) -> float:
        """R²."""
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))


class CoterieClassifier(ClassifierMixin, _Coterie):  # type: ignore[misc]
    """A class per row, from every client's own rows and those of the others; see `CoterieRegressor`."""

    __metadata_request__predict_proba: ClassVar[dict[str, bool]] = _ROUTED

    def fit(self, X: Any, y: Any, clients: ArrayLike | None = None) -> Self:
        """X: rows of numbers, or a DataFrame of numbers and categories; y: labels."""
        labels = target(self, y)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        return self._fit(X, y, clients, "classification")

    def predict_proba(self, X: Any, clients: ArrayLike | None = None) -> Floats:
        """The probability of every class in `classes_`."""
        return self._outputs(X, clients)[0]

    def predict(self, X: Any, clients: ArrayLike | None = None) -> np.ndarray:
        """The likeliest class."""
        likeliest = self.predict_proba(X, clients).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def score(self, X: Any, y: Any, clients: ArrayLike | None = None, sample_weight: Any = None) -> float:
        """Accuracy."""
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))
