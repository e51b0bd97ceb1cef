"""`ct.advise` is `coterie.estimation.advise`, for means, rates and counts. Its former door for tables leads to `compare`."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

import numpy as np

from coterie.comparison.compare import compare
from coterie.comparison.result import Comparison
from coterie.errors import DataError, OldSpelling
from coterie.estimation import advice as estimates
from coterie.estimation.advice import Advice


@wraps(estimates.advise)
def advise(federation: Any = None, **options: Any) -> Advice | Comparison:
    table = [options.pop(name, None) for name in ("X", "y", "groups")]
    if federation is None and all(part is None for part in table):
        return estimates.advise(**options)
    told = "advise for tables and federations is now compare; the old spelling works for one more release."
    warnings.warn(told, OldSpelling, stacklevel=2)
    reading: dict[str, Any] = {}
    if federation is None:
        if any(part is None for part in table):
            raise DataError("advise needs X, y and groups together; got only some of them. Pass all three.")
        X, y, owner = map(np.asarray, table)
        federation = {client: (X[owner == client], y[owner == client]) for client in np.unique(owner)}
        family, two = options.get("family", "auto"), len(np.unique(y)) == 2
        kind = {"auto": "classification" if two else None, "linear": "regression"}.get(family, "classification")
        reading = {"kind": kind, "one_class": "allow", "test_fraction": 0.0}
    seed = options.get("seed", 0)
    return compare(federation, seeds=[seed, seed + 1, seed + 2], metric=options.get("metric"), **reading)
