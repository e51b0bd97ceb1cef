"""Coalitions of a table: one ridge regression per coalition, from sums of the clients' Gram matrices.

The model of a coalition is pooled ridge with an intercept; its penalty is chosen on the other folds, again from Gram
matrices, so that a training costs a handful of small linear systems however many rows there are. Targets are numbers, or
0/1 per class (the loss is then the Brier score)."""

from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.comparison.exact.candidates.rows import Floats
from coterie.comparison.exact.folds import deal
from coterie.comparison.exact.levels import with_effects
from coterie.data.coded_table import Table, make_table
from coterie.errors import ConfigError
from coterie.evidence.coalitions.answer import Coalitions
from coterie.evidence.coalitions.find import Note, find
from coterie.evidence.coalitions.search import FOLD_Z, Block, Settings

PENALTIES = 10.0 ** np.arange(-3, 5)
WORTH = 0.01  # of the mean loss alone: less is not worth a move


class PooledRidge:
    """Out-of-fold losses of every coalition of a table's clients."""

    def __init__(self, table: Table, folds: int, seed: int) -> None:
        self.table, self.folds = table, folds
        X = with_effects(table, np.ones(len(table.y), bool))[1]
        scale = X.std(0)
        z = (X - X.mean(0)) / np.where(scale > 0, scale, 1)
        self.z = np.concatenate([np.ones((len(z), 1)), z], axis=1)
        out = table.outputs() - table.outputs().mean(0)
        self.out = out / np.sqrt(max(float((out**2).sum(1).mean()), 1e-300))  # the overall mean has loss 1
        self.fold = deal(table.owner, table.n_clients, folds, np.random.default_rng(seed))
        shape = (table.n_clients, folds)
        width = self.z.shape[1]
        self.gram = np.zeros((*shape, width, width))
        self.cross = np.zeros((*shape, width, out.shape[1]))
        self.square, self.count = np.zeros(shape), np.zeros(shape)
        cell = table.owner * folds + self.fold
        for c in np.unique(cell):
            at = cell == c
            where = np.unravel_index(c, shape)
            self.gram[where], self.cross[where] = self.z[at].T @ self.z[at], self.z[at].T @ self.out[at]
            self.square[where], self.count[where] = (self.out[at] ** 2).sum(), at.sum()

    def losses(self, block: Block) -> list[Floats]:
        """For every client, the loss of each of its rows under the block's model of the other folds."""
        weights = self._weights(sorted(block)) if block else np.zeros((self.folds, *self.cross.shape[2:]))
        made = np.einsum("rj,rjk->rk", self.z, weights[self.fold])
        rows = ((self.out - made) ** 2).sum(1)
        return [rows[self.table.owner == i] for i in range(self.table.n_clients)]

    def _weights(self, members: list[int]) -> Floats:
        """(folds, width, outputs): fitted without each fold, the penalty chosen on the folds that are left."""
        gram, cross = self.gram[members].sum(0), self.cross[members].sum(0)
        square, count = self.square[members].sum(0), self.count[members].sum(0)
        f = self.folds
        both = ~np.eye(f, dtype=bool)  # (left out, validated on)
        outer, inner = np.nonzero(both)
        trial = self._solve(
            gram.sum(0) - gram[outer] - gram[inner],
            cross.sum(0) - cross[outer] - cross[inner],
            count.sum() - count[outer] - count[inner],
        )  # (pairs, penalties, width, outputs)
        fit = np.einsum("plwo,pwv,plvo->pl", trial, gram[inner], trial)
        error = square[inner][:, None] - 2 * np.einsum("plwo,pwo->pl", trial, cross[inner]) + fit
        total = np.stack([error[outer == k].sum(0) for k in range(f)])
        best = total.argmin(1)
        whole = self._solve(gram.sum(0) - gram, cross.sum(0) - cross, count.sum() - count)
        return np.asarray(whole[np.arange(f), best])

    @staticmethod
    def _solve(gram: Floats, cross: Floats, count: Floats) -> Floats:
        """Ridge for every penalty; the intercept is hardly penalised."""
        width = gram.shape[-1]
        shape = np.concatenate([[1e-8], np.ones(width - 1)])
        ridge = PENALTIES[:, None, None] * np.diag(shape) + 1e-10 * np.maximum(count, 1)[:, None, None, None] * np.eye(
            width
        )
        return np.asarray(np.linalg.solve(gram[:, None] + ridge, np.repeat(cross[:, None], len(PENALTIES), axis=1)))

    def gradients(self) -> Floats:
        """The gradient of every client's mean loss at the model of all rows: one row per client."""
        weights = self._weights(list(range(self.table.n_clients))).mean(0)
        gram, cross = self.gram.sum(1), self.cross.sum(1)
        size = np.maximum(self.count.sum(1), 1)[:, None, None]
        slope = (np.einsum("cwv,vo->cwo", gram, weights) - cross) / size
        return np.asarray(slope.reshape(len(slope), -1))


@guarded
def coalitions(
    X: Any,
    y: Any = None,
    clients: Any = None,
    *,
    kind: str = "regression",
    folds: int = 5,
    seed: int = 0,
    level: float = 0.9,
    worth: float = WORTH,
    brings: bool = True,
    thorough: bool = False,
    note: Note | None = None,
) -> Coalitions:
    """Find the clients of a table that should learn one model together, such that nobody would rather leave.

    Parameters
    ----------
    X, y, clients
        Numeric columns, the target, and the client of every row; or a `Table` alone.
    kind
        "regression" or "classification".
    folds
        Cross-validation inside every client; every row is judged once, by models that did not see it.
    worth
        The smallest gain that counts, as a share of the mean loss alone.
    brings, thorough, note
        See `find`."""
    if folds < 3:
        raise ConfigError(f"folds is {folds}; coalitions need at least 3, one to judge and two to choose the penalty.")
    table = X if isinstance(X, Table) else make_table(X, y, clients, kind, None)
    model = PooledRidge(table, folds, seed)
    alone = [model.losses(frozenset([i]))[i] for i in range(table.n_clients)]
    scale = float(np.mean([a.mean() for a in alone]))
    settings = Settings(level=level, worth=worth * scale, z=FOLD_Z)
    return find(
        model.losses,
        alone,
        model.gradients,
        list(table.clients),
        settings,
        brings=brings,
        thorough=thorough,
        seed=seed,
        note=note,
    )
