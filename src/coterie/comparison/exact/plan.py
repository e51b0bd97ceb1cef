"""How a table is judged: how many folds and repeats, and on how many columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from coterie.comparison.exact.levels import Blocks
from coterie.data.coded_table import Floats, Table

MOST = 200  # columns × outputs; of more columns the principal components are taken
WIDE = 100  # columns × outputs above which five folds, once, must do
FEW_ROWS = 20_000


@dataclass(frozen=True)
class Projection:
    """Principal components of the columns: what new rows need to become inputs like the training rows."""

    mean: Floats
    components: Floats  # (components, columns)

    def columns(self, X: Floats) -> Floats:
        """The components; columns of codes, which come last, stay as they are."""
        p = len(self.mean)
        with threadpool_limits(1, "blas"):  # the same numbers, whatever the number of threads
            return np.hstack([(X[:, :p] - self.mean) @ self.components.T, X[:, p:]])


def narrowed(table: Table, blocks: Blocks | None = None) -> tuple[Table, Projection | None, tuple[str, ...]]:
    """The table with its columns, or with their leading principal components where columns × outputs exceed 200 (images);
    the projection, and a sentence that says so. Categories with many levels (``blocks``) become one column each."""
    table = table if blocks is None or _outputs(table) > 1 else blocks.condense(table)
    p = table.X.shape[1] - len(table.levels)
    projection = principal(table.X[:, :p], _outputs(table))
    if projection is None:
        return table, None, ()
    X = projection.columns(table.X)
    names = (*(f"component {j + 1}" for j in range(len(projection.components))), *table.names[p:])
    told = f"The {p} columns were replaced by their {len(projection.components)} leading principal components."
    return replace(table, X=X, names=names), projection, (told,)


def principal(X: Floats, outputs: int) -> Projection | None:
    """The components to take instead of the columns; None where the columns are few enough."""
    kept = min(max(MOST // outputs, 10), X.shape[1], len(X))
    if X.shape[1] * outputs <= MOST or kept == X.shape[1]:
        return None
    found = PCA(kept, svd_solver="randomized", random_state=0).fit(X)
    return Projection(np.asarray(found.mean_), np.asarray(found.components_))


def _outputs(table: Table) -> int:
    """The number of outputs: one for a number or two classes, else one per class."""
    return table.n_classes if table.n_classes > 2 else 1


def plan(table: Table, seeds: Sequence[int]) -> dict[str, int]:
    """Folds and repeats: as many repeats as seeds, but one for wide and large tables unless more than three are asked."""
    wide = table.X.shape[1] * _outputs(table) > WIDE
    once = (wide or len(table.y) >= FEW_ROWS) and len(seeds) <= 3
    return {"folds": 5 if wide else 10, "repeats": 1 if once else len(seeds), "seed": int(seeds[0])}
