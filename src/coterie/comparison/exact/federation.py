"""A federation's rows as a table to decide on. A federation is known here by what it offers, so torch is not needed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA

from coterie.comparison.exact.candidates.rows import Floats
from coterie.comparison.exact.table import Table, make_table
from coterie.errors import DataError

MOST = 200  # columns × outputs; of more columns the principal components are taken
WIDE = 100  # columns × outputs above which five folds, once, must do
FEW_ROWS = 20_000


def federation_table(federation: Any) -> tuple[Table, tuple[str, ...]]:
    """All rows of a federation, training and test rows alike, under its clients' names; and what was done to them.

    Where columns × outputs exceed 200 (images), the columns give way to their leading principal components."""
    if not hasattr(federation, "rows"):
        raise DataError(
            f"advise takes a Federation, or named data (samples=, counts=, …); got {type(federation).__name__}. "
            "Name the data."
        )
    if federation.y.ndim > 1:
        raise DataError(
            f"A decision needs one target a row; this federation has {tuple(federation.y.shape[1:])} of them. Choose one."
        )
    parts = [federation.rows(part) for part in ("train", "validation", "test") if federation.sizes(part).any()]
    X, y, owner = (np.concatenate(both) for both in zip(*parts, strict=True))
    X, notes = narrow(X.astype(np.float64), _outputs(federation.n_outputs))
    names = list(federation.columns) if federation.columns is not None and not notes else None
    table = make_table(X, y, owner, federation.kind, names)
    clients = pd.Index([str(c) for c in federation.clients[np.asarray(table.clients, dtype=np.int64)]], name="client")
    classes = table.classes
    if classes is not None and federation.classes is not None:
        classes = pd.Index([federation.classes[int(c)] for c in classes])
    return Table(table.X, table.y, table.owner, clients, table.names, classes), notes


def narrow(X: Floats, outputs: int) -> tuple[Floats, tuple[str, ...]]:
    """The columns, or their leading principal components where there are too many; with a sentence that says so."""
    if X.ndim != 2 or X.shape[1] * outputs <= MOST or not np.isfinite(X).all():
        return X, ()
    kept = min(max(MOST // outputs, 10), X.shape[1], len(X))
    if kept == X.shape[1]:
        return X, ()
    found = PCA(kept, svd_solver="randomized", random_state=0).fit_transform(X)
    return np.asarray(found), (f"The {X.shape[1]} columns were replaced by their {kept} leading principal components.",)


def _outputs(classes: int) -> int:
    """Two classes are one output, as a number is."""
    return classes if classes > 2 else 1


def plan(table: Table, seeds: Sequence[int]) -> dict[str, int]:
    """Folds and repeats: as many repeats as seeds, but one for wide and large tables unless more than three are asked."""
    wide = table.X.shape[1] * _outputs(table.n_classes) > WIDE
    once = (wide or len(table.y) >= FEW_ROWS) and len(seeds) <= 3
    return {"folds": 5 if wide else 10, "repeats": 1 if once else len(seeds), "seed": int(seeds[0])}


def default_seeds(seed: int = 0) -> tuple[int, int, int]:
    """What `advise` and `compare` take when they are not told."""
    return seed, seed + 1, seed + 2
