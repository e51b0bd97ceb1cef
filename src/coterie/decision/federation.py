"""A federation's rows as a table to decide on. A federation is known here by what it offers, so torch is not needed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA

from coterie.decision.candidates.rows import Floats
from coterie.decision.table import Table, make_table
from coterie.errors import DataError

MOST_COLUMNS = 200  # more are replaced by principal components
COMPONENTS = 100  # of a wide table
IMAGE_COMPONENTS = 32
FOLDS = 10
FEW_ROWS = 20_000


def federation_table(federation: Any) -> tuple[Table, tuple[str, ...]]:
    """All rows of a federation, training and test rows alike, under its clients' names; and what was done to them.

    Images, and tables with more than 200 columns, give way to their leading principal components."""
    if not hasattr(federation, "rows"):
        raise DataError(
            f"advise takes a Federation, or named data (samples=, counts=, …); got {type(federation).__name__}. "
            "Name the data."
        )
    parts = [federation.rows(part) for part in ("train", "test")]
    X, y, owner = (np.concatenate(both) for both in zip(*parts, strict=True))
    columns = federation.columns
    is_image = federation.x.ndim > 2
    X, notes = narrow(X.astype(np.float64), IMAGE_COMPONENTS if is_image else None)
    names = list(columns) if columns is not None and not notes else None
    table = make_table(X, y, owner, federation.kind, names)
    clients = pd.Index([str(c) for c in federation.clients[np.asarray(table.clients, dtype=np.int64)]], name="client")
    classes = table.classes
    if classes is not None and federation.classes is not None:
        classes = pd.Index([federation.classes[int(c)] for c in classes])
    return Table(table.X, table.y, table.owner, clients, table.names, classes), notes


def narrow(X: Floats, components: int | None = None) -> tuple[Floats, tuple[str, ...]]:
    """The columns, or their leading principal components where there are too many; with a sentence that says so."""
    if X.shape[1] <= (components or MOST_COLUMNS):
        return X, ()
    kept = min(components or COMPONENTS, len(X))
    found = PCA(kept, svd_solver="randomized", random_state=0).fit_transform(X)
    return np.asarray(found), (f"The {X.shape[1]} columns were replaced by their {kept} leading principal components.",)


def repeats_for(seeds: Sequence[int], n_rows: int) -> int:
    """As many repeats of the cross-validation as seeds; of a large table one will do, unless more than three are asked."""
    return len(seeds) if n_rows < FEW_ROWS or len(seeds) > 3 else 1


def default_seeds(seed: int = 0) -> tuple[int, int, int]:
    """What `advise` and `compare` take when they are not told."""
    return seed, seed + 1, seed + 2
