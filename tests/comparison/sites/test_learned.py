"""Algorithms trained in a decision across sites."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ConfigError


def test_clients_with_few_rows_are_not_trained_so_that_no_part_has_fewer_than_five() -> None:
    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.normal(size=(n, 2)), rng.normal(size=n)) for i, n in enumerate((60, 26, 60))}
    with pytest.raises(ConfigError, match=r"27 rows or more.*c1 has fewer"):
        ct.compare(ct.Federation.from_arrays(data), across="sites", algorithms=["fedavg"], rounds=1, seeds=1)
