"""Models fitted to parts of a table, in its units."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.comparison.exact.candidates import Candidate, Fit, Rows
from coterie.data.coded_table import Floats, Ints, Table


@dataclass(frozen=True)
class Scaling:
    """Centre and scale learned on training rows. A constant column is sent to zero."""

    mean: Floats
    inverse: Floats
    y_mean: Floats
    y_scale: Floats

    def columns(self, X: Floats) -> Floats:
        return np.asarray((X - self.mean) * self.inverse)

    def target(self, outputs: Floats) -> Floats:
        return np.asarray((outputs - self.y_mean) / self.y_scale)


def learn_scaling(X: Floats, outputs: Floats, classification: bool) -> Scaling:
    mean, size = X.mean(0), np.abs(X).max(0, initial=0)
    sd = np.sqrt(((X - mean) ** 2).mean(0))
    inverse = np.where(sd > 1e-10 * size, 1 / np.where(sd > 0, sd, 1.0), 0.0)
    if classification:
        return Scaling(mean, inverse, np.zeros(outputs.shape[1]), np.ones(outputs.shape[1]))
    scale = outputs.std(0)
    return Scaling(mean, inverse, outputs.mean(0), np.where(scale > 0, scale, 1.0))


@dataclass(frozen=True)
class Model:
    """A fitted candidate in the units of the table."""

    scaling: Scaling
    fit: Fit

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        """Predicted targets (rows, 1) or probabilities (rows, classes); owner −1 is a client never seen."""
        raw = self.fit.outputs(self.scaling.columns(X), owner)
        return raw if self.fit.classification else raw * self.scaling.y_scale + self.scaling.y_mean


def learn(
    table: Table,
    keep: npt.NDArray[np.bool_],
    candidates: dict[str, Candidate],
    rng: np.random.Generator,
) -> dict[str, Model]:
    """Fit every candidate to the rows marked in ``keep``; nothing else is seen."""
    classification = table.classes is not None
    outputs = table.outputs()[keep]
    scaling = learn_scaling(table.X[keep], outputs, classification)
    rows = Rows(
        scaling.columns(table.X[keep]), scaling.target(outputs), table.owner[keep], table.n_clients, classification
    )
    return {name: Model(scaling, candidate.fit(rows, rng)) for name, candidate in candidates.items()}
