"""The last value of every client: what a forecast must beat."""

from dataclasses import dataclass

import numpy as np

from coterie.comparison.exact.candidates.base import Fit, mean_coefficients
from coterie.comparison.exact.candidates.rows import Rows

_PRIOR_ROWS = 1.0  # of the classes' overall shares, added to how often a class follows a class


@dataclass(frozen=True)
class LastValue:
    """Every client's last row, of rows in the order of time. With classes: how often each class follows the last one."""

    name: str = "last value"

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        mean = mean_coefficients(rows)
        coef = np.repeat(mean[None], rows.n_clients, axis=0)
        coef[:, 1:] = 0.0
        order = np.argsort(rows.owner, kind="stable")
        owner = rows.owner[order]
        ends = np.append(owner[1:] != owner[:-1], True)
        if not rows.classification:
            coef[owner[ends], 0] = rows.y[order][ends]
            return Fit(coef, np.arange(rows.n_clients), mean, False)
        y = rows.y if rows.n_outputs > 1 else np.hstack([1 - rows.y, rows.y])
        y, same = y[order], owner[1:] == owner[:-1]
        share = (y.sum(0) + 0.5) / (y.sum() + 0.5 * y.shape[1])
        follows = y[:-1][same].T @ y[1:][same] + _PRIOR_ROWS * share
        chance = np.log(follows / follows.sum(1, keepdims=True))
        scores = chance - chance.mean(1, keepdims=True) if rows.n_outputs > 1 else chance[:, 1:] - chance[:, :1]
        coef[owner[ends], 0] = y[ends] @ scores
        return Fit(coef, np.arange(rows.n_clients), mean, True)
