"""The rows that candidates are fitted to, and the losses of their scores."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Standardised training rows of all clients. ``y`` is (rows, outputs): a scaled target, or 0/1 per class.

    One output serves regression and two classes (the probability of the second); with more classes there is one
    output per class (softmax)."""

    X: Floats
    y: Floats
    owner: Ints
    n_clients: int
    classification: bool
    weight: Floats | None = None  # of numbers only, one on average

    @property
    def n_outputs(self) -> int:
        return int(self.y.shape[1])

    @cached_property
    def Z(self) -> Floats:
        """The features with a leading column of ones."""
        return np.hstack([np.ones((len(self.X), 1)), self.X])

    @cached_property
    def pooled(self) -> tuple[Floats, bool]:
        """One ridge model for all rows (1, 1 + features, outputs), and whether it converged."""
        from coterie.comparison.exact.candidates.path import POOLED_PATH, fit_units

        everybody = np.zeros(len(self.owner), np.int64)
        return fit_units(self.X, self.y, everybody, 1, POOLED_PATH, self.classification, self.weight)

    def part(self, keep: npt.NDArray[np.bool_]) -> "Rows":
        weight = None if self.weight is None else self.weight[keep]
        return Rows(self.X[keep], self.y[keep], self.owner[keep], self.n_clients, self.classification, weight)


def chances(eta: Floats) -> Floats:
    """Probabilities of outputs on the last axis: the second of two classes, or every class."""
    return np.asarray(expit(eta) if eta.shape[-1] == 1 else softmax(eta, axis=-1))


def losses(eta: Floats, y: Floats | float) -> Floats:
    """Log loss of scores for 0/1 outputs, both (…, outputs)."""
    if eta.shape[-1] == 1:
        return np.asarray((np.logaddexp(0, eta) - y * eta)[..., 0])
    top = eta.max(-1)
    return np.asarray(top + np.log(np.exp(eta - top[..., None]).sum(-1)) - (y * eta).sum(-1))
