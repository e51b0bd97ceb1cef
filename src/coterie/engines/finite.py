"""Replies with NaN or infinity are dropped, counted as lost and named, so that one client cannot end everybody's run.

A client that sends NaN or infinity counts as lost. A client whose own state became NaN or infinite keeps its earlier state
and also counts as lost. The run has diverged only when no client's answer to a question is finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Env
from coterie.exchange.messages import Ints
from coterie.tree import finite_rows, leaves, tree_map


def only(out: dict[str, Any], good: Tensor) -> dict[str, Any]:
    """The rows of some clients."""
    if bool(good.all()):
        return out
    rows = good.nonzero().squeeze(-1)
    kept: dict[str, Any] = tree_map(lambda t: t.index_select(0, rows), out)
    return kept


def keep_states(env: Env, out: dict[str, Any], clients: Ints) -> Tensor:
    """Store the new states that are finite; returns (clients,) whether each client's state is."""
    state = out.pop("state", None)
    if state is None or not any(True for _ in leaves(state)):
        return torch.ones(len(clients), dtype=torch.bool)
    good = finite_rows(state)
    if bool(good.any()):
        env.states.set(clients[good.numpy()], only(state, good))
    return good


def first(clients: list[Ints]) -> int:
    """The client that an error names: the first in the federation's order."""
    return int(np.concatenate(clients).min())
