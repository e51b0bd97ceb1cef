"""What a server knows of its clients before the first round, and which part of its state a client may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.base.tree import Params, tree_map
from coterie.errors import ConfigError
from coterie.learning.body_and_head import features
from coterie.learning.task import Task

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Population:
    """What a server may know of its clients before the first round."""

    n_clients: int
    sizes: Ints
    clusters: Ints | None  # the true groups, for oracles only
    classes: tuple[Any, ...] | None = None  # the labels, in the order of the network's outputs; None for numbers
    sample: Tensor | None = None  # one row of zeros, of the shape and type of the clients' samples

    def width(self, task: Task, params: Params, head: Sequence[str] = ()) -> int:
        """How many numbers enter the head of the network for each sample, as in `Context.features`."""
        if self.sample is None:
            raise ConfigError(
                "The width of features needs a sample's shape; got a Population without `sample`. Pass it."
            )
        network = task.judge(next(iter(params.values())))
        with torch.no_grad():
            return features(network, params, self.sample, head).shape[1]


def one_per(rows: str) -> dict[str, str]:
    """Metadata of a field of a server state whose rows have owners. A row belongs to one "client", to the clients that have
    its number in another field ("label"; −1 there: all rows), or to "nobody". A deployed client is shown its own rows and
    zeros for the others."""
    return {"rows": rows}


def shown_to(state: Any, clients: Ints) -> Any:
    """A server's state as these clients may see it: rows of other clients are zero."""
    changed: dict[str, Any] = {}
    for f in fields(state):
        rows = f.metadata.get("rows")
        if rows is None:
            continue
        own = torch.from_numpy(clients)
        if rows == "nobody":
            own = own[:0]
        elif rows != "client":
            own = getattr(state, rows)[own].unique()
            if bool((own < 0).any()):
                continue

        def blanked(t: Tensor, own: Tensor = own) -> Tensor:
            return torch.zeros_like(t).index_copy(0, own, t.index_select(0, own)) if t.dim() and len(t) else t

        changed[f.name] = tree_map(blanked, getattr(state, f.name))
    return replace(state, **changed)
