"""Which facts about a federation were read from rows, and which were declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.provenance import undeclared
from coterie.privacy import non_private, public

FRAME = pd.DataFrame(
    {"who": np.repeat(["a", "b", "c"], 8), "x": np.arange(24.0) % 7, "y": np.tile([0, 1], 12)},
)


def chosen_by_rows(fed: ct.Federation) -> bool:
    return any("which clients take part came from" in reason for reason in undeclared(fed, groups=False))


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, False),
        ({"min_rows": 1}, False),
        ({"min_rows": 2}, True),
        ({"drop_missing": True}, True),
        ({"same_clients": True}, True),
    ],
)
def test_clients_chosen_by_their_rows_are_to_be_declared(options: dict[str, Any], chosen: bool) -> None:
    fed = ct.Federation.from_frame(FRAME, client="who", target="y", scaling="own", **options)
    assert chosen_by_rows(fed) == chosen
    assert not chosen_by_rows(fed.declare_public("clients"))


def test_classes_are_declared_by_a_clean_history_alone() -> None:
    data = {c: (np.arange(8.0).reshape(4, 2), [0, 1, 0, 1]) for c in "ab"}
    for classes, declared in (([0, 1], False), (public([0, 1]), True), (non_private([0, 1], "read from rows"), False)):
        assert ("classes" in ct.Federation.from_arrays(data, classes=classes).declared) == declared


def test_sample_weights_are_relative_to_each_clients_own_smallest() -> None:
    """Else one client's smallest weight would change the numbers of all others."""
    weights = np.array([2.0, 4.0, 30.0, 10.0])
    fed = ct.Federation.from_flat(
        np.arange(8.0).reshape(4, 2),
        np.array([0, 1, 0, 1]),
        sizes=[2, 2],
        clients=["a", "b"],
        n_test=[0, 0],
        weights=weights,
    )
    assert fed.weights is not None
    np.testing.assert_allclose(fed.weights.numpy(), [1.0, 2.0, 3.0, 1.0])
