"""How a table is judged: how many folds and repeats, and on how many columns."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from sklearn.decomposition import PCA

from coterie.data.coded_table import Floats, Table

MOST = 200  # columns × outputs; of more columns the principal components are taken
WIDE = 100  # columns × outputs above which five folds, once, must do
FEW_ROWS = 20_000


def narrowed(table: Table) -> tuple[Table, tuple[str, ...]]:
    """The table with `narrow` columns, and a sentence that says so."""
    X, notes = narrow(table.X, _outputs(table))
    names = tuple(f"component {j + 1}" for j in range(X.shape[1])) if notes else table.names
    return replace(table, X=X, names=names), notes


def narrow(X: Floats, outputs: int) -> tuple[Floats, tuple[str, ...]]:
    """The columns, or their leading principal components where columns × outputs exceed 200 (images)."""
    kept = min(max(MOST // outputs, 10), X.shape[1], len(X))
    if X.shape[1] * outputs <= MOST or kept == X.shape[1]:
        return X, ()
    found = PCA(kept, svd_solver="randomized", random_state=0).fit_transform(X)
    return np.asarray(found), (f"The {X.shape[1]} columns were replaced by their {kept} leading principal components.",)


def _outputs(table: Table) -> int:
    """The number of outputs: one for a number or two classes, else one per class."""
    return table.n_classes if table.n_classes > 2 else 1


def plan(table: Table, seeds: Sequence[int]) -> dict[str, int]:
    """Folds and repeats: as many repeats as seeds, but one for wide and large tables unless more than three are asked."""
    wide = table.X.shape[1] * _outputs(table) > WIDE
    once = (wide or len(table.y) >= FEW_ROWS) and len(seeds) <= 3
    return {"folds": 5 if wide else 10, "repeats": 1 if once else len(seeds), "seed": int(seeds[0])}


def default_seeds(seed: int = 0) -> tuple[int, int, int]:
    """The seeds that `advise` and `compare` use by default."""
    return seed, seed + 1, seed + 2
