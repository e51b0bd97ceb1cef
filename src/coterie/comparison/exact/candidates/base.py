"""The interface of all candidates. They are linear in the columns, and differ in which clients share coefficients."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from coterie.comparison.exact.candidates.rows import Floats, Ints, Rows, chances


@dataclass(frozen=True)
class Fit:
    """Fitted coefficients on standardised rows.

    ``coef[of_client[i]]`` (1 + features, outputs) serves client i, ``population`` a client never seen. ``spread``
    holds a client's posterior covariance per output (clients, outputs, p, p); a probability is then averaged over it.
    ``notes`` are sentences about problems of the fit."""

    coef: Floats
    of_client: Ints
    population: Floats
    classification: bool
    spread: Floats | None = None
    notes: tuple[str, ...] = ()
    details: dict[str, Floats] = field(default_factory=dict)

    def client_coefficients(self) -> Floats:
        """(clients, 1 + features, outputs)."""
        return np.asarray(self.coef[self.of_client])

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        """Regression: (rows, 1). Classes: probabilities (rows, classes). An owner of −1 is a client never seen."""
        known = owner >= 0
        Z = np.hstack([np.ones((len(X), 1)), X])
        coef = np.concatenate([self.coef, self.population[None]])
        which = np.where(known, self.of_client[np.maximum(owner, 0)], len(self.coef))
        eta = np.stack([np.einsum("np,np->n", Z, coef[which, :, j]) for j in range(coef.shape[2])], 1)
        if not self.classification:
            return eta
        if self.spread is not None:
            eta = eta / np.sqrt(1 + np.pi / 8 * self._variance(Z, owner))
        chance = chances(eta)
        return np.hstack([1 - chance, chance]) if chance.shape[1] == 1 else chance

    def _variance(self, Z: Floats, owner: Ints) -> Floats:
        assert self.spread is not None
        variance = np.zeros((len(Z), self.spread.shape[1]))
        order = np.argsort(owner, kind="stable")
        order = order[owner[order] >= 0]
        for some in np.array_split(order, max(1, len(order) * Z.shape[1] ** 2 // 4_000_000 + 1)):
            covariance = self.spread[owner[some]]
            variance[some] = np.einsum("np,nqpr,nr->nq", Z[some], covariance, Z[some], optimize=True)
        return np.maximum(variance, 0)


class Candidate(Protocol):
    """A way to learn. `fit` sees training rows and owners only, and starts from no other fit: the fit of another fold has
    seen the rows that this fold is judged on, and the result of a search that stops early depends on its start."""

    @property
    def name(self) -> str: ...

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit: ...


def mean_coefficients(rows: Rows) -> Floats:
    """The overall average as coefficients (1 + features, outputs); classes are smoothed by half a row each."""
    coef = np.zeros((1 + rows.X.shape[1], rows.n_outputs))
    if rows.classification:
        rate = (rows.y.sum(0) + 0.5) / (len(rows.y) + max(1.0, rows.n_outputs / 2))
        coef[0] = np.log(rate / (1 - rate)) if rows.n_outputs == 1 else np.log(rate) - np.log(rate).mean()
    else:
        coef[0] = np.average(rows.y, axis=0, weights=rows.weight)
    return coef
