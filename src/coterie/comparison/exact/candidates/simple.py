"""The candidates without a population model: the overall average, every client alone, and one model for all."""

from dataclasses import dataclass

import numpy as np

from coterie.comparison.exact.candidates.axes import Path
from coterie.comparison.exact.candidates.base import Fit, mean_coefficients
from coterie.comparison.exact.candidates.path import ALONE_LINEAR, ALONE_LOGISTIC, fit_units
from coterie.comparison.exact.candidates.rows import Rows

_STOPPED = "{} stopped before it converged."


@dataclass(frozen=True)
class Constant:
    """The overall average of the training rows. A method that does not beat it has learned nothing."""

    name: str = "constant"

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        coef = mean_coefficients(rows)
        return Fit(coef[None], np.zeros(rows.n_clients, np.int64), coef, rows.classification)


@dataclass(frozen=True)
class Alone:
    """A ridge model per client on its own rows; penalties averaged by their leave-one-out loss."""

    name: str = "alone"

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        path = Path(ALONE_LOGISTIC if rows.classification else ALONE_LINEAR, per_row=False, average=True)
        coef, converged = fit_units(rows.X, rows.y, rows.owner, rows.n_clients, path, rows.classification, rows.weight)
        mean = mean_coefficients(rows)
        coef = np.where(np.isnan(coef), mean, coef)
        notes = () if converged else (_STOPPED.format("A lone model"),)
        return Fit(coef, np.arange(rows.n_clients), mean, rows.classification, notes=notes)


@dataclass(frozen=True)
class Together:
    """One ridge model for all rows; the penalty with the lowest leave-one-out loss."""

    name: str = "together"

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        coef, converged = rows.pooled
        notes = () if converged else (_STOPPED.format("The model for all"),)
        return Fit(coef, np.zeros(rows.n_clients, np.int64), coef[0], rows.classification, notes=notes)
